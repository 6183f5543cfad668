#include "harness.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor_file.h"
#include "video_conv.h"

/* An encoder small enough to run hundreds of times: 4 pixels and 2 frames a latent, 5 frames a clip
 * and so 3 latents, of which the last of all is dropped. */
enum { LATENT = 2, LEVELS = 3, FACTOR = 4, SIDE = 16, FRAMES = 8, LATENTS = 5 };

static const h3f_video_encoder_config small = {.latent_channels = LATENT,
                                               .levels = LEVELS,
                                               .channels = {4, 4, 8},
                                               .spatial = {2, 2, 1},
                                               .temporal = {1, 2, 1},
                                               .resnets = 1,
                                               .groups = 2,
                                               .norm_eps = 1e-6F,
                                               .clip_length = 5,
                                               .token_drop = 1};

static h3f_context *ctx;
static t_file file;

static void add_conv(const char *name, int64_t out, int64_t in, int64_t kernel) {
    char full[128];
    snprintf(full, sizeof full, "%s.weight", name);
    t_add(&file, 0.3F, 0, full, 5, (const int64_t[]){out, in, kernel, kernel, kernel});
    snprintf(full, sizeof full, "%s.bias", name);
    t_add(&file, 0.1F, 0, full, 1, &out);
}

static void add_norm(const char *name, int64_t channels) {
    char full[128];
    snprintf(full, sizeof full, "%s.weight", name);
    t_add(&file, 0.2F, 1, full, 1, &channels);
    snprintf(full, sizeof full, "%s.bias", name);
    t_add(&file, 0.1F, 0, full, 1, &channels);
}

static void add_level(int32_t i) {
    const int32_t in = small.channels[i > 0 ? i - 1 : 0], out = small.channels[i];
    char name[96];
#define PART(leaf) (snprintf(name, sizeof name, "encoder.down.%d." leaf, i), name)
    add_norm(PART("block.0.norm1"), in);
    add_conv(PART("block.0.conv1"), out, in, 3);
    add_norm(PART("block.0.norm2"), out);
    add_conv(PART("block.0.conv2"), out, out, 3);
    if (in != out)
        add_conv(PART("block.0.nin_shortcut"), out, in, 1);
    if (small.spatial[i] > 1)
        add_conv(PART("downsample.conv"), out, out, 3);
#undef PART
}

static void make_file(void) {
    t_clear(&file);
    file.draw = (h_draw){5};
    add_conv("encoder.conv_in", 4, 3, 3);
    for (int32_t i = 0; i < LEVELS; i++)
        add_level(i);
    add_norm("encoder.norm_out", 8);
    add_conv("encoder.conv_out", 2 * LATENT, 8, 3);
    add_conv("quant_conv", 2 * LATENT, 2 * LATENT, 1);
}

typedef struct opened {
    h3f_checkpoint *checkpoint;
    h3f_video_encoder *encoder;
} opened;

static opened open_with(h3f_context *on, const h3f_video_encoder_config *config, int32_t dtype) {
    opened o = {.checkpoint = t_open(on, &file, dtype, H3F_VIDEO_VAE, "vae.safetensors")};
    CHECK_OK(on, h3f_video_encoder_open(on, o.checkpoint, config, &o.encoder));
    return o;
}

static void close_all(opened *o) {
    h3f_video_encoder_close(o->encoder);
    h3f_checkpoint_close(o->checkpoint);
}

static uint8_t pixels[FRAMES * SIDE * SIDE * 3];

static h3f_rgb rgb_of(int32_t frames) {
    h_draw draw = {9};
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)h_bits(&draw);
    return (h3f_rgb){.data = pixels, .frames = frames, .height = SIDE, .width = SIDE};
}

typedef struct posterior {
    float mean[LATENT * LATENTS * 16], logvar[LATENT * LATENTS * 16];
} posterior;

static posterior encode(h3f_context *on, h3f_video_encoder *encoder, int32_t frames) {
    posterior p = {0};
    const h3f_rgb rgb = rgb_of(frames);
    CHECK_OK(on, h3f_video_encoder_encode(encoder, &rgb, p.mean, p.logvar));
    return p;
}

/* ---- the parts ---- */

static int64_t mirrored(int64_t i, int64_t count) {
    return i < 0 ? -i : i >= count ? 2 * count - 2 - i : i;
}

