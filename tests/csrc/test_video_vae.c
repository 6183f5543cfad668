#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor_file.h"

/* A decoder small enough to run hundreds of times; tokens of 2 x 2 pixels and 4 frames. */
enum { LATENT = 3, HEADS = 2, HEAD_DIM = 8, HIDDEN = 16, FFN = 70, REGISTERS = 2, LAYERS = 2, PIXELS = 48 };

static const h3f_video_vae_config small = {.latent_channels = LATENT,
                                           .layers = LAYERS,
                                           .heads = HEADS,
                                           .head_dim = HEAD_DIM,
                                           .ffn = FFN,
                                           .registers = REGISTERS,
                                           .spatial_factor = 2,
                                           .temporal_factor = 4,
                                           .clip_length = 17,
                                           .token_drop = 3,
                                           .rope_dim = 6,
                                           .rope_theta = 100.0,
                                           .norm_eps = 1e-5F,
                                           .tile = 6,
                                           .tile_overlap = 2};

static h3f_context *ctx;
static t_file file;

static void add_module(const char *name, int64_t rows, int64_t cols) {
    char full[128];
    snprintf(full, sizeof full, "%s.weight", name);
    t_add(&file, 0.4F, 0, full, 2, (const int64_t[]){rows, cols});
    snprintf(full, sizeof full, "%s.bias", name);
    t_add(&file, 0.1F, 0, full, 1, &rows);
}

static void add_block(int32_t block) {
    static const char *const vectors[] = {"norm1.weight", "norm2.weight", "scale1", "scale2"};
    static const char *const names[] = {"attn.to_qkv", "attn.to_out", "ff.w1", "ff.w2"};
    static const int64_t shapes[][2] = {{3 * HIDDEN, HIDDEN}, {HIDDEN, HIDDEN}, {2 * FFN, HIDDEN}, {HIDDEN, FFN}};
    char full[96];
    for (size_t i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "decoder.transformer_blocks.%d.%s", block, vectors[i]);
        t_add(&file, 0.2F, 1, full, 1, (const int64_t[]){HIDDEN});
    }
    for (size_t i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "decoder.transformer_blocks.%d.%s", block, names[i]);
        add_module(full, shapes[i][0], shapes[i][1]);
    }
}

static void make_file(void) {
    t_clear(&file);
    file.draw = (h_draw){5};
    t_add(&file, 0.5F, 0, "post_quant_conv.weight", 5, (const int64_t[]){LATENT, LATENT, 1, 1, 1});
    t_add(&file, 0.1F, 0, "post_quant_conv.bias", 1, (const int64_t[]){LATENT});
    add_module("decoder.x_embedder", HIDDEN, LATENT);
    t_add(&file, 1, 0, "decoder.register_tokens", 3, (const int64_t[]){1, REGISTERS, HIDDEN});
    for (int32_t i = 0; i < LAYERS; i++)
        add_block(i);
    t_add(&file, 0.2F, 1, "decoder.norm_out.weight", 1, (const int64_t[]){HIDDEN});
    t_add(&file, 0.1F, 0, "decoder.norm_out.bias", 1, (const int64_t[]){HIDDEN});
    add_module("decoder.proj_out", PIXELS, HIDDEN);
}

/* The vae, with what must be closed after it. */
typedef struct opened {
    h3f_context *ctx;
    h3f_checkpoint *checkpoint;
    h3f_video_vae *vae;
} opened;

static opened open_with(h3f_context *on, const h3f_video_vae_config *config, int32_t dtype) {
    opened o = {.ctx = on, .checkpoint = t_open(on, &file, dtype, H3F_VIDEO_VAE, "vae.safetensors")};
    CHECK_OK(on, h3f_video_vae_open(on, o.checkpoint, config, &o.vae));
    return o;
}

static void close_all(opened *o) {
    h3f_video_vae_close(o->vae);
    h3f_checkpoint_close(o->checkpoint);
}

enum { HEIGHT = 5, WIDTH = 4, H = 2 * HEIGHT, W = 2 * WIDTH }; /* 2 x 2 tiles of 6 pixels */

typedef struct video {
    int32_t frames;
    float *values; /* [frames, 3, H, W]: clip after clip */
} video;

