/* Finds the transformer's tensors and holds them against the config.
 * Names and shapes: docs/model.md, "Transformer". */
#include "dit.h"

#include <math.h>
#include <stdio.h>

/* ---- where vectors go ---- */

static h3f_block *layout_blocks(h3f_arena *arena, const h3f_block_shape *shape, int32_t count) {
    h3f_block uncounted;
    h3f_block *blocks = h3f_arena_take(arena, (size_t)count * sizeof *blocks);
    for (int32_t i = 0; i < count; i++)
        h3f_block_layout(arena, shape, blocks ? &blocks[i] : &uncounted);
    return blocks;
}

static void layout_vectors(h3f_arena *arena, h3f_dit *dit) {
    const h3f_dit_config *c = &dit->config;
    const int64_t modulation = (int64_t)H3F_TAGS * H3F_MODULATIONS * c->hidden;
    dit->refiner = layout_blocks(arena, &dit->refiner_shape, c->refiner_layers);
    dit->blocks = layout_blocks(arena, &dit->shape, c->layers);
    dit->adaln = h3f_arena_take(arena, (size_t)c->layers * sizeof *dit->adaln);
    for (int32_t i = 0; i < c->layers; i++) {
        const float *bias = h3f_take_floats(arena, modulation, 1);
        if (dit->adaln)
            dit->adaln[i].bias = bias;
    }
    dit->video_in.bias = h3f_take_floats(arena, c->hidden, 1);
    dit->audio_in.bias = h3f_take_floats(arena, c->hidden, 1);
    dit->text_in.bias = h3f_take_floats(arena, c->hidden, 1);
    dit->time_in.bias = h3f_take_floats(arena, c->time_hidden, 1);
    dit->time_out.bias = h3f_take_floats(arena, c->time_dim, 1);
    dit->refiner_norm = h3f_take_floats(arena, c->hidden, 1);
    dit->final_norm = h3f_take_floats(arena, c->hidden, 1);
    dit->final_adaln.bias = h3f_take_floats(arena, 2, c->hidden);
    dit->video_out.bias = h3f_take_floats(arena, c->video_dim, 1);
    dit->audio_out.bias = h3f_take_floats(arena, c->audio_dim, 1);
}

/* ---- what the file holds ---- */

/* <name>.weight and <name>.bias. The bias has its place already, const to all but the opener. */
static int read_linear(const h3f_checkpoint *checkpoint, int64_t rows, int64_t cols,
                       const char *name, h3f_linear *linear) {
    H3F_TRY(h3f_find_matrix(checkpoint, rows, cols, &linear->w, "%s.weight", name));
    union {
        const float *read;
        float *write;
    } bias = {linear->bias};
    return h3f_read_vector(checkpoint, rows, bias.write, "%s.bias", name);
}

static int read_block(const h3f_checkpoint *checkpoint, const h3f_block_shape *shape,
                      const char *list, int32_t i, h3f_block *block) {
    const int64_t hidden = shape->hidden, ffn = shape->ffn;
    const int64_t inner = (int64_t)shape->heads * shape->head_dim;
    h3f_mat qkv[3], gate_up[2];
    H3F_TRY(h3f_read_vector(checkpoint, hidden, block->norm1, "%s.%d.norm1.weight", list, i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, block->norm2, "%s.%d.norm2.weight", list, i));
    H3F_TRY(h3f_read_vector(checkpoint, shape->head_dim, block->q_norm, "%s.%d.attn.q_norm.weight",
                            list, i));
    H3F_TRY(h3f_read_vector(checkpoint, shape->head_dim, block->k_norm, "%s.%d.attn.k_norm.weight",
                            list, i));
    H3F_TRY(h3f_find_qkv(checkpoint, shape->heads, shape->head_dim, hidden, qkv, NULL, "%s.%d.attn",
                         list, i));
    H3F_TRY(h3f_find_matrix(checkpoint, hidden, inner, &block->out.w, "%s.%d.attn.out_proj.weight",
                            list, i));
    H3F_TRY(h3f_find_gate_up(checkpoint, ffn, hidden, gate_up, NULL, "%s.%d.mlp.fc1", list, i));
    H3F_TRY(
        h3f_find_matrix(checkpoint, hidden, ffn, &block->down.w, "%s.%d.mlp.fc2.weight", list, i));
    block->q.w = qkv[0];
    block->k.w = qkv[1];
    block->v.w = qkv[2];
    block->gate.w = gate_up[0];
    block->up.w = gate_up[1];
    return H3F_OK;
}

