#include "video_decoder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK "decoder.transformer_blocks.%d"

/* ---- weights ---- */

static void layout_layer(h3f_arena *arena, const h3f_video_decoder *decoder,
                         h3f_video_layer *layer) {
    const size_t hidden = (size_t)decoder->hidden * sizeof(float);
    const size_t ffn = (size_t)decoder->config.ffn * sizeof(float);
    layer->norm1 = h3f_arena_take(arena, hidden);
    layer->norm2 = h3f_arena_take(arena, hidden);
    layer->scale1 = h3f_arena_take(arena, hidden);
    layer->scale2 = h3f_arena_take(arena, hidden);
    layer->qkv_bias = h3f_arena_take(arena, 3 * hidden);
    layer->attention_bias = h3f_arena_take(arena, hidden);
    layer->gate_up_bias = h3f_arena_take(arena, 2 * ffn);
    layer->feed_forward_bias = h3f_arena_take(arena, hidden);
}

static void layout_vectors(h3f_arena *arena, h3f_video_decoder *decoder) {
    const h3f_video_vae_config *config = &decoder->config;
    const size_t hidden = (size_t)decoder->hidden * sizeof(float);
    decoder->post_quant_bias = h3f_arena_take(arena,
                                              (size_t)config->latent_channels * sizeof(float));
    decoder->proj_in_bias = h3f_arena_take(arena, hidden);
    decoder->proj_out_bias = h3f_arena_take(arena, (size_t)decoder->pixels * sizeof(float));
    decoder->registers = h3f_arena_take(arena, (size_t)config->registers * hidden);
    decoder->norm_out = h3f_arena_take(arena, hidden);
    decoder->norm_out_bias = h3f_arena_take(arena, hidden);
    /* While counting there are no layers to point from yet. */
    h3f_video_layer unplaced,
        *layers = h3f_arena_take(arena, (size_t)config->layers * sizeof *decoder->layers);
    for (int32_t i = 0; i < config->layers; i++)
        layout_layer(arena, decoder, layers ? &layers[i] : &unplaced);
    decoder->layers = layers;
}

static int read_layer(const h3f_checkpoint *checkpoint, const h3f_video_decoder *decoder,
                      int32_t i) {
    const h3f_video_vae_config *config = &decoder->config;
    const int64_t hidden = decoder->hidden, ffn = config->ffn;
    h3f_video_layer *layer = &decoder->layers[i];
    h3f_mat qkv[3], gate_up[2];
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->norm1, BLOCK ".norm1.weight", i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->norm2, BLOCK ".norm2.weight", i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->scale1, BLOCK ".scale1", i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->scale2, BLOCK ".scale2", i));
    H3F_TRY(h3f_find_qkv(checkpoint, config->heads, config->head_dim, hidden, qkv, layer->qkv_bias,
                         BLOCK ".attn", i));
    H3F_TRY(h3f_find_matrix(checkpoint, hidden, hidden, &layer->attention_out.w,
                            BLOCK ".attn.to_out.weight", i));
    H3F_TRY(
        h3f_read_vector(checkpoint, hidden, layer->attention_bias, BLOCK ".attn.to_out.bias", i));
    H3F_TRY(
        h3f_find_gate_up(checkpoint, ffn, hidden, gate_up, layer->gate_up_bias, BLOCK ".ff.w1", i));
    H3F_TRY(h3f_find_matrix(checkpoint, hidden, ffn, &layer->feed_forward_out.w,
                            BLOCK ".ff.w2.weight", i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->feed_forward_bias, BLOCK ".ff.w2.bias", i));
    for (int part = 0; part < 3; part++)
        layer->qkv[part] = (h3f_linear){qkv[part], layer->qkv_bias + part * hidden};
    for (int part = 0; part < 2; part++)
        layer->gate_up[part] = (h3f_linear){gate_up[part], layer->gate_up_bias + part * ffn};
    layer->attention_out.bias = layer->attention_bias;
    layer->feed_forward_out.bias = layer->feed_forward_bias;
    return H3F_OK;
}

