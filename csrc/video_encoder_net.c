/* Source: docs/model.md, "Video VAE encoder"; tolerances in tests/golden/README.md. */
#include "video_encoder_net.h"

#include <stdio.h>
#include <string.h>

enum { LEAST_LATENTS = 2 }; /* a side of the last levels: of one, there is nothing to mirror */

/* ---- weights ---- */

static h3f_group_norm norm_of(const h3f_video_encoder_config *config, int32_t channels) {
    return (h3f_group_norm){
        .channels = channels, .groups = config->groups, .eps = config->norm_eps};
}

static void layout_norm(h3f_arena *arena, h3f_group_norm *norm) {
    norm->weight = h3f_take_floats(arena, norm->channels, 1);
    norm->bias = h3f_take_floats(arena, norm->channels, 1);
}

static void layout_conv(h3f_arena *arena, h3f_conv3d *conv, int32_t in, int32_t out) {
    conv->in = in;
    conv->out = out;
    if (!conv->stride)
        conv->stride = conv->time_stride = 1;
    conv->bias = h3f_take_floats(arena, out, 1);
}

static void layout_residual(h3f_arena *arena, const h3f_video_encoder_config *config, int32_t in,
                            int32_t out, h3f_video_residual *residual) {
    residual->norm1 = norm_of(config, in);
    residual->norm2 = norm_of(config, out);
    layout_norm(arena, &residual->norm1);
    layout_conv(arena, &residual->conv1, in, out);
    layout_norm(arena, &residual->norm2);
    layout_conv(arena, &residual->conv2, out, out);
    residual->shortcut_bias = in == out ? NULL : h3f_take_floats(arena, out, 1);
}

static void layout_level(h3f_arena *arena, const h3f_video_encoder_config *config, int32_t i,
                         h3f_video_level *level) {
    h3f_video_residual uncounted = {0}, *residuals;
    level->in = config->channels[i > 0 ? i - 1 : 0];
    level->out = config->channels[i];
    residuals = h3f_arena_take(arena, (size_t)config->resnets * sizeof *residuals);
    for (int32_t j = 0; j < config->resnets; j++)
        layout_residual(arena, config, j == 0 ? level->in : level->out, level->out,
                        residuals ? &residuals[j] : &uncounted);
    level->residuals = residuals;
    level->shrinks = config->spatial[i] * config->temporal[i] > 1;
    level->down = (h3f_conv3d){
        .stride = config->spatial[i], .time_stride = config->temporal[i], .corner = true};
    layout_conv(arena, &level->down, level->out, level->out);
}

static void layout_vectors(h3f_arena *arena, h3f_video_encoder_net *net) {
    const h3f_video_encoder_config *config = &net->config;
    const int32_t first = config->channels[0], last = config->channels[config->levels - 1];
    h3f_video_level uncounted,
        *levels = h3f_arena_take(arena, (size_t)config->levels * sizeof *levels);
    for (int32_t i = 0; i < config->levels; i++)
        layout_level(arena, config, i, levels ? &levels[i] : &uncounted);
    net->levels = levels;
    layout_conv(arena, &net->conv_in, 3, first);
    layout_conv(arena, &net->conv_out, last, net->moments);
    net->norm_out = norm_of(config, last);
    layout_norm(arena, &net->norm_out);
    net->quant_bias = h3f_take_floats(arena, net->moments, 1);
}

static int read_norm(const h3f_checkpoint *checkpoint, const h3f_group_norm *norm,
                     const char *module) {
    H3F_TRY(h3f_read_vector(checkpoint, norm->channels, norm->weight, "%s.weight", module));
    return h3f_read_vector(checkpoint, norm->channels, norm->bias, "%s.bias", module);
}

static int read_linear(const h3f_checkpoint *checkpoint, int32_t rows, int32_t cols, float *bias,
                       h3f_linear *linear, const char *module) {
    H3F_TRY(h3f_find_matrix(checkpoint, rows, cols, &linear->w, "%s.weight", module));
    H3F_TRY(h3f_read_vector(checkpoint, rows, bias, "%s.bias", module));
    linear->bias = bias;
    return H3F_OK;
}

static const char *named(char name[96], const char *module, const char *leaf) {
    snprintf(name, 96, "%s.%s", module, leaf);
    return name;
}