/* As it is written in the specification: padded in space, zeros in front in time. */
static double convolved(const h3f_conv3d *conv, h3f_volume v, const float *weight, const float *x,
                        int64_t out, const int64_t at[3]) {
    const int64_t margin = conv->corner ? 0 : 1;
    double sum = (double)conv->bias[out];
    for (int64_t in = 0; in < conv->in; in++)
        for (int64_t tap = 0; tap < 27; tap++) {
            const int64_t t = at[0] * conv->time_stride + tap / 9 - 2;
            const int64_t row = mirrored(at[1] * conv->stride + tap / 3 % 3 - margin, v.height);
            const int64_t col = mirrored(at[2] * conv->stride + tap % 3 - margin, v.width);
            if (t >= 0)
                sum += (double)weight[(out * conv->in + in) * 27 + tap] *
                       (double)x[((t * v.height + row) * v.width + col) * conv->in + in];
        }
    return sum;
}

static void check_conv(const h3f_checkpoint *checkpoint, h3f_conv3d conv, h3f_volume volume,
                       h_draw *draw) {
    float bias[5];
    conv.bias = bias;
    CHECK_OK(ctx, h3f_conv3d_find(checkpoint, &conv, "encoder.conv_in"));
    h3f_arena arena = {0};
    h3f_conv3d_layout(&arena, &conv, volume.frames);
    CHECK_OK(ctx, h3f_arena_reserve(ctx, &arena, "a convolution"));
    h3f_conv3d_layout(&arena, &conv, volume.frames);
    CHECK_OK(ctx, h3f_conv3d_arrange(ctx, &conv));
    const h3f_volume to = h3f_conv3d_result(&conv, volume);
    const int64_t values = h3f_volume_pixels(volume) * conv.in;
    float *x = malloc((size_t)values * sizeof(float));
    float *y = malloc((size_t)(h3f_volume_pixels(to) * conv.out) * sizeof(float));
    void *scratch = aligned_alloc(64, (h3f_conv3d_scratch(&conv, volume) + 63) / 64 * 64);
    h_fill(draw, x, values);
    CHECK_OK(ctx, h3f_conv3d_run(ctx, &conv, volume, x, y, scratch));
    const float *weight = t_find(&file, "encoder.conv_in.weight")->values;
    for (int64_t i = 0; i < h3f_volume_pixels(to) * conv.out; i++) {
        const int64_t pixel = i / conv.out, area = (int64_t)to.height * to.width;
        const int64_t at[3] = {pixel / area, pixel % area / to.width, pixel % to.width};
        const float want = (float)convolved(&conv, volume, weight, x, i % conv.out, at);
        CHECK(h_difference(&y[i], &want, 1) < 1e-5);
    }
    free(x);
    free(y);
    free(scratch);
    h3f_arena_release(ctx, &arena);
}

static void test_convolutions_are_the_formula(void) {
    t_clear(&file);
    add_conv("encoder.conv_in", 5, 3, 3);
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "conv.safetensors");
    h_draw draw = {3};
    for (int i = 0; i < 30; i++) {
        const bool corner = i % 3 != 0;
        const h3f_conv3d conv = {.in = 3,
                                 .out = 5,
                                 .corner = corner,
                                 .stride = corner ? 2 : 1,
                                 .time_stride = i % 3 == 2 ? 2 : 1};
        const int32_t unit = corner ? 2 : 1;
        const h3f_volume volume = {.frames = (int32_t)h_between(&draw, 1, 6),
                                   .height = unit * (int32_t)h_between(&draw, 2 / unit, 12),
                                   .width = unit * (int32_t)h_between(&draw, 2 / unit, 12)};
        check_conv(checkpoint, conv, volume, &draw);
    }
    h3f_checkpoint_close(checkpoint);
    make_file();
}

