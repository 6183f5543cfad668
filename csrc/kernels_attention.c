#include "kernels_table.h"
#include "pool.h"

#include <math.h>

enum { QUERY_ROWS = 64 };

typedef struct attention {
    h3f_context *ctx;
    const h3f_attention *a;
    int64_t tiles;
} attention;

/* ---- scalar ---- */

/* One query row of one head. scores: [kv_rows], sums: [head_dim]. */
static void attend_row_ref(const h3f_attention *a, int64_t row, int32_t head, float *scores, float *sums) {
    int64_t offset = (int64_t)head * a->head_dim;
    int64_t kv_offset = (int64_t)(head / (a->heads / a->kv_heads)) * a->head_dim;
    int64_t keys = a->causal && a->q_first + row + 1 < a->kv_rows ? a->q_first + row + 1 : a->kv_rows;
    const float *q = a->q + row * a->q_stride + offset;
    float most = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; j++) {
        const float *k = a->k + j * a->k_stride + kv_offset;
        float dot = 0;
        for (int32_t d = 0; d < a->head_dim; d++)
            dot += q[d] * k[d];
        scores[j] = dot * a->scale;
        most = scores[j] > most ? scores[j] : most;
    }
    for (int32_t d = 0; d < a->head_dim; d++)
        sums[d] = 0;
    for (int64_t j = 0; j < keys; j++) {
        const float *v = a->v + j * a->v_stride + kv_offset;
        float p = expf(scores[j] - most);
        total += p;
        for (int32_t d = 0; d < a->head_dim; d++)
            sums[d] += p * v[d];
    }
    for (int32_t d = 0; d < a->head_dim; d++)
        a->out[row * a->out_stride + offset + d] = sums[d] / total;
}

static void attend_tile_ref(void *argument, int64_t item, void *scratch) {
    const attention *job = argument;
    const h3f_attention *a = job->a;
    int64_t first = item % job->tiles * QUERY_ROWS;
    int64_t end = a->q_rows - first < QUERY_ROWS ? a->q_rows : first + QUERY_ROWS;
    float *sums = scratch, *scores = sums + a->head_dim;
    for (int64_t row = first; row < end && !h3f_cancelled(job->ctx); row++)
        attend_row_ref(a, row, (int32_t)(item / job->tiles), scores, sums);
}

int h3f_attention_run(h3f_context *ctx, const h3f_attention *a) {
    attention job = {.ctx = ctx, .a = a, .tiles = (a->q_rows + QUERY_ROWS - 1) / QUERY_ROWS};
    size_t scratch = ((size_t)a->kv_rows + (size_t)a->head_dim) * sizeof(float);
    return h3f_pool_run(ctx, job.tiles * a->heads, scratch, attend_tile_ref, &job);
}
