#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "audio_activation.h"
#include "audio_conv.h"
#include "tensor_file.h"

/* A vocoder small enough to run hundreds of times; its two rates are odd and even. */
enum { LATENT = 2, HOP = 6 };
static const h3f_audio_vae_config small = {.latent_channels = LATENT,
                                           .stages = 2,
                                           .rates = {3, 2},
                                           .kernels = 2,
                                           .kernel_sizes = {3, 5},
                                           .dilations = 2,
                                           .dilation_sizes = {1, 3}};
static const int32_t channels_of[] = {4, 3, 2}; /* of conv_pre and after each stage */

static h3f_context *ctx;
static t_file file;

/* ---- a file ---- */

static void add_conv(const char *module, int64_t first, int64_t second, int64_t kernel, int64_t outputs) {
    char name[128];
    snprintf(name, sizeof name, "%s.weight_v", module);
    t_add(&file, 1, 0, name, 3, (const int64_t[]){first, second, kernel});
    snprintf(name, sizeof name, "%s.weight_g", module);
    t_add(&file, 0.3F, 0.8F, name, 3, (const int64_t[]){first, 1, 1});
    snprintf(name, sizeof name, "%s.bias", module);
    if (outputs)
        t_add(&file, 0.1F, 0, name, 1, &outputs);
}

static void add_activation(const char *module, int64_t channels) {
    static const float taps[6] = {0.00202896645F, 0.00938946394F, -0.0255434641F,
                                  -0.0576573755F, 0.128572609F,   0.4432098F};
    static const char *const filters[] = {"upsample.filter", "downsample.lowpass.filter"};
    char name[128];
    snprintf(name, sizeof name, "%s.act.alpha", module);
    t_add(&file, 0.5F, 0.2F, name, 1, &channels);
    snprintf(name, sizeof name, "%s.act.beta", module);
    t_add(&file, 0.5F, 0, name, 1, &channels);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.%s", module, filters[i]);
        t_tensor *filter = t_add(&file, 0, 0, name, 3, (const int64_t[]){1, 1, 12});
        for (int k = 0; k < 12; k++) /* not quite symmetric, nor the same: a swap must show */
            filter->values[k] = taps[k < 6 ? k : 11 - k] + 0.01F * (float)(k + 3 * i);
    }
}

static void add_block(int32_t block, int64_t channels, int64_t kernel) {
    char name[96];
    for (int n = 0; n < 4; n++) {
        snprintf(name, sizeof name, "decoder.resblocks.%d.%s.%d", block, n % 2 ? "convs2" : "convs1", n / 2);
        add_conv(name, channels, channels, kernel, channels);
        snprintf(name, sizeof name, "decoder.resblocks.%d.activations.%d", block, n);
        add_activation(name, channels);
    }
}

static void make_file(void) {
    static const int64_t up_kernels[] = {7, 4};
    char name[96];
    t_clear(&file);
    file.draw = (h_draw){9};
    t_add(&file, 0.5F, 0, "dec_in_proj.weight", 3, (const int64_t[]){5, LATENT, 1});
    t_add(&file, 0.1F, 0, "dec_in_proj.bias", 1, (const int64_t[]){5});
    add_conv("decoder.conv_pre", channels_of[0], 5, 7, channels_of[0]);
    for (int32_t stage = 0; stage < 2; stage++) {
        snprintf(name, sizeof name, "decoder.ups.%d.0", stage);
        add_conv(name, channels_of[stage], channels_of[stage + 1], up_kernels[stage], channels_of[stage + 1]);
        for (int32_t j = 0; j < 2; j++)
            add_block(stage * 2 + j, channels_of[stage + 1], small.kernel_sizes[j]);
    }
    add_activation("decoder.activation_post", channels_of[2]);
    add_conv("decoder.conv_post", 1, channels_of[2], 7, 0);
    /* Quiet enough not to be clipped. */
    t_find(&file, "decoder.conv_post.weight_g")->values[0] = 0.05F;
}