static float *latent_of(int32_t frames, uint64_t seed) {
    h_draw draw = {seed};
    float *data = malloc((size_t)(LATENT * frames * HEIGHT * WIDTH) * sizeof(float));
    h_fill(&draw, data, (int64_t)LATENT * frames * HEIGHT * WIDTH);
    return data;
}

/* [3, frames, H, W] -> frame by frame, so that clips can be joined. */
static void append_frames(video *v, const float *pixels, int32_t frames) {
    for (int32_t f = 0; f < frames; f++)
        for (int32_t c = 0; c < 3; c++)
            memcpy(v->values + ((v->frames + f) * 3 + c) * H * W, pixels + (c * frames + f) * H * W,
                   H * W * sizeof(float));
    v->frames += frames;
}

/* Stops at the first failure and gives its code. */
static int decode(h3f_video_vae *vae, const float *data, int32_t latent_frames, video *out) {
    const h3f_latent latent = {.data = data, .frames = latent_frames, .height = HEIGHT, .width = WIDTH};
    int32_t clips = 0, frames = 0, most = 0;
    *out = (video){0};
    int code = h3f_video_vae_plan(vae, latent_frames, &clips, &frames, &most);
    if (code != H3F_OK)
        return code;
    float *carry = malloc((size_t)(3 * h3f_video_vae_overlap(vae) * H * W) * sizeof(float));
    float *pixels = malloc((size_t)(3 * most * H * W) * sizeof(float));
    out->values = malloc((size_t)(3 * frames * H * W) * sizeof(float));
    for (int32_t clip = 0; clip < clips && code == H3F_OK; clip++) {
        int32_t got = 0;
        code = h3f_video_vae_decode_clip(vae, &latent, clip, carry, pixels, &got);
        if (code == H3F_OK)
            append_frames(out, pixels, got);
    }
    free(pixels);
    free(carry);
    if (code == H3F_OK && out->frames != frames)
        code = 1; /* not what the plan said */
    return code;
}

static bool same(const video *a, const video *b) {
    return a->frames == b->frames &&
           memcmp(a->values, b->values, (size_t)(3 * a->frames * H * W) * sizeof(float)) == 0;
}

/* ---- what is decoded ---- */

/* Window by window with decode_raw, joined by the words of the specification. */
static void join_raw(h3f_video_vae *vae, const float *data, int32_t latents, video *out) {
    static float window[LATENT * 7 * HEIGHT * WIDTH], raw[3 * 28 * H * W], before[3 * 5 * H * W];
    out->frames = 0;
    out->values = malloc((size_t)(3 * 17 * latents * H * W) * sizeof(float));
    for (int32_t first = 0; first + 2 < latents; first += 5) {
        for (int32_t c = 0; c < LATENT; c++)
            for (int32_t t = 0; t < 7; t++)
                memcpy(window + (c * 7 + t) * HEIGHT * WIDTH, data + (c * latents + first + t) * HEIGHT * WIDTH,
                       HEIGHT * WIDTH * sizeof(float));
        const h3f_latent latent = {.data = window, .frames = 7, .height = HEIGHT, .width = WIDTH};
        CHECK_OK(ctx, h3f_video_vae_decode_raw(vae, &latent, raw));
        for (int32_t f = 3; f < 28; f = f == 19 ? 23 : f + 1)
            for (int32_t c = 0; c < 3; c++)
                for (int32_t i = 0; i < H * W; i++) {
                    float value = raw[(c * 28 + f) * H * W + i];
                    const float share = (float)(f - 3) / 5.0F;
                    if (first > 0 && f < 8)
                        value = before[(c * 5 + f - 3) * H * W + i] * (1 - share) + value * share;
                    if (f >= 23)
                        before[(c * 5 + f - 23) * H * W + i] = value;
                    if (f < 20 || first + 7 == latents)
                        out->values[((out->frames + f - (f < 20 ? 3 : 6)) * 3 + c) * H * W + i] = value;
                }
        out->frames += first + 7 == latents ? 22 : 17;
    }
}

