/* kernels: the inner loops, a plain and a fast twin of each, chosen once per context.
 *
 * Activations are f32, row-major, one row a token. Weights are read in their stored type (f32, f16,
 * bf16) and widened on the way into the cache; sums are f32. Every output element is summed in an order
 * that depends on the shapes alone. */
#ifndef H3F_KERNELS_H
#define H3F_KERNELS_H

#include "context.h"

/* A weight matrix in the mapping, or a part of one. Row r begins
 *     ((r / group) * group_stride + r % group) * cols
 * elements after `data`: a plain matrix has group == rows; the q of a per-head interleaved q|k|v matrix has
 * group = head_dim, group_stride = 3 * head_dim. `data` need not be aligned. */
typedef struct h3f_mat {
    const void *data;
    int32_t dtype; /* H3F_F32, H3F_F16, H3F_BF16 */
    int64_t rows, cols;
    int64_t group, group_stride;
} h3f_mat;

/* y = x w^T + bias. bias: [w.rows] f32 or NULL. */
typedef struct h3f_linear {
    h3f_mat w;
    const float *bias;
} h3f_linear;

/* x: [m, w.cols], y: m rows of w.rows values, ldy apart. x and y must not overlap.
 * scratch: h3f_linear_scratch bytes, 64-byte aligned. Polls the cancel flag between tiles. */
size_t h3f_linear_scratch(int64_t m, int64_t cols);
int h3f_linear_run(h3f_context *ctx, const h3f_linear *linear, const float *x, int64_t m, float *y,
                   int64_t ldy, void *scratch);

/* Softmax attention, tiled: memory does not grow with the square of the rows.
 * q: [q_rows, heads, head_dim], k, v: [kv_rows, kv_heads, head_dim], rows *_stride values apart;
 * out like q. Head h reads kv head h / (heads / kv_heads). With `causal`, query row i sees the keys
 * 0 .. q_first + i. out may be q. */
typedef struct h3f_attention {
    int64_t q_rows, kv_rows, q_first;
    int32_t heads, kv_heads, head_dim;
    bool causal;
    float scale;
    const float *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, out_stride;
    float *out;
} h3f_attention;
int h3f_attention_run(h3f_context *ctx, const h3f_attention *attention);

/* The functions below split rows over the threads; out may be in unless it says otherwise. */

/* out = x / sqrt(mean(x^2) + eps) * weight, per row of `cols`; weight NULL: 1. Rows *_stride apart.
 * With heads, use rows = tokens * heads and cols = head_dim. */
typedef struct h3f_norm {
    int64_t rows, cols;
    const float *weight, *bias; /* [cols] or NULL; bias with h3f_layer_norm only */
    float eps;
} h3f_norm;
int h3f_rms_norm(h3f_context *ctx, const h3f_norm *norm, const float *x, float *out);
int h3f_layer_norm(h3f_context *ctx, const h3f_norm *norm, const float *x, float *out);

/* Rotates pairs (j, j + pairs), j < pairs, of every head: x[j] = x[j] cos - x[j+pairs] sin,
 * x[j+pairs] = x[j+pairs] cos + x[j] sin. x: [rows, heads, head_dim], rows `stride` apart, in place;
 * cosine, sine: [rows, pairs]. Channels from 2 * pairs on are untouched. */
typedef struct h3f_rotary {
    int64_t rows, stride;
    int32_t heads, head_dim, pairs;
    const float *cosine, *sine;
} h3f_rotary;
int h3f_rotate(h3f_context *ctx, const h3f_rotary *rotary, float *x);

/* out = x * (1 + scale[r]) + shift[r]; scale, shift: one pointer to `cols` values per row. */
int h3f_modulate(h3f_context *ctx, int64_t rows, int64_t cols, const float *x,
                 const float *const *shift, const float *const *scale, float *out);
/* x += gate[r] * branch, gate as above; gate NULL: x += branch. */
int h3f_add_gated(h3f_context *ctx, int64_t rows, int64_t cols, const float *const *gate,
                  const float *branch, float *x);
/* gate = silu(gate) * up. */
int h3f_silu_mul(h3f_context *ctx, int64_t count, float *gate, const float *up);
int h3f_silu(h3f_context *ctx, int64_t count, const float *x, float *out);
/* True when all of x is finite. */
bool h3f_all_finite(const float *x, int64_t count);

/* Bytes of one element of an h3f_dtype. */
size_t h3f_dtype_size(int32_t dtype);
const char *h3f_dtype_word(int32_t dtype); /* "BF16": as safetensors spells it */
float h3f_f16_to_f32(uint16_t half);
/* Widen `count` values of a stored type (f32, f16 or bf16, not aligned). */
void h3f_widen(int32_t dtype, const void *source, int64_t count, float *out);

static inline float h3f_bf16_to_f32(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } u = {(uint32_t)half << 16};
    return u.value;
}

#endif