typedef struct opened {
    h3f_checkpoint *checkpoint;
    h3f_audio_vae *vae;
} opened;

static opened open_on(h3f_context *on, int32_t dtype) {
    opened o = {.checkpoint = t_open(on, &file, dtype, H3F_AUDIO_VAE, "vae.safetensors")};
    CHECK_OK(on, h3f_audio_vae_open(on, o.checkpoint, &small, &o.vae));
    return o;
}

static void close_all(opened *o) {
    h3f_audio_vae_close(o->vae);
    h3f_checkpoint_close(o->checkpoint);
}

enum { LATENTS = 9, WAVE = LATENTS * HOP };

static void draw_latent(float latent[2 * LATENT * LATENTS]) {
    h_draw draw = {3};
    h_fill(&draw, latent, 2 * LATENT * LATENTS);
}

/* The wave of the file as it is now. */
static void decode_file(int32_t dtype, float wave[2 * WAVE]) {
    float latent[2 * LATENT * LATENTS];
    draw_latent(latent);
    opened o = open_on(ctx, dtype);
    CHECK_OK(ctx, h3f_audio_vae_decode(o.vae, latent, 2, LATENTS, wave));
    close_all(&o);
}

/* ---- convolutions ---- */

/* A module of its own, in the vae's place of conv_pre or of an upsampler. */
typedef struct module {
    h3f_checkpoint *checkpoint;
    h3f_conv conv;
    h3f_arena arena;
} module;

static module open_conv(h3f_conv wanted, bool biased) {
    const char *name = wanted.rate ? "decoder.ups.0.0" : "decoder.conv_pre";
    const int32_t first = wanted.rate ? wanted.in : wanted.out, second = wanted.rate ? wanted.out : wanted.in;
    t_clear(&file);
    add_conv(name, first, second, wanted.kernel, biased ? wanted.out : 0);
    module m = {.checkpoint = t_open(ctx, &file, H3F_F32, H3F_AUDIO_VAE, "conv.safetensors"), .conv = wanted};
    snprintf(m.conv.name, sizeof m.conv.name, "%s", name);
    m.conv.biased = biased;
    CHECK_OK(ctx, h3f_conv_find(m.checkpoint, &m.conv));
    h3f_conv_layout(&m.arena, &m.conv);
    CHECK_OK(ctx, h3f_arena_reserve(ctx, &m.arena, "a convolution"));
    h3f_conv_layout(&m.arena, &m.conv);
    CHECK_OK(ctx, h3f_conv_load(m.checkpoint, &m.conv));
    return m;
}

static void close_conv(module *m) {
    h3f_arena_release(ctx, &m->arena);
    h3f_checkpoint_close(m->checkpoint);
}

/* w = g v / |v| over all axes but the first. */
static double folded(const t_tensor *v, const t_tensor *g, int64_t a, int64_t b, int64_t k) {
    const int64_t row = v->shape[1] * v->shape[2];
    double sum = 0;
    for (int64_t i = 0; i < row; i++)
        sum += (double)v->values[a * row + i] * (double)v->values[a * row + i];
    return (double)g->values[a] * (double)v->values[a * row + b * v->shape[2] + k] / sqrt(sum);
}