static void test_clips_are_windows_joined_with_their_tails(void) {
    h3f_video_vae_config untiled = small;
    untiled.tile = 0;
    opened o = open_with(ctx, &untiled, H3F_F32);
    float *data = latent_of(17, 1);
    video found, wanted;
    CHECK_OK(ctx, decode(o.vae, data, 17, &found));
    join_raw(o.vae, data, 17, &wanted);
    CHECK_INT(found.frames, 56);
    CHECK_INT(wanted.frames, 56);
    CHECK(h_difference(found.values, wanted.values, (int64_t)3 * 56 * H * W) < 1e-6);
    free(found.values);
    free(wanted.values);
    free(data);
    close_all(&o);
}

static void test_a_ragged_tail_is_the_last_latent_repeated_and_cut(void) {
    enum { LONG = 12, AREA = HEIGHT * WIDTH };
    opened o = open_with(ctx, &small, H3F_F32);
    for (int32_t latents = 8; latents < LONG; latents++) {
        float *data = latent_of(latents, 2), *padded = latent_of(LONG, 3);
        for (int32_t c = 0; c < LATENT; c++)
            for (int32_t t = 0; t < LONG; t++) {
                const int32_t source = t < latents ? t : latents - 1;
                memcpy(padded + (c * LONG + t) * AREA, data + (c * latents + source) * AREA, AREA * sizeof(float));
            }
        video cut, whole;
        CHECK_OK(ctx, decode(o.vae, data, latents, &cut));
        CHECK_OK(ctx, decode(o.vae, padded, LONG, &whole));
        CHECK(cut.frames < whole.frames);
        whole.frames = cut.frames;
        CHECK(same(&cut, &whole));
        free(cut.values);
        free(whole.values);
        free(data);
        free(padded);
    }
    close_all(&o);
}

static void test_a_tile_as_large_as_the_picture_is_no_tiling(void) {
    h3f_video_vae_config untiled = small, large = small;
    untiled.tile = 0;
    large.tile = H;
    float *data = latent_of(7, 1);
    video a, b, tiled;
    opened o = open_with(ctx, &untiled, H3F_F32);
    CHECK_OK(ctx, decode(o.vae, data, 7, &a));
    close_all(&o);
    o = open_with(ctx, &large, H3F_F32);
    CHECK_OK(ctx, decode(o.vae, data, 7, &b));
    close_all(&o);
    o = open_with(ctx, &small, H3F_F32);
    CHECK_OK(ctx, decode(o.vae, data, 7, &tiled));
    close_all(&o);
    CHECK(same(&a, &b));
    CHECK(!same(&a, &tiled)); /* rotary positions are the tile's */
    free(a.values);
    free(b.values);
    free(tiled.values);
    free(data);
}

/* Without rotary positions a latent that is the same everywhere gives the same patch everywhere; with 400
 * tokens and so wide a feed-forward that one goes in two parts. */
static void test_a_large_tile_has_no_seam_between_its_parts(void) {
    enum { FRAMES = 4, SIDE = 10, TOKENS = FRAMES * SIDE * SIDE, PLANE = 4 * SIDE * SIDE };
    static float data[LATENT * TOKENS], pixels[3 * 4 * FRAMES * PLANE];
    h3f_video_vae_config config = small;
    config.rope_dim = 0;
    opened o = open_with(ctx, &config, H3F_F32);
    for (int i = 0; i < LATENT * TOKENS; i++)
        data[i] = 0.3F * (float)(i / TOKENS + 1);
    const h3f_latent latent = {.data = data, .frames = FRAMES, .height = SIDE, .width = SIDE};
    CHECK_OK(ctx, h3f_video_vae_decode_raw(o.vae, &latent, pixels));
    for (int c = 0; c < 3; c++)
        for (int f = 0; f < 4 * FRAMES; f++)
            for (int y = 0; y < 2 * SIDE; y++)
                for (int x = 0; x < 2 * SIDE; x++) {
                    const float *found = &pixels[(c * 4 * FRAMES + f) * PLANE + y * 2 * SIDE + x];
                    const float *first = &pixels[(c * 4 * FRAMES + f % 4) * PLANE + y % 2 * 2 * SIDE + x % 2];
                    CHECK(h_difference(found, first, 1) < 1e-5);
                }
    close_all(&o);
}

