/* block_reference: the transformer block as the formulas of docs/model.md say it, in double
 * precision, all rows at once. */
#ifndef H3F_TEST_BLOCK_REFERENCE_H
#define H3F_TEST_BLOCK_REFERENCE_H

#include "block.h"
#include "harness.h"

#include <math.h>
#include <stdlib.h>

static inline double *r_room(int64_t count) {
    double *room = calloc((size_t)count + 1, sizeof *room);
    CHECK(room);
    return room;
}

/* y = x w^T + bias; bias may be NULL. */
static inline void r_linear(const double *x, int64_t rows, int64_t cols, const float *w,
                            const float *bias, int64_t outputs, double *y) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias ? (double)bias[o] : 0;
            for (int64_t c = 0; c < cols; c++)
                sum += x[i * cols + c] * (double)w[o * cols + c];
            y[i * outputs + o] = sum;
        }
}

static inline void r_rms_norm(const double *x, int64_t rows, int64_t cols, const float *weight,
                              double eps, double *y) {
    for (int64_t i = 0; i < rows; i++) {
        double squares = 0;
        for (int64_t c = 0; c < cols; c++)
            squares += x[i * cols + c] * x[i * cols + c];
        for (int64_t c = 0; c < cols; c++)
            y[i * cols + c] =
                x[i * cols + c] / sqrt(squares / (double)cols + eps) * (double)weight[c];
    }
}

static inline double r_silu(double x) {
    return x / (1 + exp(-x));
}

/* A row's part of its modulation; NULL: no modulation. */
typedef const double *const *r_modulation;

static inline void r_modulate(const h3f_block_shape *shape, int64_t rows, r_modulation modulation,
                              int shift, double *x) {
    for (int64_t i = 0; modulation && i < rows; i++)
        for (int64_t c = 0; c < shape->hidden; c++) {
            const double *row = modulation[i] + shift * shape->hidden + c;
            x[i * shape->hidden + c] = x[i * shape->hidden + c] * (1 + row[shape->hidden]) + row[0];
        }
}

static inline void r_add(const h3f_block_shape *shape, int64_t rows, r_modulation modulation,
                         int gate, const double *branch, double *x) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < shape->hidden; c++) {
            const int64_t at = i * shape->hidden + c;
            x[at] += branch[at] * (modulation ? modulation[i][gate * shape->hidden + c] : 1);
        }
}

static inline void r_rotate(const h3f_block_shape *shape, int64_t rows, int32_t heads,
                            const double *angles, double *x) {
    for (int64_t i = 0; i < rows * heads; i++)
        for (int32_t j = 0; j < shape->pairs; j++) {
            const double angle = angles[i / heads * shape->pairs + j];
            double *low = x + i * shape->head_dim + j, *high = low + shape->pairs;
            const double turned = *low * cos(angle) - *high * sin(angle);
            *high = *high * cos(angle) + *low * sin(angle);
            *low = turned;
        }
}

/* One query of one head; scores: [rows]. */
static inline void r_attend(const h3f_block_shape *shape, int64_t rows, int64_t row, int32_t head,
                            const double *q, const double *k, const double *v, double *scores,
                            double *out) {
    const int64_t size = shape->head_dim, kv_stride = shape->kv_heads * size;
    const int64_t keys = shape->causal ? row + 1 : rows;
    const double *query = q + (row * shape->heads + head) * size;
    const int64_t kv_head = head / (shape->heads / shape->kv_heads) * size;
    double total = 0, most = -INFINITY;
    for (int64_t i = 0; i < keys; i++) {
        scores[i] = 0;
        for (int64_t c = 0; c < size; c++)
            scores[i] += query[c] * k[i * kv_stride + kv_head + c] / sqrt((double)size);
        most = fmax(most, scores[i]);
    }
    for (int64_t i = 0; i < keys; i++)
        total += scores[i] = exp(scores[i] - most);
    for (int64_t c = 0; c < size; c++) {
        double sum = 0;
        for (int64_t i = 0; i < keys; i++)
            sum += scores[i] * v[i * kv_stride + kv_head + c];
        out[(row * shape->heads + head) * size + c] = sum / total;
    }
}