/* By the definition: every input sample adds to the outputs that its kernel reaches. */
static void naive_conv(const h3f_conv *conv, bool biased, const float *x, int64_t length, float *out) {
    const t_tensor *v = &file.tensors[0], *g = &file.tensors[1];
    const int32_t rate = conv->rate ? conv->rate : 1;
    const int64_t pad = conv->rate ? (conv->kernel - conv->rate) / 2 : (conv->kernel - 1) / 2 * conv->dilation;
    double *sums = calloc((size_t)(length * rate * conv->out), sizeof *sums);
    for (int64_t o = 0; o < conv->out; o++)
        for (int64_t i = 0; i < conv->in; i++)
            for (int64_t k = 0; k < conv->kernel; k++) {
                const double w = conv->rate ? folded(v, g, i, o, k) : folded(v, g, o, i, k);
                for (int64_t t = 0; t < length; t++) {
                    const int64_t n = conv->rate ? t * rate + k - pad : t + pad - k * conv->dilation;
                    if (n >= 0 && n < length * rate)
                        sums[n * conv->out + o] += w * (double)x[t * conv->in + i];
                }
            }
    for (int64_t i = 0; i < length * rate * conv->out; i++)
        out[i] = (float)(sums[i] + (biased ? (double)file.tensors[2].values[i % conv->out] : 0));
    free(sums);
}

static void check_conv(h3f_conv wanted, bool biased, int64_t length) {
    module m = open_conv(wanted, biased);
    const int64_t count = length * (wanted.rate ? wanted.rate : 1) * wanted.out;
    float *x = malloc((size_t)(length * wanted.in) * sizeof *x);
    float *y = malloc((size_t)h3f_conv_room(&m.conv, length) * sizeof *y);
    float *expected = malloc((size_t)count * sizeof *expected), *result;
    void *scratch = h3f_alloc(ctx, h3f_conv_scratch(&m.conv, length), "scratch");
    h_fill(&file.draw, x, length * wanted.in);
    naive_conv(&m.conv, biased, x, length, expected);
    CHECK_OK(ctx, h3f_conv_run(ctx, &m.conv, x, length, scratch, y, &result));
    CHECK(h_difference(result, expected, count) < 1e-5);
    h3f_free(ctx, scratch);
    free(expected);
    free(y);
    free(x);
    close_conv(&m);
}

static void test_plain_convolutions_are_what_the_definition_says(void) {
    h_draw draw = {2};
    for (int i = 0; i < 40; i++) {
        const h3f_conv wanted = {.in = (int32_t)h_between(&draw, 1, 9),
                                 .out = (int32_t)h_between(&draw, 1, 9),
                                 .kernel = (int32_t)h_between(&draw, 0, 5) * 2 + 1,
                                 .dilation = (int32_t)h_between(&draw, 1, 5)};
        check_conv(wanted, i % 2, h_between(&draw, 1, 70));
    }
}

static void test_transposed_convolutions_are_what_the_definition_says(void) {
    h_draw draw = {4};
    for (int i = 0; i < 40; i++) {
        const int32_t rate = (int32_t)h_between(&draw, 1, 6);
        const h3f_conv wanted = {.in = (int32_t)h_between(&draw, 1, 9),
                                 .out = (int32_t)h_between(&draw, 1, 9),
                                 .kernel = rate + 2 * (int32_t)h_between(&draw, 0, 5),
                                 .rate = rate};
        check_conv(wanted, i % 2, h_between(&draw, 1, 70));
    }
}

/* Windows are copied out in parts of four million values. */
static void test_a_signal_of_several_parts_has_no_seams(void) {
    check_conv((h3f_conv){.in = 2, .out = 1, .kernel = 41, .dilation = 2}, true, 52000);
    check_conv((h3f_conv){.in = 2, .out = 1, .kernel = 83, .rate = 1}, true, 26000);
}

/* ---- the activation ---- */

static double at(const double *x, int64_t length, int64_t i) {
    return x[i < 0 ? 0 : i >= length ? length - 1 : i];
}