/* More pixels of a frame than one block of sums holds. */
static void test_the_group_norm_is_the_formula_frame_by_frame(void) {
    enum { CHANNELS = 6, GROUPS = 2, WIDTH = CHANNELS / GROUPS };
    const h3f_volume v = {.frames = 2, .height = 37, .width = 31};
    const int64_t area = 37 * 31, count = 2 * area * CHANNELS;
    float weight[CHANNELS], bias[CHANNELS];
    h_draw draw = {11};
    h_fill(&draw, weight, CHANNELS);
    h_fill(&draw, bias, CHANNELS);
    const h3f_group_norm norm = {
        .channels = CHANNELS, .groups = GROUPS, .eps = 1e-6F, .weight = weight, .bias = bias};
    float *x = malloc((size_t)count * sizeof(float)), *y = malloc((size_t)count * sizeof(float));
    void *scratch = aligned_alloc(64, (h3f_group_norm_scratch(&norm, v) + 63) / 64 * 64);
    h_fill(&draw, x, count);
    for (int64_t i = 0; i < count; i++)
        x[i] += 3;
    CHECK_OK(ctx, h3f_group_norm_run(ctx, &norm, v, true, x, y, scratch));
    for (int64_t frame = 0; frame < 2; frame++)
        for (int64_t group = 0; group < GROUPS; group++) {
            double mean = 0, variance = 0;
            const float *from = x + frame * area * CHANNELS + group * WIDTH;
            for (int64_t i = 0; i < area * WIDTH; i++)
                mean += (double)from[i / WIDTH * CHANNELS + i % WIDTH] / (double)(area * WIDTH);
            for (int64_t i = 0; i < area * WIDTH; i++)
                variance += pow((double)from[i / WIDTH * CHANNELS + i % WIDTH] - mean, 2) /
                            (double)(area * WIDTH);
            for (int64_t i = 0; i < area * WIDTH; i++) {
                const int64_t place = i / WIDTH * CHANNELS + i % WIDTH, c = group * WIDTH + i % WIDTH;
                const double normed = ((double)from[place] - mean) / sqrt(variance + 1e-6) *
                                          (double)weight[c] +
                                      (double)bias[c];
                const float want = (float)(normed / (1 + exp(-normed)));
                CHECK(h_difference(&y[frame * area * CHANNELS + group * WIDTH + place], &want, 1) <
                      1e-5);
            }
        }
    free(x);
    free(y);
    free(scratch);
}

/* ---- the whole ---- */

static void test_clips_are_encoded_each_by_itself(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    CHECK_INT(h3f_video_encoder_latents(o.encoder, 1), 1);
    CHECK_INT(h3f_video_encoder_latents(o.encoder, 5), 2);
    CHECK_INT(h3f_video_encoder_latents(o.encoder, FRAMES), LATENTS);
    const posterior whole = encode(ctx, o.encoder, FRAMES), first = encode(ctx, o.encoder, 5);
    const posterior still = encode(ctx, o.encoder, 1);
    for (int c = 0; c < LATENT; c++) {
        CHECK(memcmp(whole.mean + c * LATENTS * 16, first.mean + c * 2 * 16, 2 * 16 * sizeof(float)) ==
              0);
        /* Causal: the first latent of a clip is that of its first frame alone. */
        CHECK(h_difference(whole.mean + c * LATENTS * 16, still.mean + c * 16, 16) < 1e-5);
    }
    close_all(&o);
}

static void test_tiles_agree_with_the_whole_where_nothing_is_cut(void) {
    h3f_video_encoder_config tiled = small;
    tiled.tile = SIDE;
    tiled.tile_overlap = 4;
    opened a = open_with(ctx, &small, H3F_F32), b = open_with(ctx, &tiled, H3F_F32);
    const posterior whole = encode(ctx, a.encoder, 3), one = encode(ctx, b.encoder, 3);
    close_all(&b);
    tiled.tile = 12;
    b = open_with(ctx, &tiled, H3F_F32);
    const posterior cut = encode(ctx, b.encoder, 3);
    CHECK(memcmp(&whole, &one, sizeof whole) == 0);
    CHECK(memcmp(&whole, &cut, sizeof whole) != 0);
    close_all(&a);
    close_all(&b);
}

static void test_half_precision_weights_are_the_numbers_they_round_to(void) {
    for (int32_t dtype = H3F_F16; dtype <= H3F_BF16; dtype++) {
        make_file();
        t_round(&file, dtype);
        opened o = open_with(ctx, &small, dtype);
        const posterior half = encode(ctx, o.encoder, 6);
        close_all(&o);
        o = open_with(ctx, &small, H3F_F32);
        const posterior full = encode(ctx, o.encoder, 6);
        CHECK(memcmp(&half, &full, sizeof half) == 0);
        close_all(&o);
    }
    make_file();
}