static int read_residual(const h3f_checkpoint *checkpoint, h3f_video_residual *residual,
                         const char *module) {
    char name[96];
    H3F_TRY(read_norm(checkpoint, &residual->norm1, named(name, module, "norm1")));
    H3F_TRY(h3f_conv3d_find(checkpoint, &residual->conv1, named(name, module, "conv1")));
    H3F_TRY(read_norm(checkpoint, &residual->norm2, named(name, module, "norm2")));
    H3F_TRY(h3f_conv3d_find(checkpoint, &residual->conv2, named(name, module, "conv2")));
    if (!residual->shortcut_bias)
        return H3F_OK;
    return read_linear(checkpoint, residual->conv1.out, residual->conv1.in,
                       residual->shortcut_bias, &residual->shortcut,
                       named(name, module, "nin_shortcut"));
}

static int read_level(const h3f_checkpoint *checkpoint, const h3f_video_encoder_config *config,
                      h3f_video_level *level, int32_t i) {
    char name[64];
    for (int32_t j = 0; j < config->resnets; j++) {
        snprintf(name, sizeof name, "encoder.down.%d.block.%d", i, j);
        H3F_TRY(read_residual(checkpoint, &level->residuals[j], name));
    }
    if (!level->shrinks)
        return H3F_OK;
    snprintf(name, sizeof name, "encoder.down.%d.downsample.conv", i);
    return h3f_conv3d_find(checkpoint, &level->down, name);
}

/* A level or block more than the config has would be left out in silence. */
static int check_counts(const h3f_checkpoint *checkpoint, const h3f_video_encoder_config *config) {
    char beyond[2][64];
    snprintf(beyond[0], sizeof beyond[0], "encoder.down.%d.block.0.norm1.weight", config->levels);
    snprintf(beyond[1], sizeof beyond[1], "encoder.down.0.block.%d.norm1.weight", config->resnets);
    for (int i = 0; i < 2; i++)
        if (h3f_checkpoint_has(checkpoint, beyond[i]))
            return h3f_fail(h3f_checkpoint_context(checkpoint), H3F_ETENSOR,
                            "video VAE: the config has %d encoder levels of %d blocks, but the "
                            "file also holds '%s'",
                            config->levels, config->resnets, beyond[i]);
    return H3F_OK;
}

static int read_weights(const h3f_checkpoint *checkpoint, h3f_video_encoder_net *net) {
    H3F_TRY(h3f_conv3d_find(checkpoint, &net->conv_in, "encoder.conv_in"));
    for (int32_t i = 0; i < net->config.levels; i++)
        H3F_TRY(read_level(checkpoint, &net->config, &net->levels[i], i));
    H3F_TRY(read_norm(checkpoint, &net->norm_out, "encoder.norm_out"));
    H3F_TRY(h3f_conv3d_find(checkpoint, &net->conv_out, "encoder.conv_out"));
    return read_linear(checkpoint, net->moments, net->moments, net->quant_bias, &net->quant,
                       "quant_conv");
}

int h3f_video_encoder_net_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                               const h3f_video_encoder_config *config, h3f_video_encoder_net *net) {
    net->ctx = ctx;
    net->config = *config;
    net->moments = 2 * config->latent_channels;
    net->factor = net->time_factor = 1;
    for (int32_t i = 0; i < config->levels; i++) {
        net->factor *= config->spatial[i];
        net->time_factor *= config->temporal[i];
    }
    H3F_TRY(check_counts(checkpoint, config));
    layout_vectors(&net->vectors, net);
    H3F_TRY(h3f_arena_reserve(ctx, &net->vectors, "the video encoder's vectors"));
    layout_vectors(&net->vectors, net);
    return read_weights(checkpoint, net);
}

void h3f_video_encoder_net_close(h3f_video_encoder_net *net) {
    h3f_arena_release(net->ctx, &net->vectors);
}

/* ---- memory of a tile ---- */

int h3f_video_encoding_init(const h3f_video_encoder_net *net, h3f_volume pixels,
                            h3f_video_encoding *encoding) {
    int64_t widest = 3, area, values;
    for (int32_t i = 0; i < net->config.levels; i++)
        widest = h3f_max(widest, net->config.channels[i]);
    if (!h3f_mul_size(pixels.height, pixels.width, &area) ||
        !h3f_mul_size(area, pixels.frames, &area) || !h3f_mul_size(area, widest * 128, &values))
        return h3f_fail(net->ctx, H3F_EINVAL, "video VAE: %d frames of %d x %d pixels are too many",
                        pixels.frames, pixels.width, pixels.height);
    const int32_t least = LEAST_LATENTS * net->factor;
    if (pixels.height % net->factor != 0 || pixels.width % net->factor != 0 ||
        pixels.height < least || pixels.width < least)
        return h3f_fail(net->ctx, H3F_EINVAL,
                        "video VAE: a tile of %d x %d pixels cannot be encoded, the sides must be "
                        "multiples of %d from %d up",
                        pixels.width, pixels.height, net->factor, least);
    *encoding = (h3f_video_encoding){.pixels = pixels, .latent = pixels};
    for (int32_t i = 0; i < net->config.levels; i++)
        encoding->latent = h3f_conv3d_result(&net->levels[i].down, encoding->latent);
    return H3F_OK;
}