/* One channel, by the formulas of the specification. */
static void naive_activation(const h3f_activation *a, int32_t c, const double *x, int64_t length, double *y) {
    double *v = malloc((size_t)(2 * length) * sizeof *v);
    for (int64_t m = 0; m < length; m++) {
        double even = 0, odd = 0;
        for (int64_t k = 0; k < 6; k++) {
            even += 2 * (double)a->filter_up[2 * k + 1] * at(x, length, m + 2 - k);
            odd += 2 * (double)a->filter_up[2 * k] * at(x, length, m + 3 - k);
        }
        v[2 * m] = even;
        v[2 * m + 1] = odd;
    }
    for (int64_t i = 0; i < 2 * length; i++)
        v[i] += (double)a->inverse[c] * pow(sin((double)a->alpha[c] * v[i]), 2);
    for (int64_t n = 0; n < length; n++) {
        y[n] = 0;
        for (int64_t k = 0; k < 12; k++)
            y[n] += (double)a->filter_down[k] * at(v, 2 * length, 2 * n + k - 5);
    }
    free(v);
}

static void check_activation(int32_t channels, int64_t length, float loudness) {
    t_clear(&file);
    add_activation("decoder.activation_post", channels);
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_AUDIO_VAE, "activation.safetensors");
    h3f_activation a = {.name = "decoder.activation_post", .channels = channels};
    h3f_arena arena = {0};
    h3f_activation_layout(&arena, &a);
    CHECK_OK(ctx, h3f_arena_reserve(ctx, &arena, "an activation"));
    h3f_activation_layout(&arena, &a);
    CHECK_OK(ctx, h3f_activation_load(checkpoint, &a));
    const size_t count = (size_t)(length * channels);
    float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
    double *in = malloc((size_t)length * sizeof *in), *wanted = malloc((size_t)length * sizeof *wanted);
    h_fill(&file.draw, x, (int64_t)count);
    for (size_t i = 0; i < count; i++)
        x[i] *= loudness;
    CHECK_OK(ctx, h3f_activation_run(ctx, &a, x, length, y));
    for (int32_t c = 0; c < channels; c++) {
        for (int64_t i = 0; i < length; i++)
            in[i] = (double)x[i * channels + c];
        naive_activation(&a, c, in, length, wanted);
        for (int64_t i = 0; i < length; i++)
            CHECK(fabs((double)y[i * channels + c] - wanted[i]) < 4e-6 * (1 + (double)loudness));
    }
    free(wanted);
    free(in);
    free(y);
    free(x);
    h3f_arena_release(ctx, &arena);
    h3f_checkpoint_close(checkpoint);
}