static void test_results_do_not_depend_on_threads_and_little_on_kernels(void) {
    posterior results[5];
    int count = 0;
    for (int32_t isa = H3F_ISA_BEST; isa <= H3F_ISA_NEON; isa++)
        for (int32_t threads = 1; threads <= (isa == H3F_ISA_BEST ? 3 : 1); threads += 2) {
            h3f_context *on = h_context(isa, threads);
            if (!on)
                continue;
            opened o = open_with(on, &small, H3F_F32);
            results[isa == H3F_ISA_BEST ? threads / 2 : 2] = encode(on, o.encoder, 6);
            if (count++ > 1)
                CHECK(h_difference(results[2].mean, results[0].mean, LATENT * LATENTS * 16) < 1e-4);
            close_all(&o);
            h3f_context_free(on);
        }
    CHECK(count > 2);
    CHECK(memcmp(&results[0], &results[1], sizeof *results) == 0);
}

/* ---- what is refused ---- */

static void check_refused(const char *sentence) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "bad.safetensors");
    h3f_video_encoder *encoder = NULL;
    const int64_t before = h3f_memory_now(ctx);
    CHECK_INT(h3f_video_encoder_open(ctx, checkpoint, &small, &encoder), H3F_ETENSOR);
    CHECK_HAS(h3f_error(ctx), sentence);
    CHECK(!encoder);
    CHECK_INT(h3f_memory_now(ctx), before);
    h3f_checkpoint_close(checkpoint);
    make_file();
}

static void test_every_missing_tensor_is_named(void) {
    const int32_t count = file.count;
    for (int32_t i = 0; i < count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s", file.tensors[i].name);
        t_drop(&file, name);
        check_refused(name);
    }
}

static void test_every_tensor_of_a_wrong_shape_is_named(void) {
    for (int32_t i = 0; i < file.count; i++) {
        t_tensor *tensor = &file.tensors[i];
        char name[96];
        snprintf(name, sizeof name, "%s", tensor->name);
        tensor->shape[0]++;
        tensor->values = realloc(tensor->values, (size_t)t_count(tensor) * sizeof(float));
        memset(tensor->values, 0, (size_t)t_count(tensor) * sizeof(float));
        check_refused(name);
    }
}

static void test_more_levels_than_the_config_says_are_refused(void) {
    add_norm("encoder.down.3.block.0.norm1", 8);
    check_refused("3 encoder levels of 1 blocks, but the file also holds 'encoder.down.3.block.0");
    add_norm("encoder.down.0.block.1.norm1", 4);
    check_refused("3 encoder levels of 1 blocks, but the file also holds 'encoder.down.0.block.1");
}

static void test_impossible_configs_are_refused(void) {
    static const struct {
        size_t field;
        int32_t value;
        const char *sentence;
    } table[] = {
        {offsetof(h3f_video_encoder_config, levels), 9, "encoder levels is 9, expected 1 to 8"},
        {offsetof(h3f_video_encoder_config, groups), 3, "4 channels, expected a multiple of the 3"},
        {offsetof(h3f_video_encoder_config, spatial), 3, "divides the sides by 3 and the frames by 1"},
        {offsetof(h3f_video_encoder_config, temporal), 0, "divides the sides by 2 and the frames by 0"},
        {offsetof(h3f_video_encoder_config, tile), 6, "tile 6 and tile_overlap 0, expected multiples"},
        {offsetof(h3f_video_encoder_config, token_drop), 3, "token_drop is 3, expected less than the 3"},
    };
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "vae.safetensors");
    const int64_t before = h3f_memory_now(ctx);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        h3f_video_encoder_config config = small;
        h3f_video_encoder *encoder = NULL;
        memcpy((char *)&config + table[i].field, &table[i].value, sizeof table[i].value);
        CHECK_INT(h3f_video_encoder_open(ctx, checkpoint, &config, &encoder), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), table[i].sentence);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    h3f_checkpoint_close(checkpoint);
}

