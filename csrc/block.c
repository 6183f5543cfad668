#include "block.h"

#include <math.h>
#include <stdio.h>

/* Rows of a chunk. Enough that reading a block's weights again for each chunk costs little beside
 * the arithmetic (2 x 1024 operations a weight), few enough that a chunk of the release's
 * feed-forward stays near 0.2 GB. */
enum { CHUNK = 1024 };

void h3f_block_layout(h3f_arena *arena, const h3f_block_shape *shape, h3f_block *block) {
    block->norm1 = h3f_take_floats(arena, shape->hidden, 1);
    block->norm2 = h3f_take_floats(arena, shape->hidden, 1);
    block->q_norm = h3f_take_floats(arena, shape->head_dim, 1);
    block->k_norm = h3f_take_floats(arena, shape->head_dim, 1);
}

void h3f_block_buffers_layout(h3f_arena *arena, const h3f_block_shape *shape, int64_t rows,
                              h3f_block_buffers *buffers) {
    const int64_t chunk = h3f_min(rows, CHUNK);
    const int64_t inner = (int64_t)shape->heads * shape->head_dim;
    const int64_t kv_inner = (int64_t)shape->kv_heads * shape->head_dim;
    const int64_t widest = h3f_max(shape->hidden, h3f_max(inner, shape->ffn));
    buffers->rows = rows;
    buffers->chunk = chunk;
    buffers->k = h3f_take_floats(arena, rows, kv_inner);
    buffers->v = h3f_take_floats(arena, rows, kv_inner);
    buffers->n = h3f_take_floats(arena, chunk, shape->hidden);
    buffers->q = h3f_take_floats(arena, chunk, h3f_max(inner, 2 * shape->ffn));
    buffers->gate = buffers->q;
    buffers->up = buffers->q ? buffers->q + chunk * shape->ffn : NULL;
    for (int i = 0; i < H3F_MODULATIONS; i++)
        buffers->rows_of[i] = h3f_arena_take(arena, (size_t)chunk * sizeof *buffers->rows_of[i]);
    buffers->scratch = h3f_arena_take(arena, h3f_linear_scratch(chunk, widest));
}

/* A chunk of rows on its way through a block. */
typedef struct chunk {
    h3f_context *ctx;
    const h3f_block_pass *pass;
    int64_t first, rows;
    float *x; /* [rows, hidden] */
} chunk;

static void tap(const chunk *c, const char *part, const float *data) {
    char name[64];
    if (!c->ctx->tap || !c->pass->taps)
        return;
    snprintf(name, sizeof name, "%s.%s", c->pass->taps, part);
    h3f_tap(c->ctx, name, c->first, c->rows, c->pass->buffers->rows, c->pass->shape->hidden, data);
}

static int linear(const chunk *c, const h3f_linear *weights, const float *x, float *y) {
    return h3f_linear_run(c->ctx, weights, x, c->rows, y, weights->w.rows,
                          c->pass->buffers->scratch);
}

/* n = modulate(rms(x)) with the shift, scale pair that begins at `shift`. */
static int norm_modulated(const chunk *c, const float *weight, int shift) {
    const h3f_block_buffers *b = c->pass->buffers;
    const h3f_norm norm = {.rows = c->rows,
                           .cols = c->pass->shape->hidden,
                           .weight = weight,
                           .eps = c->pass->shape->norm_eps};
    H3F_TRY(h3f_rms_norm(c->ctx, &norm, c->x, b->n));
    if (!c->pass->modulation)
        return H3F_OK;
    return h3f_modulate(c->ctx, c->rows, c->pass->shape->hidden, b->n, b->rows_of[shift],
                        b->rows_of[shift + 1], b->n);
}

static int add_branch(const chunk *c, int gate) {
    const h3f_block_buffers *b = c->pass->buffers;
    return h3f_add_gated(c->ctx, c->rows, c->pass->shape->hidden,
                         c->pass->modulation ? b->rows_of[gate] : NULL, b->n, c->x);
}

static int norm_and_rotate(const chunk *c, int32_t heads, const float *weight, float *x) {
    const h3f_block_shape *shape = c->pass->shape;
    const h3f_norm norm = {.rows = c->rows * heads,
                           .cols = shape->head_dim,
                           .weight = weight,
                           .eps = shape->qk_norm_eps};
    H3F_TRY(h3f_rms_norm(c->ctx, &norm, x, x));
    if (!c->pass->cosine)
        return H3F_OK;
    const h3f_rotary rotary = {.rows = c->rows,
                               .stride = (int64_t)heads * shape->head_dim,
                               .heads = heads,
                               .head_dim = shape->head_dim,
                               .pairs = shape->pairs,
                               .cosine = c->pass->cosine + c->first * shape->pairs,
                               .sine = c->pass->sine + c->first * shape->pairs};
    return h3f_rotate(c->ctx, &rotary, x);
}