static void test_the_activation_is_what_the_specification_says(void) {
    static const int64_t table[][2] = {/* channels, length */
                                       {1, 1},   {2, 2},   {1, 3},   {3, 5},    {7, 6},
                                       {1, 7},   {64, 12}, {65, 47}, {200, 48}, {200, 49},
                                       {200, 99}, {8, 3000}, {1, 8192}, {1, 8193}, {1, 16390}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_activation((int32_t)table[i][0], table[i][1], 1 + (float)(i % 3) * 5);
}

/* values in -1 .. 1, so that the sum does not hide the sine's error, times a large alpha. */
static void check_snake(float frequency) {
    enum { COUNT = 4096, PERIOD = 64 };
    static float values[COUNT], alpha[PERIOD], inverse[PERIOD];
    const h3f_activation a = {.channels = 1, .period = PERIOD, .alpha = alpha, .inverse = inverse};
    for (int i = 0; i < PERIOD; i++) {
        alpha[i] = frequency;
        inverse[i] = 1;
    }
    for (int i = 0; i < COUNT; i++)
        values[i] = 2 * (float)i / COUNT - 1;
    h3f_snake(&a, COUNT, values);
    for (int i = 0; i < COUNT; i++) {
        const float x = 2 * (float)i / COUNT - 1;
        const double sine = sin((double)(x * frequency));
        CHECK(fabs((double)values[i] - ((double)x + sine * sine)) <= 4e-7);
    }
}

static void test_the_squared_sine_is_near_the_true_one(void) {
    static const float frequencies[] = {1, 3.3F, 40, 777, 24000, 25100, 3e5F, 1e9F};
    for (size_t i = 0; i < sizeof frequencies / sizeof *frequencies; i++)
        check_snake(frequencies[i]); /* the way of reducing changes at 25000 */
}

static void test_the_squared_sine_of_what_is_not_finite_is_nan(void) {
    float alpha[64], inverse[64], values[64] = {[3] = INFINITY, [40] = NAN};
    const h3f_activation a = {.channels = 1, .period = 64, .alpha = alpha, .inverse = inverse};
    for (int i = 0; i < 64; i++)
        alpha[i] = inverse[i] = 1;
    h3f_snake(&a, 64, values);
    CHECK(isnan(values[3]) && isnan(values[40]));
    CHECK(values[4] == 0.0F);
}

/* ---- what is decoded ---- */

static void test_stereo_channels_are_decoded_each_by_itself(void) {
    float latent[2 * LATENT * LATENTS], both[2 * WAVE], one[WAVE];
    draw_latent(latent);
    opened o = open_on(ctx, H3F_F32);
    CHECK_INT(h3f_audio_vae_hop(o.vae), HOP);
    CHECK_OK(ctx, h3f_audio_vae_decode(o.vae, latent, 2, LATENTS, both));
    for (int c = 0; c < 2; c++) {
        CHECK_OK(ctx, h3f_audio_vae_decode(o.vae, latent + c * LATENT * LATENTS, 1, LATENTS, one));
        CHECK(memcmp(one, both + c * WAVE, sizeof one) == 0);
    }
    CHECK(memcmp(both, both + WAVE, sizeof one) != 0);
    close_all(&o);
}

static void test_both_spellings_of_the_weight_norm_are_the_same(void) {
    float wanted[2 * WAVE], found[2 * WAVE];
    decode_file(H3F_F32, wanted);
    for (int32_t i = 0; i < file.count; i++) {
        char *norm = strstr(file.tensors[i].name, ".weight_");
        if (norm)
            strcpy(norm, norm[8] == 'g' ? ".parametrizations.weight.original0" : ".parametrizations.weight.original1");
    }
    decode_file(H3F_F32, found);
    CHECK(memcmp(found, wanted, sizeof wanted) == 0);
    make_file();
}

/* Removing what is behind the i-th moves the last one there, so from the last to the first. */
static void fold_file(void) {
    for (int32_t i = file.count - 1; i >= 0; i--) {
        t_tensor *v = &file.tensors[i];
        char *norm = strstr(v->name, ".weight_v");
        if (!norm)
            continue;
        char gain[96];
        snprintf(gain, sizeof gain, "%.*s.weight_g", (int)(norm - v->name), v->name);
        const t_tensor *g = t_find(&file, gain);
        float *w = malloc((size_t)t_count(v) * sizeof *w);
        for (int64_t j = 0; j < t_count(v); j++)
            w[j] = (float)folded(v, g, j / (v->shape[1] * v->shape[2]), 0, j % (v->shape[1] * v->shape[2]));
        free(v->values);
        v->values = w;
        strcpy(norm, ".weight");
        t_drop(&file, gain);
    }
}

static void test_folded_weights_give_the_same_sound(void) {
    float wanted[2 * WAVE], found[2 * WAVE];
    decode_file(H3F_F32, wanted);
    fold_file();
    decode_file(H3F_F32, found);
    CHECK(h_difference(found, wanted, 2 * WAVE) < 1e-5);
    make_file();
}

static void test_half_precision_weights_are_the_numbers_they_round_to(void) {
    float half[2 * WAVE], full[2 * WAVE];
    for (int32_t dtype = H3F_F16; dtype <= H3F_BF16; dtype++) {
        make_file();
        t_round(&file, dtype);
        decode_file(dtype, half);
        decode_file(H3F_F32, full);
        CHECK(memcmp(half, full, sizeof full) == 0);
    }
    make_file();
}

static void test_results_do_not_depend_on_the_number_of_threads(void) {
    enum { LONG = 700 }; /* several tiles of an activation */
    static float latent[LATENT * LONG], waves[2][LONG * HOP];
    h_draw draw = {1};
    h_fill(&draw, latent, LATENT * LONG);
    for (int32_t i = 0; i < 2; i++) {
        h3f_context *on = h_context(H3F_ISA_BEST, 1 + 2 * i);
        opened o = open_on(on, H3F_F32);
        CHECK_OK(on, h3f_audio_vae_decode(o.vae, latent, 1, LONG, waves[i]));
        close_all(&o);
        h3f_context_free(on);
    }
    CHECK(memcmp(waves[0], waves[1], sizeof waves[0]) == 0);
}

static void test_sound_is_clamped(void) {
    float wave[2 * WAVE];
    t_find(&file, "decoder.conv_post.weight_g")->values[0] = 1e4F;
    decode_file(H3F_F32, wave);
    make_file();
    int ends = 0;
    for (int i = 0; i < 2 * WAVE; i++) {
        CHECK(wave[i] >= -1 && wave[i] <= 1);
        ends += fabsf(wave[i]) == 1;
    }
    CHECK(ends > WAVE);
}

static void test_what_is_not_finite_is_found_at_its_stage(void) {
    float latent[2 * LATENT * LATENTS], wave[2 * WAVE];
    draw_latent(latent);
    latent[7] = NAN;
    opened o = open_on(ctx, H3F_F32);
    CHECK_INT(h3f_audio_vae_decode(o.vae, latent, 2, LATENTS, wave), H3F_ENUMERIC);
    CHECK_TEXT(h3f_error(ctx), "audio VAE: NaN or infinity after stage 0");
    close_all(&o);
}

/* ---- what is refused ---- */

static void check_refused(const h3f_audio_vae_config *config, int expected, const char *sentence) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_AUDIO_VAE, "bad.safetensors");
    const int64_t before = h3f_memory_now(ctx);
    h3f_audio_vae *vae = NULL;
    CHECK_INT(h3f_audio_vae_open(ctx, checkpoint, config, &vae), expected);
    CHECK_HAS(h3f_error(ctx), sentence);
    CHECK(!vae);
    CHECK_INT(h3f_memory_now(ctx), before);
    h3f_checkpoint_close(checkpoint);
    make_file();
}

