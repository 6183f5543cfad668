/* block: the transformer block that text encoder, token refiner and DiT share.
 *
 *     n = modulate(rms(x));  q, k, v = W n;  q, k = rope(rms(q)), rope(rms(k))
 *     x += gate * Wo attention(q, k, v)
 *     n = modulate(rms(x));  x += gate * Wd (silu(Wg n) * Wu n)
 *
 * Modulation and rotation are optional. Memory: only keys and values exist for all rows at once. They are
 * made in a first pass over chunks of rows; the second pass takes each chunk through everything else in
 * place, which is right because all but attention is local to a row. The norm is computed twice, which
 * is cheap beside keeping it. What a row becomes does not depend on the chunk it is in. */
#ifndef H3F_BLOCK_H
#define H3F_BLOCK_H

#include "arena.h"
#include "checkpoint.h"

typedef struct h3f_block_shape {
    int64_t hidden, ffn;
    int32_t heads, kv_heads, head_dim;
    int32_t pairs; /* rotated pairs of a head; 0: no rotation */
    bool causal;
    float norm_eps, qk_norm_eps;
} h3f_block_shape;

/* Matrices are views into the mapping, vectors are the owner's. */
typedef struct h3f_block {
    float *norm1, *norm2;   /* [hidden] */
    float *q_norm, *k_norm; /* [head_dim] */
    h3f_linear q, k, v, out, gate, up, down;
} h3f_block;

void h3f_block_layout(h3f_arena *arena, const h3f_block_shape *shape, h3f_block *block);

/* The order of the vectors in a row's modulation, [6][hidden]. */
enum { H3F_SHIFT1, H3F_SCALE1, H3F_GATE1, H3F_SHIFT2, H3F_SCALE2, H3F_GATE2, H3F_MODULATIONS };

typedef struct h3f_block_buffers {
    int64_t rows, chunk;
    float *k, *v;       /* [rows, kv_heads * head_dim] */
    float *n;           /* [chunk, hidden] */
    float *q;           /* [chunk, heads * head_dim], overlaid by gate and up [chunk, ffn] */
    float *gate, *up;
    const float **rows_of[H3F_MODULATIONS]; /* [chunk] pointers into a row's modulation */
    void *scratch;
} h3f_block_buffers;

void h3f_block_buffers_layout(h3f_arena *arena, const h3f_block_shape *shape, int64_t rows,
                              h3f_block_buffers *buffers);

/* One pass of the rows through a block. */
typedef struct h3f_block_pass {
    const h3f_block_shape *shape;
    const h3f_block *block;
    const h3f_block_buffers *buffers;
    const float *cosine, *sine;     /* [rows, pairs] or NULL */
    const float *const *modulation; /* [rows] pointers to [6][hidden], or NULL */
    const char *taps;               /* prefix of the inner taps' names, or NULL for none */
    const char *what;               /* for messages: "transformer block 7" */
} h3f_block_pass;

/* x: [rows, hidden], in place. H3F_ENUMERIC when the result is not finite. */
int h3f_block_run(h3f_context *ctx, const h3f_block_pass *pass, float *x);

#endif