static void test_half_precision_weights_are_the_numbers_they_round_to(void) {
    for (int32_t dtype = H3F_F16; dtype <= H3F_BF16; dtype++) {
        make_file();
        t_round(&file, dtype);
        float *data = latent_of(7, 1);
        video half, full;
        opened o = open_with(ctx, &small, dtype);
        CHECK_OK(ctx, decode(o.vae, data, 7, &half));
        close_all(&o);
        o = open_with(ctx, &small, H3F_F32);
        CHECK_OK(ctx, decode(o.vae, data, 7, &full));
        close_all(&o);
        CHECK(same(&half, &full));
        free(half.values);
        free(full.values);
        free(data);
    }
    make_file();
}

static void test_results_do_not_depend_on_the_number_of_threads(void) {
    float *data = latent_of(12, 1);
    video results[2];
    for (int32_t i = 0; i < 2; i++) {
        h3f_context *on = h_context(H3F_ISA_BEST, 1 + 2 * i);
        opened o = open_with(on, &small, H3F_F32);
        CHECK_OK(on, decode(o.vae, data, 12, &results[i]));
        close_all(&o);
        h3f_context_free(on);
    }
    CHECK(same(&results[0], &results[1]));
    free(results[0].values);
    free(results[1].values);
    free(data);
}

/* ---- what is refused ---- */

static void check_refused(const char *sentence, int expected) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "bad.safetensors");
    h3f_video_vae *vae = NULL;
    const int64_t before = h3f_memory_now(ctx);
    CHECK_INT(h3f_video_vae_open(ctx, checkpoint, &small, &vae), expected);
    CHECK_HAS(h3f_error(ctx), sentence);
    CHECK(!vae);
    CHECK_INT(h3f_memory_now(ctx), before);
    h3f_checkpoint_close(checkpoint);
    make_file();
}

/* Each tensor in turn, with one row more than it should have; then without it. */
static void test_every_tensor_of_a_wrong_shape_is_named(void) {
    for (int32_t i = 0; i < file.count; i++) {
        t_tensor *tensor = &file.tensors[i];
        const int32_t axis = tensor->axes == 3 ? 1 : 0;
        char name[96];
        snprintf(name, sizeof name, "%s", tensor->name);
        tensor->shape[axis]++;
        tensor->values = realloc(tensor->values, (size_t)t_count(tensor) * sizeof(float));
        memset(tensor->values, 0, (size_t)t_count(tensor) * sizeof(float));
        check_refused(name, H3F_ETENSOR);
    }
}

static void test_every_missing_tensor_is_named(void) {
    const int32_t count = file.count;
    for (int32_t i = 0; i < count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s", file.tensors[i].name);
        t_drop(&file, name);
        check_refused(name, H3F_ETENSOR);
    }
}

static void test_more_blocks_than_the_config_says_are_refused(void) {
    add_block(LAYERS);
    check_refused("the config has 2 layers, but the file also holds 'decoder.transformer_blocks.2.norm1.weight'",
                  H3F_ETENSOR);
}

static void test_impossible_configs_are_refused(void) {
    static const struct {
        size_t field;
        int32_t value;
        const char *sentence;
    } table[] = {
        {offsetof(h3f_video_vae_config, heads), 0, "heads is 0, expected 1 to 65536"},
        {offsetof(h3f_video_vae_config, registers), -1, "registers is -1, expected 0 to 65536"},
        {offsetof(h3f_video_vae_config, rope_dim), 8, "rope_dim is 8, expected a multiple of 6 up to head_dim 8"},
        {offsetof(h3f_video_vae_config, rope_dim), 12, "rope_dim is 12, expected a multiple of 6"},
        {offsetof(h3f_video_vae_config, tile), 7, "tile is 7, expected 0 or a multiple of 2"},
        {offsetof(h3f_video_vae_config, tile_overlap), 6, "tile_overlap is 6, expected a multiple of 2 below"},
        {offsetof(h3f_video_vae_config, token_drop), 5, "token_drop 5, expected 1 to 4"},
    };
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "vae.safetensors");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        h3f_video_vae_config config = small;
        h3f_video_vae *vae = NULL;
        memcpy((char *)&config + table[i].field, &table[i].value, sizeof table[i].value);
        CHECK_INT(h3f_video_vae_open(ctx, checkpoint, &config, &vae), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), table[i].sentence);
    }
    h3f_checkpoint_close(checkpoint);
}