static int read_registers(const h3f_checkpoint *checkpoint, const h3f_video_decoder *decoder) {
    const int64_t shape[] = {1, decoder->config.registers, decoder->hidden};
    h3f_tensor tensor;
    H3F_TRY(h3f_find_tensor(checkpoint, 3, shape, &tensor, "decoder.register_tokens"));
    h3f_widen(tensor.dtype, tensor.data, shape[1] * shape[2], decoder->registers);
    return H3F_OK;
}

static int read_linear(const h3f_checkpoint *checkpoint, int64_t rows, int64_t cols,
                       const char *name, float *bias, h3f_linear *linear) {
    H3F_TRY(h3f_find_matrix(checkpoint, rows, cols, &linear->w, "%s.weight", name));
    H3F_TRY(h3f_read_vector(checkpoint, rows, bias, "%s.bias", name));
    linear->bias = bias;
    return H3F_OK;
}

static int read_ends(const h3f_checkpoint *checkpoint, h3f_video_decoder *decoder) {
    const int64_t channels = decoder->config.latent_channels, hidden = decoder->hidden;
    H3F_TRY(read_linear(checkpoint, channels, channels, "post_quant_conv", decoder->post_quant_bias,
                        &decoder->post_quant));
    H3F_TRY(read_linear(checkpoint, hidden, channels, "decoder.x_embedder", decoder->proj_in_bias,
                        &decoder->proj_in));
    H3F_TRY(read_linear(checkpoint, decoder->pixels, hidden, "decoder.proj_out",
                        decoder->proj_out_bias, &decoder->proj_out));
    if (decoder->config.registers > 0 ||
        h3f_checkpoint_has(checkpoint, "decoder.register_tokens"))
        H3F_TRY(read_registers(checkpoint, decoder));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, decoder->norm_out, "decoder.norm_out.weight"));
    return h3f_read_vector(checkpoint, hidden, decoder->norm_out_bias, "decoder.norm_out.bias");
}

static int check_layer_count(const h3f_checkpoint *checkpoint, const h3f_video_decoder *decoder) {
    const int32_t layers = decoder->config.layers;
    char name[96];
    snprintf(name, sizeof name, BLOCK ".norm1.weight", layers);
    if (h3f_checkpoint_has(checkpoint, name))
        return h3f_fail(decoder->ctx, H3F_ETENSOR,
                        "video VAE: the config has %d layers, but the file also holds '%s'", layers,
                        name);
    return H3F_OK;
}

int h3f_video_decoder_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                           const h3f_video_vae_config *config, h3f_video_decoder *decoder) {
    decoder->ctx = ctx;
    decoder->config = *config;
    decoder->hidden = (int64_t)config->heads * config->head_dim;
    decoder->pixels = (int64_t)3 * config->temporal_factor * config->spatial_factor *
                      config->spatial_factor;
    H3F_TRY(check_layer_count(checkpoint, decoder));
    layout_vectors(&decoder->vectors, decoder);
    H3F_TRY(h3f_arena_reserve(ctx, &decoder->vectors, "the video VAE's vectors"));
    layout_vectors(&decoder->vectors, decoder);
    H3F_TRY(read_ends(checkpoint, decoder));
    for (int32_t i = 0; i < config->layers; i++)
        H3F_TRY(read_layer(checkpoint, decoder, i));
    return H3F_OK;
}

void h3f_video_decoder_close(h3f_video_decoder *decoder) {
    h3f_arena_release(decoder->ctx, &decoder->vectors);
}

/* ---- memory of a tile ---- */

int h3f_video_tile_init(const h3f_video_decoder *decoder, int32_t frames, int32_t height,
                        int32_t width, h3f_video_tile *tile) {
    const h3f_video_vae_config *config = &decoder->config;
    const int64_t widest =
        h3f_max(4 * decoder->hidden + 2 * (int64_t)config->ffn, decoder->pixels) * 16;
    int64_t area, tokens, bytes;
    if (!h3f_mul_size(height, width, &area) || !h3f_mul_size(area, frames, &tokens) ||
        !h3f_mul_size(tokens + config->registers + 1, widest, &bytes))
        return h3f_fail(decoder->ctx, H3F_EINVAL, "video VAE: %d x %d x %d latents are too many",
                        frames, height, width);
    *tile = (h3f_video_tile){.frames = frames, .height = height, .width = width, .tokens = tokens};
    tile->rows = tokens + config->registers + 1;
    /* The feed-forward overlays q, k and v: as many rows as fit there, but not so few that reading
     * the weights again for each chunk would show. */
    const int64_t fitting = tile->rows * 3 * decoder->hidden / (2 * (int64_t)config->ffn);
    tile->chunk = h3f_max(fitting, 256);
    if (tile->chunk > tile->rows)
        tile->chunk = tile->rows;
    return H3F_OK;
}