static void reshape(const char *name, int32_t axis, int64_t size) {
    t_tensor *tensor = t_find(&file, name);
    tensor->shape[axis] = size;
    tensor->values = realloc(tensor->values, (size_t)t_count(tensor) * sizeof(float));
    for (int64_t i = 0; i < t_count(tensor); i++)
        tensor->values[i] = 1;
}

static void test_wrong_shapes_are_refused_by_name(void) {
    static const struct {
        const char *tensor;
        int32_t axis;
        int64_t size;
        const char *sentence;
    } table[] = {
        {"dec_in_proj.weight", 1, 4, "'dec_in_proj.weight' has shape [5, 4, 1], expected [any, 2, 1]"},
        {"decoder.conv_pre.weight_v", 1, 6, "'decoder.conv_pre.weight_v' has shape [4, 6, 7], expected [any, 5, any]"},
        {"decoder.conv_pre.weight_v", 2, 6, "'decoder.conv_pre.weight_v' has a kernel of 6, expected an odd one"},
        {"decoder.conv_pre.weight_g", 0, 5, "decoder.conv_pre.weight_g"},
        {"decoder.ups.0.0.weight_v", 0, 5, "'decoder.ups.0.0.weight_v' has shape [5, 3, 7], expected [4, any, any]"},
        {"decoder.ups.0.0.weight_v", 2, 8, "a kernel of 8, expected the rate 3 and an even number"},
        {"decoder.ups.1.0.weight_v", 2, 1, "a kernel of 1, expected the rate 2 and an even number"},
        {"decoder.ups.0.0.bias", 0, 4, "decoder.ups.0.0.bias"},
        {"decoder.resblocks.3.convs2.1.weight_v", 2, 3,
         "'decoder.resblocks.3.convs2.1.weight_v' has shape [2, 2, 3], expected [2, 2, 5]"},
        {"decoder.resblocks.0.activations.1.act.beta", 0, 2, "decoder.resblocks.0.activations.1.act.beta"},
        {"decoder.resblocks.0.activations.1.upsample.filter", 2, 8, "activations.1.upsample.filter"},
        {"decoder.conv_post.weight_v", 0, 2, "'decoder.conv_post.weight_v' has shape [2, 2, 7], expected [1, 2, any]"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        reshape(table[i].tensor, table[i].axis, table[i].size);
        check_refused(&small, H3F_ETENSOR, table[i].sentence);
    }
}

static void test_every_missing_tensor_is_named(void) {
    const int32_t count = file.count;
    for (int32_t i = 0; i < count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s", file.tensors[i].name);
        t_drop(&file, name);
        check_refused(&small, H3F_ETENSOR, name);
    }
}

static void test_more_stages_than_the_config_says_are_refused(void) {
    h3f_audio_vae_config config = small;
    config.stages = 1;
    check_refused(&config, H3F_ETENSOR, "the config has 1 stages of 2 blocks, but the file also holds");
    config = small;
    config.kernels = 1;
    check_refused(&config, H3F_ETENSOR, "the config has 2 stages of 1 blocks, but the file also holds");
}

static void test_impossible_configs_are_refused(void) {
    h3f_audio_vae_config config = small;
    config.stages = 9;
    check_refused(&config, H3F_EINVAL, "9 rates, expected 1 to 8");
    config = small;
    config.rates[1] = 0;
    check_refused(&config, H3F_EINVAL, "rates 1 is 0, expected 1 to 1024");
    config = small;
    config.latent_channels = 0;
    check_refused(&config, H3F_EINVAL, "latent_channels is 0, expected 1 or more");
    config = small;
    config.dilations = 0;
    check_refused(&config, H3F_EINVAL, "0 dilation_sizes, expected 1 to 4");
}

static void test_impossible_calls_are_refused(void) {
    float latent[LATENT], wave[HOP];
    opened o = open_on(ctx, H3F_F32);
    CHECK_INT(h3f_audio_vae_decode(o.vae, latent, 1, 0, wave), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "1 channels of 0 latents cannot be decoded");
    CHECK_INT(h3f_audio_vae_decode(o.vae, latent, 0, 1, wave), H3F_EINVAL);
    CHECK_INT(h3f_audio_vae_activation(o.vae, "decoder.act", latent, 1, wave), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "there is no activation 'decoder.act'");
    CHECK_INT(h3f_audio_vae_activation(o.vae, "decoder.activation_post", latent, 0, wave), H3F_EINVAL);
    close_all(&o);
}

/* ---- faults ---- */

static void test_every_failing_allocation_leaves_nothing_behind(void) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_AUDIO_VAE, "vae.safetensors");
    float latent[2 * LATENT * LATENTS], wave[2 * WAVE], wanted[2 * WAVE];
    draw_latent(latent);
    decode_file(H3F_F32, wanted);
    const int64_t before = h3f_memory_now(ctx);
    int code = H3F_ENOMEM, n = 0;
    for (; code != H3F_OK; n++) {
        h3f_audio_vae *vae = NULL;
        atomic_store(&ctx->fail_allocation, n);
        code = h3f_audio_vae_open(ctx, checkpoint, &small, &vae);
        if (code == H3F_OK)
            code = h3f_audio_vae_decode(vae, latent, 2, LATENTS, wave);
        atomic_store(&ctx->fail_allocation, -1);
        CHECK(code == H3F_OK || code == H3F_ENOMEM);
        if (vae) {
            CHECK_OK(ctx, h3f_audio_vae_decode(vae, latent, 2, LATENTS, wave));
            CHECK(memcmp(wave, wanted, sizeof wanted) == 0);
        }
        h3f_audio_vae_close(vae);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    CHECK(n > 10);
    h3f_checkpoint_close(checkpoint);
}