static void test_impossible_latents_are_refused(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    float *data = latent_of(7, 1), carry[1], pixels[1];
    int32_t frames = -1;
    h3f_latent latent = {.data = data, .frames = 2, .height = HEIGHT, .width = WIDTH};
    CHECK_INT(h3f_video_vae_decode_clip(o.vae, &latent, 0, carry, pixels, &frames), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "2 latent frames cannot be decoded; 3 (9 frames) is the least");
    latent.frames = 7;
    CHECK_INT(h3f_video_vae_decode_clip(o.vae, &latent, 1, carry, pixels, &frames), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "clip 1 is not one of the 1 clips");
    latent.width = 0;
    CHECK_INT(h3f_video_vae_decode_clip(o.vae, &latent, 0, carry, pixels, &frames), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "a latent of 7 frames of 5 x 0 cannot be decoded");
    CHECK_INT(frames, -1);
    free(data);
    close_all(&o);
}

static void test_what_is_not_finite_is_found_at_its_block(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    float *data = latent_of(7, 1);
    video out;
    data[11] = NAN;
    CHECK_INT(decode(o.vae, data, 7, &out), H3F_ENUMERIC);
    CHECK_TEXT(h3f_error(ctx), "video VAE: NaN or infinity after block 0");
    free(out.values);
    free(data);
    close_all(&o);
}

/* ---- faults ---- */

/* Opening and decoding with the n-th allocation failing, for every n until none does. */
static void test_every_failing_allocation_leaves_nothing_behind(void) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_VIDEO_VAE, "vae.safetensors");
    float *data = latent_of(12, 1);
    const int64_t before = h3f_memory_now(ctx);
    int code = H3F_ENOMEM, n = 0;
    for (; code != H3F_OK; n++) {
        h3f_video_vae *vae = NULL;
        video out = {0};
        atomic_store(&ctx->fail_allocation, n);
        code = h3f_video_vae_open(ctx, checkpoint, &small, &vae);
        if (code == H3F_OK)
            code = decode(vae, data, 12, &out);
        atomic_store(&ctx->fail_allocation, -1);
        CHECK(code == H3F_OK || code == H3F_ENOMEM);
        free(out.values);
        if (vae && code != H3F_OK) { /* usable after the failure */
            CHECK_OK(ctx, decode(vae, data, 12, &out));
            free(out.values);
        }
        h3f_video_vae_close(vae);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    CHECK(n > 3);
    free(data);
    h3f_checkpoint_close(checkpoint);
}

typedef struct stop {
    int64_t after, calls, done, total;
    bool falling;
} stop;

static void on_progress(void *user, const char *stage, int64_t done, int64_t total) {
    stop *s = user;
    s->falling |= strcmp(stage, "video_vae") != 0 || done != s->done + 1 || (s->calls && total != s->total);
    s->done = done;
    s->total = total;
    if (s->calls++ == s->after)
        h3f_cancel(ctx);
}

static void test_progress_counts_layers_of_tiles_of_clips(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    float *data = latent_of(12, 1);
    stop s = {.after = -1};
    video out;
    h3f_on_progress(ctx, on_progress, &s);
    CHECK_OK(ctx, decode(o.vae, data, 12, &out));
    h3f_on_progress(ctx, NULL, NULL);
    CHECK(!s.falling);
    CHECK_INT(s.total, 2 * 2 * 2 * LAYERS); /* clips x rows x columns */
    CHECK_INT(s.done, s.total);
    free(out.values);
    free(data);
    close_all(&o);
}

static void test_cancelled_anywhere_and_run_again_gives_the_same_bits(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    float *data = latent_of(7, 1);
    video wanted, out;
    CHECK_OK(ctx, decode(o.vae, data, 7, &wanted));
    const int64_t before = h3f_memory_now(ctx);
    for (int64_t after = 0; after < 2 * 2 * LAYERS; after++) {
        stop s = {.after = after};
        h3f_on_progress(ctx, on_progress, &s);
        CHECK_INT(decode(o.vae, data, 7, &out), H3F_ECANCELLED);
        CHECK_INT(s.calls, after + 1); /* not one layer more */
        h3f_on_progress(ctx, NULL, NULL);
        free(out.values);
        h3f_cancel_clear(ctx);
        CHECK_INT(h3f_memory_now(ctx), before);
        CHECK_OK(ctx, decode(o.vae, data, 7, &out));
        CHECK(same(&out, &wanted));
        free(out.values);
    }
    free(wanted.values);
    free(data);
    close_all(&o);
}