static size_t scratch_bytes(const h3f_video_decoder *decoder, const h3f_video_tile *tile) {
    const int64_t widest = h3f_max(decoder->hidden, decoder->config.latent_channels);
    const size_t all = h3f_linear_scratch(tile->rows, widest);
    const size_t chunk = h3f_linear_scratch(tile->chunk, decoder->config.ffn);
    return all > chunk ? all : chunk;
}

void h3f_video_tile_layout(const h3f_video_decoder *decoder, h3f_arena *arena,
                           h3f_video_tile *tile) {
    const h3f_video_vae_config *config = &decoder->config;
    const int64_t hidden = decoder->hidden, rows = tile->rows;
    const int64_t work = h3f_max(h3f_max(rows * 3 * hidden, tile->chunk * 2 * config->ffn),
                                 tile->tokens * h3f_max(decoder->pixels, config->latent_channels));
    const size_t table = (size_t)(rows * (config->rope_dim / 2)) * sizeof(float);
    tile->latent = h3f_arena_take(arena,
                                  (size_t)(tile->tokens * config->latent_channels) * sizeof(float));
    tile->x = h3f_arena_take(arena, (size_t)(rows * hidden) * sizeof(float));
    tile->branch = h3f_arena_take(arena, (size_t)(rows * hidden) * sizeof(float));
    tile->work = h3f_arena_take(arena, (size_t)work * sizeof(float));
    tile->cosine = h3f_arena_take(arena, table);
    tile->sine = h3f_arena_take(arena, table);
    tile->scales = h3f_arena_take(arena, (size_t)rows * sizeof *tile->scales);
    tile->scratch = h3f_arena_take(arena, scratch_bytes(decoder, tile));
    tile->pixels = tile->work;
}

/* ---- rotary tables ---- */

/* Position i of n lies at the middle of its n-th part of -1 .. 1. */
static void rotary_axis(const h3f_video_decoder *decoder, int32_t i, int32_t n, float *cosine,
                        float *sine) {
    const int32_t freqs = decoder->config.rope_dim / 6;
    const double pi = 3.14159265358979323846;
    const double position = 2.0 * ((i + 0.5) / n) - 1.0;
    for (int32_t f = 0; f < freqs; f++) {
        const double angle = 2.0 * pi * position *
                             pow(decoder->config.rope_theta, -(double)f / freqs);
        cosine[f] = (float)cos(angle);
        sine[f] = (float)sin(angle);
    }
}

/* The tap has both halves of the rotated channels, which are the same. */
static void tap_rotary(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                       const char *name, const float *table) {
    const int64_t pairs = decoder->config.rope_dim / 2;
    for (int64_t row = 0; row < tile->rows && decoder->ctx->tap; row++) {
        memcpy(tile->work, table + row * pairs, (size_t)pairs * sizeof(float));
        memcpy(tile->work + pairs, table + row * pairs, (size_t)pairs * sizeof(float));
        h3f_tap(decoder->ctx, name, row, 1, tile->rows, 2 * pairs, tile->work);
    }
}

int h3f_video_tile_prepare(const h3f_video_decoder *decoder, h3f_video_tile *tile) {
    const int64_t freqs = decoder->config.rope_dim / 6, pairs = 3 * freqs;
    float *cosine = tile->cosine, *sine = tile->sine;
    for (int32_t t = 0; t < tile->frames; t++) {
        H3F_TRY(h3f_poll(decoder->ctx));
        for (int32_t h = 0; h < tile->height; h++)
            for (int32_t w = 0; w < tile->width; w++, cosine += pairs, sine += pairs) {
                rotary_axis(decoder, t, tile->frames, cosine, sine);
                rotary_axis(decoder, h, tile->height, cosine + freqs, sine + freqs);
                rotary_axis(decoder, w, tile->width, cosine + 2 * freqs, sine + 2 * freqs);
            }
    }
    /* Registers and the zero token lie at the origin and are not rotated. */
    for (int64_t i = 0; i < (tile->rows - tile->tokens) * pairs; i++) {
        cosine[i] = 1.0F;
        sine[i] = 0.0F;
    }
    tap_rotary(decoder, tile, "rope_cos", tile->cosine);
    tap_rotary(decoder, tile, "rope_sin", tile->sine);
    return H3F_OK;
}