/* The weights, f32 and plain: [out, in]. */
typedef struct r_block {
    const float *norm1, *norm2, *q_norm, *k_norm;
    const float *q, *k, *v, *out, *gate, *up, *down;
} r_block;

static inline void r_attention(const h3f_block_shape *shape, const r_block *block, int64_t rows,
                               const double *n, const double *angles, double *branch) {
    const int64_t inner = (int64_t)shape->heads * shape->head_dim;
    const int64_t kv_inner = (int64_t)shape->kv_heads * shape->head_dim;
    const double eps = (double)shape->qk_norm_eps;
    double *q = r_room(rows * inner), *k = r_room(rows * kv_inner), *v = r_room(rows * kv_inner);
    double *mixed = r_room(rows * inner), *scores = r_room(rows);
    r_linear(n, rows, shape->hidden, block->q, NULL, inner, q);
    r_linear(n, rows, shape->hidden, block->k, NULL, kv_inner, k);
    r_linear(n, rows, shape->hidden, block->v, NULL, kv_inner, v);
    r_rms_norm(q, rows * shape->heads, shape->head_dim, block->q_norm, eps, q);
    r_rms_norm(k, rows * shape->kv_heads, shape->head_dim, block->k_norm, eps, k);
    if (angles) {
        r_rotate(shape, rows, shape->heads, angles, q);
        r_rotate(shape, rows, shape->kv_heads, angles, k);
    }
    for (int64_t row = 0; row < rows; row++)
        for (int32_t head = 0; head < shape->heads; head++)
            r_attend(shape, rows, row, head, q, k, v, scores, mixed);
    r_linear(mixed, rows, inner, block->out, NULL, shape->hidden, branch);
    free(q);
    free(k);
    free(v);
    free(mixed);
    free(scores);
}

static inline void r_feed_forward(const h3f_block_shape *shape, const r_block *block, int64_t rows,
                                  const double *n, double *branch) {
    double *gate = r_room(rows * shape->ffn), *up = r_room(rows * shape->ffn);
    r_linear(n, rows, shape->hidden, block->gate, NULL, shape->ffn, gate);
    r_linear(n, rows, shape->hidden, block->up, NULL, shape->ffn, up);
    for (int64_t i = 0; i < rows * shape->ffn; i++)
        gate[i] = r_silu(gate[i]) * up[i];
    r_linear(gate, rows, shape->ffn, block->down, NULL, shape->hidden, branch);
    free(gate);
    free(up);
}

/* x: [rows, hidden], in place; angles: [rows, pairs] or NULL. */
static inline void r_block_run(const h3f_block_shape *shape, const r_block *block, int64_t rows,
                               const double *angles, r_modulation modulation, double *x) {
    const double eps = (double)shape->norm_eps;
    double *n = r_room(rows * shape->hidden), *branch = r_room(rows * shape->hidden);
    r_rms_norm(x, rows, shape->hidden, block->norm1, eps, n);
    r_modulate(shape, rows, modulation, H3F_SHIFT1, n);
    r_attention(shape, block, rows, n, angles, branch);
    r_add(shape, rows, modulation, H3F_GATE1, branch, x);
    r_rms_norm(x, rows, shape->hidden, block->norm2, eps, n);
    r_modulate(shape, rows, modulation, H3F_SHIFT2, n);
    r_feed_forward(shape, block, rows, n, branch);
    r_add(shape, rows, modulation, H3F_GATE2, branch, x);
    free(n);
    free(branch);
}

/* Largest |actual - expected| / (1 + |expected|). */
static inline double r_difference(const float *actual, const double *expected, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs((double)actual[i] - expected[i]) / (1 + fabs(expected[i]));
        worst = d <= worst ? worst : d;
    }
    return worst;
}

#endif