static int read_ends(const h3f_checkpoint *checkpoint, h3f_dit *dit) {
    const h3f_dit_config *c = &dit->config;
    const int64_t hidden = c->hidden;
    H3F_TRY(read_linear(checkpoint, hidden, c->video_dim, "video_patch_proj", &dit->video_in));
    H3F_TRY(read_linear(checkpoint, hidden, c->audio_dim, "audio_patch_proj", &dit->audio_in));
    H3F_TRY(read_linear(checkpoint, hidden, c->text_dim, "condition_proj", &dit->text_in));
    H3F_TRY(read_linear(checkpoint, c->time_hidden, c->freq_dim, "time_embedder.proj_in",
                        &dit->time_in));
    H3F_TRY(read_linear(checkpoint, c->time_dim, c->time_hidden, "time_embedder.proj_out",
                        &dit->time_out));
    H3F_TRY(
        h3f_read_vector(checkpoint, hidden, dit->refiner_norm, "token_refiner.final_norm.weight"));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, dit->final_norm, "final_layer.norm.weight"));
    H3F_TRY(read_linear(checkpoint, 2 * hidden, c->time_dim, "final_layer.adaln_proj.linear",
                        &dit->final_adaln));
    H3F_TRY(
        read_linear(checkpoint, c->video_dim, hidden, "final_layer.video_out", &dit->video_out));
    return read_linear(checkpoint, c->audio_dim, hidden, "final_layer.audio_out", &dit->audio_out);
}

/* A config that names fewer blocks than the file has would render noise without a word. */
static int check_block_count(const h3f_checkpoint *checkpoint, const h3f_dit *dit, const char *list,
                             int32_t count) {
    char name[64];
    h3f_tensor extra;
    snprintf(name, sizeof name, "%s.%d.norm1.weight", list, count);
    if (!h3f_checkpoint_has(checkpoint, name))
        return H3F_OK;
    H3F_TRY(h3f_checkpoint_find(checkpoint, name, &extra));
    return h3f_fail(dit->ctx, H3F_ETENSOR,
                    "%s: the config has %d of '%s', the file also holds '%s'", extra.file, count,
                    list, name);
}

static int read_blocks(const h3f_checkpoint *checkpoint, h3f_dit *dit) {
    const h3f_dit_config *c = &dit->config;
    H3F_TRY(check_block_count(checkpoint, dit, "token_refiner.blocks", c->refiner_layers));
    H3F_TRY(check_block_count(checkpoint, dit, "blocks", c->layers));
    for (int32_t i = 0; i < c->refiner_layers; i++)
        H3F_TRY(read_block(checkpoint, &dit->refiner_shape, "token_refiner.blocks", i,
                           &dit->refiner[i]));
    for (int32_t i = 0; i < c->layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blocks.%d.adaln_proj.linear", i);
        H3F_TRY(read_block(checkpoint, &dit->shape, "blocks", i, &dit->blocks[i]));
        H3F_TRY(read_linear(checkpoint, (int64_t)H3F_TAGS * H3F_MODULATIONS * c->hidden,
                            c->time_dim, name, &dit->adaln[i]));
    }
    return H3F_OK;
}

/* The frequencies are computed from the config; a file that has its own must have the same. */
static int check_frequencies(const h3f_checkpoint *checkpoint, const h3f_dit *dit) {
    static const char name[] = "rope.inv_freq";
    const int32_t count = dit->config.rope_freqs;
    if (!h3f_checkpoint_has(checkpoint, name))
        return H3F_OK;
    float *stored = h3f_alloc(dit->ctx, (size_t)count * sizeof *stored, "rotary frequencies");
    if (!stored)
        return H3F_ENOMEM;
    int code = h3f_read_vector(checkpoint, count, stored, name);
    for (int32_t i = 0; i < count && code == H3F_OK; i++) {
        const double wanted = pow(dit->config.rope_theta, -(double)i / count);
        if (!(fabs(stored[i] - wanted) <= 0.01 * wanted)) /* a rounding to bf16 is half of that */
            code = h3f_fail(dit->ctx, H3F_ETENSOR,
                            "transformer: value %d of '%s' is %g, the config's rope_theta gives %g",
                            i, name, (double)stored[i], wanted);
    }
    h3f_free(dit->ctx, stored);
    return code;
}