/* ---- forward ---- */

static int linear(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                  const h3f_linear *weights, const float *x, int64_t m, float *y) {
    return h3f_linear_run(decoder->ctx, weights, x, m, y, weights->w.rows, tile->scratch);
}

static void tap_layer(const h3f_video_decoder *decoder, int32_t layer, const char *part,
                      int64_t row, int64_t rows, int64_t total, const float *data) {
    if (!decoder->ctx->tap)
        return;
    char name[48];
    snprintf(name, sizeof name, "block.%d%s", layer, part);
    h3f_tap(decoder->ctx, name, row, rows, total, decoder->hidden, data);
}

/* The golden tensor is [channels, tokens]. */
static void tap_post_quant(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                           const float *rows) {
    const int64_t channels = decoder->config.latent_channels;
    for (int64_t c = 0; c < channels && decoder->ctx->tap; c++) {
        for (int64_t i = 0; i < tile->tokens; i++)
            tile->branch[i] = rows[i * channels + c];
        h3f_tap(decoder->ctx, "post_quant", c, 1, channels, tile->tokens, tile->branch);
    }
}

static int embed(const h3f_video_decoder *decoder, const h3f_video_tile *tile) {
    const int64_t hidden = decoder->hidden, registers = decoder->config.registers;
    H3F_TRY(linear(decoder, tile, &decoder->post_quant, tile->latent, tile->tokens, tile->work));
    tap_post_quant(decoder, tile, tile->work);
    H3F_TRY(linear(decoder, tile, &decoder->proj_in, tile->work, tile->tokens, tile->x));
    h3f_tap(decoder->ctx, "proj_in", 0, tile->tokens, tile->tokens, hidden, tile->x);
    float *extra = tile->x + tile->tokens * hidden;
    memcpy(extra, decoder->registers, (size_t)(registers * hidden) * sizeof(float));
    memset(extra + registers * hidden, 0, (size_t)hidden * sizeof(float));
    return H3F_OK;
}

/* Query and key are normalised per head, without a weight, and then rotated. */
static int norm_and_rotate(const h3f_video_decoder *decoder, const h3f_video_tile *tile, float *x) {
    const h3f_video_vae_config *config = &decoder->config;
    const h3f_norm norm = {
        .rows = tile->rows * config->heads, .cols = config->head_dim, .eps = config->norm_eps};
    const h3f_rotary rotary = {.rows = tile->rows,
                               .stride = decoder->hidden,
                               .heads = config->heads,
                               .head_dim = config->head_dim,
                               .pairs = config->rope_dim / 2,
                               .cosine = tile->cosine,
                               .sine = tile->sine};
    H3F_TRY(h3f_rms_norm(decoder->ctx, &norm, x, x));
    return h3f_rotate(decoder->ctx, &rotary, x);
}

static int attend(const h3f_video_decoder *decoder, const h3f_video_tile *tile, float *q,
                  const float *k, const float *v) {
    const h3f_video_vae_config *config = &decoder->config;
    const h3f_attention attention = {.q_rows = tile->rows,
                                     .kv_rows = tile->rows,
                                     .heads = config->heads,
                                     .kv_heads = config->heads,
                                     .head_dim = config->head_dim,
                                     .scale = 1.0F / sqrtf((float)config->head_dim),
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .q_stride = decoder->hidden,
                                     .k_stride = decoder->hidden,
                                     .v_stride = decoder->hidden,
                                     .out_stride = decoder->hidden,
                                     .out = q};
    return h3f_attention_run(decoder->ctx, &attention);
}

static int add_scaled(const h3f_video_decoder *decoder, const h3f_video_tile *tile, int64_t row,
                      int64_t rows, const float *scale) {
    const int64_t hidden = decoder->hidden;
    for (int64_t i = 0; i < rows; i++)
        tile->scales[i] = scale;
    return h3f_add_gated(decoder->ctx, rows, hidden, tile->scales, tile->branch + row * hidden,
                         tile->x + row * hidden);
}