/* What every step of the network has in common: its volume, and the steps' own needs. */
typedef struct needs {
    int64_t values; /* of the largest volume */
    size_t scratch;
} needs;

static void need(needs *n, size_t scratch, h3f_volume volume, int32_t channels) {
    n->values = h3f_max(n->values, h3f_volume_pixels(volume) * channels);
    n->scratch = scratch > n->scratch ? scratch : n->scratch;
}

static void need_residual(needs *n, const h3f_video_residual *residual, h3f_volume volume) {
    const int32_t out = residual->conv2.out;
    need(n, h3f_group_norm_scratch(&residual->norm1, volume), volume, residual->conv1.in);
    need(n, h3f_conv3d_scratch(&residual->conv1, volume), volume, out);
    need(n, h3f_group_norm_scratch(&residual->norm2, volume), volume, out);
    need(n, h3f_conv3d_scratch(&residual->conv2, volume), volume, out);
    if (residual->shortcut_bias)
        need(n, h3f_pointwise_scratch(&residual->shortcut, h3f_volume_pixels(volume)), volume, out);
}

static needs needs_of(const h3f_video_encoder_net *net, const h3f_video_encoding *encoding) {
    needs n = {0};
    h3f_volume volume = encoding->pixels;
    need(&n, h3f_conv3d_scratch(&net->conv_in, volume), volume, net->conv_in.out);
    for (int32_t i = 0; i < net->config.levels; i++) {
        const h3f_video_level *level = &net->levels[i];
        for (int32_t j = 0; j < net->config.resnets; j++)
            need_residual(&n, &level->residuals[j], volume);
        if (!level->shrinks)
            continue;
        const size_t scratch = h3f_conv3d_scratch(&level->down, volume);
        volume = h3f_conv3d_result(&level->down, volume);
        need(&n, scratch, volume, level->out);
    }
    need(&n, h3f_group_norm_scratch(&net->norm_out, volume), volume, net->conv_out.in);
    need(&n, h3f_conv3d_scratch(&net->conv_out, volume), volume, net->moments);
    need(&n, h3f_pointwise_scratch(&net->quant, h3f_volume_pixels(volume)), volume, net->moments);
    return n;
}

/* The convolutions of the levels, in order; NULL where a level has none. */
static h3f_conv3d *conv_at(const h3f_video_encoder_net *net, int32_t index) {
    const int32_t of_level = 2 * net->config.resnets + 1, place = index % of_level;
    h3f_video_level *level = &net->levels[index / of_level];
    if (place == of_level - 1)
        return level->shrinks ? &level->down : NULL;
    h3f_video_residual *residual = &level->residuals[place / 2];
    return place % 2 == 0 ? &residual->conv1 : &residual->conv2;
}

static int32_t conv_count(const h3f_video_encoder_net *net) {
    return net->config.levels * (2 * net->config.resnets + 1);
}

void h3f_video_encoding_layout(h3f_video_encoder_net *net, h3f_arena *arena,
                               h3f_video_encoding *encoding) {
    const int32_t frames = encoding->pixels.frames;
    h3f_conv3d_layout(arena, &net->conv_in, frames);
    h3f_conv3d_layout(arena, &net->conv_out, frames);
    for (int32_t i = 0; i < conv_count(net); i++)
        if (conv_at(net, i))
            h3f_conv3d_layout(arena, conv_at(net, i), frames);
    const needs n = needs_of(net, encoding);
    encoding->rgb = h3f_take_floats(arena, h3f_volume_pixels(encoding->pixels), 3);
    encoding->moments =
        h3f_take_floats(arena, h3f_volume_pixels(encoding->latent), net->moments);
    encoding->x = h3f_take_floats(arena, n.values, 1);
    encoding->branch = h3f_take_floats(arena, n.values, 1);
    encoding->other = h3f_take_floats(arena, n.values, 1);
    encoding->scratch = h3f_arena_take(arena, n.scratch);
}

int h3f_video_encoding_prepare(const h3f_video_encoder_net *net) {
    H3F_TRY(h3f_conv3d_arrange(net->ctx, &net->conv_in));
    H3F_TRY(h3f_conv3d_arrange(net->ctx, &net->conv_out));
    for (int32_t i = 0; i < conv_count(net); i++)
        if (conv_at(net, i))
            H3F_TRY(h3f_conv3d_arrange(net->ctx, conv_at(net, i)));
    return H3F_OK;
}

/* ---- forward ---- */