static void test_impossible_pictures_are_refused(void) {
    static const struct {
        int32_t frames, height, width;
        const char *sentence;
    } table[] = {
        {0, 16, 16, "0 frames of 16 x 16 pixels cannot be encoded"},
        {1, 14, 16, "1 frames of 16 x 14 pixels cannot be encoded, the sides must be multiples of 4"},
        {1, 16, 4, "a tile of 4 x 16 pixels cannot be encoded, the sides must be multiples of 4 from 8"},
        {1, 1 << 30, 1 << 30, "pixels are too many"},
    };
    opened o = open_with(ctx, &small, H3F_F32);
    posterior p;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const h3f_rgb rgb = {pixels, table[i].frames, table[i].height, table[i].width};
        CHECK_INT(h3f_video_encoder_encode(o.encoder, &rgb, p.mean, p.logvar), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), table[i].sentence);
    }
    close_all(&o);
}

static void test_what_is_not_finite_is_found_at_its_level(void) {
    t_find(&file, "encoder.down.1.block.0.conv2.bias")->values[0] = NAN;
    opened o = open_with(ctx, &small, H3F_F32);
    const h3f_rgb rgb = rgb_of(1);
    posterior p;
    CHECK_INT(h3f_video_encoder_encode(o.encoder, &rgb, p.mean, p.logvar), H3F_ENUMERIC);
    CHECK_TEXT(h3f_error(ctx), "video VAE: NaN or infinity after encoder level 1");
    close_all(&o);
    make_file();
}

/* ---- faults ---- */

static void test_every_failing_allocation_leaves_nothing_behind(void) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "vae.safetensors");
    const int64_t before = h3f_memory_now(ctx);
    const h3f_rgb rgb = rgb_of(6);
    posterior p;
    int code = H3F_ENOMEM, n = 0;
    for (; code != H3F_OK; n++) {
        h3f_video_encoder *encoder = NULL;
        atomic_store(&ctx->fail_allocation, n);
        code = h3f_video_encoder_open(ctx, checkpoint, &small, &encoder);
        if (code == H3F_OK)
            code = h3f_video_encoder_encode(encoder, &rgb, p.mean, p.logvar);
        atomic_store(&ctx->fail_allocation, -1);
        CHECK(code == H3F_OK || code == H3F_ENOMEM);
        h3f_video_encoder_close(encoder);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    CHECK(n > 2);
    h3f_checkpoint_close(checkpoint);
}

static void cancel_at_two(void *user, const char *stage, int64_t done, int64_t total) {
    (void)user;
    CHECK_TEXT(stage, "video_encoder");
    CHECK_INT(total, 2 * LEVELS); /* two clips of one tile */
    if (done == 2)
        h3f_cancel(ctx);
}

static void test_a_cancelled_call_leaves_the_encoder_usable(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    const posterior before = encode(ctx, o.encoder, 6);
    const h3f_rgb rgb = rgb_of(6);
    posterior p;
    h3f_on_progress(ctx, cancel_at_two, NULL);
    CHECK_INT(h3f_video_encoder_encode(o.encoder, &rgb, p.mean, p.logvar), H3F_ECANCELLED);
    h3f_on_progress(ctx, NULL, NULL);
    h3f_cancel_clear(ctx);
    const posterior after = encode(ctx, o.encoder, 6);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    close_all(&o);
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 2);
    make_file();
    RUN(test_convolutions_are_the_formula);
    RUN(test_the_group_norm_is_the_formula_frame_by_frame);
    RUN(test_clips_are_encoded_each_by_itself);
    RUN(test_tiles_agree_with_the_whole_where_nothing_is_cut);
    RUN(test_half_precision_weights_are_the_numbers_they_round_to);
    RUN(test_results_do_not_depend_on_threads_and_little_on_kernels);
    RUN(test_every_missing_tensor_is_named);
    RUN(test_every_tensor_of_a_wrong_shape_is_named);
    RUN(test_more_levels_than_the_config_says_are_refused);
    RUN(test_impossible_configs_are_refused);
    RUN(test_impossible_pictures_are_refused);
    RUN(test_what_is_not_finite_is_found_at_its_level);
    RUN(test_every_failing_allocation_leaves_nothing_behind);
    RUN(test_a_cancelled_call_leaves_the_encoder_usable);
    t_clear(&file);
    h3f_context_free(ctx);
    return H_END();
}