static int attention_branch(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                            int32_t i) {
    const h3f_video_layer *layer = &decoder->layers[i];
    const h3f_norm norm = {.rows = tile->rows,
                           .cols = decoder->hidden,
                           .weight = layer->norm1,
                           .eps = decoder->config.norm_eps};
    float *q = tile->work, *k = q + tile->rows * decoder->hidden, *v = k + (k - q);
    H3F_TRY(h3f_rms_norm(decoder->ctx, &norm, tile->x, tile->branch));
    H3F_TRY(linear(decoder, tile, &layer->qkv[0], tile->branch, tile->rows, q));
    H3F_TRY(linear(decoder, tile, &layer->qkv[1], tile->branch, tile->rows, k));
    H3F_TRY(linear(decoder, tile, &layer->qkv[2], tile->branch, tile->rows, v));
    H3F_TRY(norm_and_rotate(decoder, tile, q));
    H3F_TRY(norm_and_rotate(decoder, tile, k));
    H3F_TRY(attend(decoder, tile, q, k, v));
    H3F_TRY(linear(decoder, tile, &layer->attention_out, q, tile->rows, tile->branch));
    tap_layer(decoder, i, ".attn", 0, tile->rows, tile->rows, tile->branch);
    return add_scaled(decoder, tile, 0, tile->rows, layer->scale1);
}

static int feed_forward_branch(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                               int32_t i) {
    const h3f_video_layer *layer = &decoder->layers[i];
    const h3f_norm norm = {.rows = tile->rows,
                           .cols = decoder->hidden,
                           .weight = layer->norm2,
                           .eps = decoder->config.norm_eps};
    const int64_t ffn = decoder->config.ffn;
    float *gate = tile->work, *up = gate + tile->chunk * ffn;
    H3F_TRY(h3f_rms_norm(decoder->ctx, &norm, tile->x, tile->branch));
    for (int64_t row = 0; row < tile->rows; row += tile->chunk) {
        const int64_t left = tile->rows - row, rows = left < tile->chunk ? left : tile->chunk;
        float *part = tile->branch + row * decoder->hidden;
        H3F_TRY(linear(decoder, tile, &layer->gate_up[0], part, rows, gate));
        H3F_TRY(linear(decoder, tile, &layer->gate_up[1], part, rows, up));
        H3F_TRY(h3f_silu_mul(decoder->ctx, rows * ffn, gate, up));
        H3F_TRY(linear(decoder, tile, &layer->feed_forward_out, gate, rows, part));
        tap_layer(decoder, i, ".ff", row, rows, tile->rows, part);
        H3F_TRY(add_scaled(decoder, tile, row, rows, layer->scale2));
    }
    return H3F_OK;
}

static int run_layer(const h3f_video_decoder *decoder, const h3f_video_tile *tile, int32_t i) {
    H3F_TRY(attention_branch(decoder, tile, i));
    H3F_TRY(feed_forward_branch(decoder, tile, i));
    tap_layer(decoder, i, "", 0, tile->rows, tile->rows, tile->x);
    if (!h3f_all_finite(tile->x, tile->rows * decoder->hidden))
        return h3f_fail(decoder->ctx, H3F_ENUMERIC, "video VAE: NaN or infinity after block %d", i);
    return H3F_OK;
}

int h3f_video_decoder_run(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                          int64_t done, int64_t total) {
    const h3f_norm norm = {.rows = tile->rows,
                           .cols = decoder->hidden,
                           .weight = decoder->norm_out,
                           .bias = decoder->norm_out_bias,
                           .eps = decoder->config.norm_eps};
    H3F_TRY(embed(decoder, tile));
    for (int32_t i = 0; i < decoder->config.layers; i++) {
        H3F_TRY(run_layer(decoder, tile, i));
        h3f_progress(decoder->ctx, "video_vae", done + i + 1, total);
    }
    H3F_TRY(h3f_layer_norm(decoder->ctx, &norm, tile->x, tile->branch));
    h3f_tap(decoder->ctx, "norm_out", 0, tile->rows, tile->rows, decoder->hidden, tile->branch);
    return linear(decoder, tile, &decoder->proj_out, tile->branch, tile->tokens, tile->pixels);
}