typedef struct stop {
    int64_t after, calls, done, total;
    bool broken;
} stop;

static void on_progress(void *user, const char *stage, int64_t done, int64_t total) {
    stop *s = user;
    s->broken |= strcmp(stage, "audio_vae") != 0 || done != s->done + 1 || (s->calls && total != s->total);
    s->done = done;
    s->total = total;
    if (s->calls++ == s->after)
        h3f_cancel(ctx);
}

static void test_cancelled_anywhere_and_run_again_gives_the_same_bits(void) {
    float latent[2 * LATENT * LATENTS], wave[2 * WAVE], wanted[2 * WAVE];
    draw_latent(latent);
    opened o = open_on(ctx, H3F_F32);
    stop whole = {.after = -1};
    h3f_on_progress(ctx, on_progress, &whole);
    CHECK_OK(ctx, h3f_audio_vae_decode(o.vae, latent, 2, LATENTS, wanted));
    CHECK(!whole.broken);
    CHECK_INT(whole.done, whole.total);
    const int64_t before = h3f_memory_now(ctx);
    for (int64_t after = 0; after < whole.total - 1; after++) {
        stop s = {.after = after};
        h3f_on_progress(ctx, on_progress, &s);
        CHECK_INT(h3f_audio_vae_decode(o.vae, latent, 2, LATENTS, wave), H3F_ECANCELLED);
        CHECK_INT(s.calls, after + 1);
        h3f_on_progress(ctx, NULL, NULL);
        h3f_cancel_clear(ctx);
        CHECK_INT(h3f_memory_now(ctx), before);
        CHECK_OK(ctx, h3f_audio_vae_decode(o.vae, latent, 2, LATENTS, wave));
        CHECK(memcmp(wave, wanted, sizeof wanted) == 0);
    }
    close_all(&o);
}