/* The golden tensor is [channels, frames, height, width]; `room` is free. */
static void tap(h3f_context *ctx, const char *name, const float *x, h3f_volume volume,
                int32_t channels, float *room) {
    const int64_t pixels = h3f_volume_pixels(volume);
    for (int32_t c = 0; c < channels && ctx->tap; c++) {
        for (int64_t i = 0; i < pixels; i++)
            room[i] = x[i * channels + c];
        h3f_tap(ctx, name, c, 1, channels, pixels, room);
    }
}

/* e->x of the block's input -> e->x of its output. */
static int run_residual(const h3f_video_encoder_net *net, h3f_video_encoding *e,
                        const h3f_video_residual *r, h3f_volume volume) {
    h3f_context *ctx = net->ctx;
    const int64_t pixels = h3f_volume_pixels(volume);
    H3F_TRY(h3f_group_norm_run(ctx, &r->norm1, volume, true, e->x, e->branch, e->scratch));
    H3F_TRY(h3f_conv3d_run(ctx, &r->conv1, volume, e->branch, e->other, e->scratch));
    H3F_TRY(h3f_group_norm_run(ctx, &r->norm2, volume, true, e->other, e->other, e->scratch));
    H3F_TRY(h3f_conv3d_run(ctx, &r->conv2, volume, e->other, e->branch, e->scratch));
    if (r->shortcut_bias) {
        H3F_TRY(h3f_pointwise_run(ctx, &r->shortcut, pixels, e->x, e->other, e->scratch));
        float *shortcut = e->other;
        e->other = e->x;
        e->x = shortcut;
    }
    return h3f_add_gated(ctx, pixels, r->conv2.out, NULL, e->branch, e->x);
}

static int run_level(const h3f_video_encoder_net *net, h3f_video_encoding *e, int32_t i,
                     h3f_volume *volume) {
    const h3f_video_level *level = &net->levels[i];
    char name[48];
    for (int32_t j = 0; j < net->config.resnets; j++) {
        H3F_TRY(run_residual(net, e, &level->residuals[j], *volume));
        snprintf(name, sizeof name, "down.%d.resnet.%d", i, j);
        tap(net->ctx, name, e->x, *volume, level->out, e->branch);
    }
    if (level->shrinks) {
        H3F_TRY(h3f_conv3d_run(net->ctx, &level->down, *volume, e->x, e->branch, e->scratch));
        *volume = h3f_conv3d_result(&level->down, *volume);
        float *result = e->branch;
        e->branch = e->x;
        e->x = result;
    }
    snprintf(name, sizeof name, "down.%d", i);
    tap(net->ctx, name, e->x, *volume, level->out, e->branch);
    if (!h3f_all_finite(e->x, h3f_volume_pixels(*volume) * level->out))
        return h3f_fail(net->ctx, H3F_ENUMERIC,
                        "video VAE: NaN or infinity after encoder level %d", i);
    return H3F_OK;
}

static int run_end(const h3f_video_encoder_net *net, const h3f_video_encoding *e) {
    h3f_context *ctx = net->ctx;
    const h3f_volume volume = e->latent;
    const int64_t pixels = h3f_volume_pixels(volume);
    const int32_t channels = net->conv_out.in;
    H3F_TRY(h3f_group_norm_run(ctx, &net->norm_out, volume, false, e->x, e->x, e->scratch));
    tap(ctx, "norm_out", e->x, volume, channels, e->branch);
    H3F_TRY(h3f_silu(ctx, pixels * channels, e->x, e->x));
    H3F_TRY(h3f_conv3d_run(ctx, &net->conv_out, volume, e->x, e->other, e->scratch));
    tap(ctx, "conv_out", e->other, volume, net->moments, e->branch);
    H3F_TRY(h3f_pointwise_run(ctx, &net->quant, pixels, e->other, e->moments, e->scratch));
    tap(ctx, "moments", e->moments, volume, net->moments, e->branch);
    return H3F_OK;
}

int h3f_video_encoder_net_run(const h3f_video_encoder_net *net, const h3f_video_encoding *encoding,
                              int64_t done, int64_t total) {
    h3f_video_encoding e = *encoding; /* its buffers change places */
    h3f_volume volume = e.pixels;
    H3F_TRY(h3f_conv3d_run(net->ctx, &net->conv_in, volume, e.rgb, e.x, e.scratch));
    tap(net->ctx, "conv_in", e.x, volume, net->conv_in.out, e.branch);
    for (int32_t i = 0; i < net->config.levels; i++) {
        H3F_TRY(run_level(net, &e, i, &volume));
        h3f_progress(net->ctx, "video_encoder", done + i + 1, total);
    }
    return run_end(net, &e);
}