static int check_config(h3f_context *ctx, const h3f_dit_config *c) {
    const h3f_field fields[] = {
        {"hidden", c->hidden, 1, 1 << 20},
        {"layers", c->layers, 0, 65536},
        {"refiner_layers", c->refiner_layers, 0, 65536},
        {"heads", c->heads, 1, 65536},
        {"head_dim", c->head_dim, 1, 65536},
        {"ffn", c->ffn, 1, 1 << 24},
        {"video_dim", c->video_dim, 1, 1 << 20},
        {"audio_dim", c->audio_dim, 1, 1 << 20},
        {"text_dim", c->text_dim, 1, 1 << 20},
        {"freq_dim", c->freq_dim, 2, 1 << 20},
        {"time_hidden", c->time_hidden, 1, 1 << 20},
        {"time_dim", c->time_dim, 1, 1 << 20},
    };
    H3F_TRY(h3f_check_fields(ctx, "transformer", fields, sizeof fields / sizeof *fields));
    if (c->freq_dim % 2 != 0)
        return h3f_fail(ctx, H3F_EINVAL, "transformer: freq_dim is %d, expected an even number",
                        c->freq_dim);
    if (c->rope_freqs < 1 || 6 * (int64_t)c->rope_freqs > c->head_dim)
        return h3f_fail(ctx, H3F_EINVAL,
                        "transformer: %d rotary frequencies an axis do not fit a head of %d",
                        c->rope_freqs, c->head_dim);
    if (!(c->rope_theta > 0) || !(c->norm_eps >= 0) || !(c->qk_norm_eps >= 0) ||
        !(c->final_norm_eps >= 0))
        return h3f_fail(ctx, H3F_EINVAL,
                        "transformer: rope_theta is %g, the norms' eps %g, %g and %g, expected "
                        "positive numbers",
                        c->rope_theta, (double)c->norm_eps, (double)c->qk_norm_eps,
                        (double)c->final_norm_eps);
    return H3F_OK;
}

static int open_weights(const h3f_checkpoint *checkpoint, h3f_dit *dit) {
    layout_vectors(&dit->vectors, dit);
    H3F_TRY(h3f_arena_reserve(dit->ctx, &dit->vectors, "the transformer's vectors"));
    layout_vectors(&dit->vectors, dit);
    H3F_TRY(check_frequencies(checkpoint, dit));
    H3F_TRY(read_ends(checkpoint, dit));
    return read_blocks(checkpoint, dit);
}

int h3f_dit_open(h3f_context *ctx, const h3f_checkpoint *checkpoint, const h3f_dit_config *config,
                 h3f_dit **dit) {
    H3F_TRY(check_config(ctx, config));
    h3f_dit *opened = h3f_alloc(ctx, sizeof *opened, "the transformer");
    if (!opened)
        return H3F_ENOMEM;
    opened->ctx = ctx;
    opened->config = *config;
    opened->shape = (h3f_block_shape){.hidden = config->hidden,
                                      .ffn = config->ffn,
                                      .heads = config->heads,
                                      .kv_heads = config->heads,
                                      .head_dim = config->head_dim,
                                      .pairs = 3 * config->rope_freqs,
                                      .norm_eps = config->norm_eps,
                                      .qk_norm_eps = config->qk_norm_eps};
    opened->refiner_shape = opened->shape;
    opened->refiner_shape.pairs = 0;
    const int code = open_weights(checkpoint, opened);
    if (code != H3F_OK) {
        h3f_dit_close(opened);
        return code;
    }
    *dit = opened;
    return H3F_OK;
}

void h3f_dit_close(h3f_dit *dit) {
    if (!dit)
        return;
    h3f_arena_release(dit->ctx, &dit->vectors);
    h3f_free(dit->ctx, dit);
}