static void test_opening_can_be_cancelled(void) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_AUDIO_VAE, "vae.safetensors");
    const int64_t before = h3f_memory_now(ctx);
    h3f_audio_vae *vae = NULL;
    h3f_cancel(ctx);
    CHECK_INT(h3f_audio_vae_open(ctx, checkpoint, &small, &vae), H3F_ECANCELLED);
    h3f_cancel_clear(ctx);
    CHECK(!vae);
    CHECK_INT(h3f_memory_now(ctx), before);
    h3f_checkpoint_close(checkpoint);
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 2);
    RUN(test_plain_convolutions_are_what_the_definition_says);
    RUN(test_transposed_convolutions_are_what_the_definition_says);
    RUN(test_a_signal_of_several_parts_has_no_seams);
    RUN(test_the_activation_is_what_the_specification_says);
    RUN(test_the_squared_sine_is_near_the_true_one);
    RUN(test_the_squared_sine_of_what_is_not_finite_is_nan);
    make_file();
    RUN(test_stereo_channels_are_decoded_each_by_itself);
    RUN(test_both_spellings_of_the_weight_norm_are_the_same);
    RUN(test_folded_weights_give_the_same_sound);
    RUN(test_half_precision_weights_are_the_numbers_they_round_to);
    RUN(test_results_do_not_depend_on_the_number_of_threads);
    RUN(test_sound_is_clamped);
    RUN(test_what_is_not_finite_is_found_at_its_stage);
    RUN(test_wrong_shapes_are_refused_by_name);
    RUN(test_every_missing_tensor_is_named);
    RUN(test_more_stages_than_the_config_says_are_refused);
    RUN(test_impossible_configs_are_refused);
    RUN(test_impossible_calls_are_refused);
    RUN(test_every_failing_allocation_leaves_nothing_behind);
    RUN(test_cancelled_anywhere_and_run_again_gives_the_same_bits);
    RUN(test_opening_can_be_cancelled);
    t_clear(&file);
    h3f_context_free(ctx);
    return H_END();
}