static void test_memory_does_not_grow_with_the_length(void) {
    opened o = open_with(ctx, &small, H3F_F32);
    int64_t peaks[2];
    for (int32_t i = 0; i < 2; i++) {
        const int32_t latents = i == 0 ? 12 : 52;
        float *data = latent_of(latents, 1);
        video out;
        h3f_memory_peak_reset(ctx);
        CHECK_OK(ctx, decode(o.vae, data, latents, &out));
        peaks[i] = h3f_memory_peak(ctx);
        free(out.values);
        free(data);
    }
    CHECK_INT(peaks[1], peaks[0]);
    close_all(&o);
}

/* ---- pixels ---- */

static void test_pixels_become_bytes_by_channel(void) {
    static const float mean[3] = {0.485F, 0.456F, 0.406F}, std[3] = {0.229F, 0.224F, 0.225F};
    static const float wanted[5] = {0.0F, 1.0F, 0.5F, 0.2F, 0.999F};
    enum { FRAMES = 2, AREA = 5 };
    float pixels[3 * FRAMES * AREA];
    uint8_t rgb[FRAMES * AREA * 3];
    for (int c = 0; c < 3; c++)
        for (int f = 0; f < FRAMES; f++)
            for (int i = 0; i < AREA; i++)
                pixels[(c * FRAMES + f) * AREA + i] = (wanted[(i + c + f) % 5] - mean[c]) / std[c];
    CHECK_OK(ctx, h3f_pixels_to_rgb(ctx, pixels, FRAMES, 1, AREA, rgb));
    for (int c = 0; c < 3; c++)
        for (int f = 0; f < FRAMES; f++)
            for (int i = 0; i < AREA; i++)
                CHECK(fabs(rgb[(f * AREA + i) * 3 + c] - 255.0 * (double)wanted[(i + c + f) % 5]) <= 0.501);
}

static void test_pixels_out_of_range_are_clamped(void) {
    const float pixels[6] = {-9, 9, -1e30F, 1e30F, -2.2F, 2.7F};
    uint8_t rgb[6];
    CHECK_OK(ctx, h3f_pixels_to_rgb(ctx, pixels, 1, 1, 2, rgb));
    for (int i = 0; i < 6; i++)
        CHECK_INT(rgb[i], i < 3 ? 0 : 255);
}

static void test_pixels_that_are_not_finite_are_refused(void) {
    float pixels[3 * 4 * 6] = {0};
    uint8_t rgb[3 * 4 * 6];
    pixels[1 * 24 + 2 * 6 + 5] = INFINITY;
    CHECK_INT(h3f_pixels_to_rgb(ctx, pixels, 4, 2, 3, rgb), H3F_ENUMERIC);
    CHECK_TEXT(h3f_error(ctx), "video VAE: NaN or infinity in the pixels of frame 2");
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 2);
    make_file();
    RUN(test_clips_are_windows_joined_with_their_tails);
    RUN(test_a_ragged_tail_is_the_last_latent_repeated_and_cut);
    RUN(test_a_tile_as_large_as_the_picture_is_no_tiling);
    RUN(test_a_large_tile_has_no_seam_between_its_parts);
    RUN(test_half_precision_weights_are_the_numbers_they_round_to);
    RUN(test_results_do_not_depend_on_the_number_of_threads);
    RUN(test_every_tensor_of_a_wrong_shape_is_named);
    RUN(test_every_missing_tensor_is_named);
    RUN(test_more_blocks_than_the_config_says_are_refused);
    RUN(test_impossible_configs_are_refused);
    RUN(test_impossible_latents_are_refused);
    RUN(test_what_is_not_finite_is_found_at_its_block);
    RUN(test_every_failing_allocation_leaves_nothing_behind);
    RUN(test_progress_counts_layers_of_tiles_of_clips);
    RUN(test_cancelled_anywhere_and_run_again_gives_the_same_bits);
    RUN(test_memory_does_not_grow_with_the_length);
    RUN(test_pixels_become_bytes_by_channel);
    RUN(test_pixels_out_of_range_are_clamped);
    RUN(test_pixels_that_are_not_finite_are_refused);
    t_clear(&file);
    h3f_context_free(ctx);
    return H_END();
}