static int keys_and_values(const chunk *c) {
    const h3f_block *block = c->pass->block;
    const h3f_block_shape *shape = c->pass->shape;
    const int64_t offset = c->first * shape->kv_heads * shape->head_dim;
    float *k = c->pass->buffers->k + offset, *v = c->pass->buffers->v + offset;
    H3F_TRY(norm_modulated(c, block->norm1, H3F_SHIFT1));
    H3F_TRY(linear(c, &block->k, c->pass->buffers->n, k));
    H3F_TRY(linear(c, &block->v, c->pass->buffers->n, v));
    return norm_and_rotate(c, shape->kv_heads, block->k_norm, k);
}

static int attend(const chunk *c) {
    const h3f_block_shape *shape = c->pass->shape;
    const h3f_block_buffers *b = c->pass->buffers;
    const int64_t inner = (int64_t)shape->heads * shape->head_dim;
    const int64_t kv_inner = (int64_t)shape->kv_heads * shape->head_dim;
    const h3f_attention attention = {.q_rows = c->rows,
                                     .kv_rows = b->rows,
                                     .q_first = c->first,
                                     .heads = shape->heads,
                                     .kv_heads = shape->kv_heads,
                                     .head_dim = shape->head_dim,
                                     .causal = shape->causal,
                                     .scale = 1.0F / sqrtf((float)shape->head_dim),
                                     .q = b->q,
                                     .k = b->k,
                                     .v = b->v,
                                     .q_stride = inner,
                                     .k_stride = kv_inner,
                                     .v_stride = kv_inner,
                                     .out_stride = inner,
                                     .out = b->q};
    return h3f_attention_run(c->ctx, &attention);
}

static int attention_branch(const chunk *c) {
    const h3f_block *block = c->pass->block;
    const h3f_block_buffers *b = c->pass->buffers;
    H3F_TRY(norm_modulated(c, block->norm1, H3F_SHIFT1));
    tap(c, "attn_input", b->n);
    H3F_TRY(linear(c, &block->q, b->n, b->q));
    H3F_TRY(norm_and_rotate(c, c->pass->shape->heads, block->q_norm, b->q));
    H3F_TRY(attend(c));
    H3F_TRY(linear(c, &block->out, b->q, b->n));
    tap(c, "attn", b->n);
    return add_branch(c, H3F_GATE1);
}

static int feed_forward_branch(const chunk *c) {
    const h3f_block *block = c->pass->block;
    const h3f_block_buffers *b = c->pass->buffers;
    H3F_TRY(norm_modulated(c, block->norm2, H3F_SHIFT2));
    tap(c, "ff_input", b->n);
    H3F_TRY(linear(c, &block->gate, b->n, b->gate));
    H3F_TRY(linear(c, &block->up, b->n, b->up));
    H3F_TRY(h3f_silu_mul(c->ctx, c->rows * c->pass->shape->ffn, b->gate, b->up));
    H3F_TRY(linear(c, &block->down, b->gate, b->n));
    tap(c, "ff", b->n);
    return add_branch(c, H3F_GATE2);
}

/* The unmodulated norm exists nowhere in the calculation: made for the tap alone. */
static int tap_norm1(const chunk *c) {
    const h3f_norm norm = {.rows = c->rows,
                           .cols = c->pass->shape->hidden,
                           .weight = c->pass->block->norm1,
                           .eps = c->pass->shape->norm_eps};
    if (!c->ctx->tap || !c->pass->taps)
        return H3F_OK;
    H3F_TRY(h3f_rms_norm(c->ctx, &norm, c->x, c->pass->buffers->n));
    tap(c, "norm1", c->pass->buffers->n);
    return H3F_OK;
}

static int rest_of_block(const chunk *c) {
    H3F_TRY(tap_norm1(c));
    H3F_TRY(attention_branch(c));
    H3F_TRY(feed_forward_branch(c));
    if (!h3f_all_finite(c->x, c->rows * c->pass->shape->hidden))
        return h3f_fail(c->ctx, H3F_ENUMERIC, "NaN or infinity after %s", c->pass->what);
    return H3F_OK;
}

static void point_at_modulation(const chunk *c) {
    for (int64_t i = 0; i < c->rows && c->pass->modulation; i++)
        for (int part = 0; part < H3F_MODULATIONS; part++)
            c->pass->buffers->rows_of[part][i] =
                c->pass->modulation[c->first + i] + part * c->pass->shape->hidden;
}

static int each_chunk(h3f_context *ctx, const h3f_block_pass *pass, float *x,
                      int (*step)(const chunk *)) {
    const int64_t rows = pass->buffers->rows, size = pass->buffers->chunk;
    for (int64_t first = 0; first < rows; first += size) {
        const chunk c = {.ctx = ctx,
                         .pass = pass,
                         .first = first,
                         .rows = h3f_min(size, rows - first),
                         .x = x + first * pass->shape->hidden};
        point_at_modulation(&c);
        H3F_TRY(step(&c));
    }
    return H3F_OK;
}

int h3f_block_run(h3f_context *ctx, const h3f_block_pass *pass, float *x) {
    H3F_TRY(each_chunk(ctx, pass, x, keys_and_values));
    return each_chunk(ctx, pass, x, rest_of_block);
}
