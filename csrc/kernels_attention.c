/* Attention in tiles, softmax on the way.
 *
 * A tile of keys meets a tile of queries as a matrix product, transposed: scores are [key][query],
 * queries lie in the lanes. Largest score, sum and rescaling are then vertical, and the
 * probabilities already have the layout that the second product, V^T by P, wants. Tiles of keys
 * begin at fixed places, so a query's bits do not depend on the queries it came with. */
#include "kernels_exp.h"
#include "pool.h"

#include <assert.h>
#include <math.h>

/* ---- scalar ---- */

/* One query row of one head. scores: [kv_rows], sums: [head_dim]. */
static void attend_row_ref(const h3f_attention *a, int64_t row, int32_t head, float *scores,
                           float *sums) {
    int64_t offset = (int64_t)head * a->head_dim;
    int64_t kv_offset = (int64_t)(head / (a->heads / a->kv_heads)) * a->head_dim;
    int64_t seen = a->q_first + row + 1;
    int64_t keys = a->causal && seen < a->kv_rows ? seen : a->kv_rows;
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

/* ---- vectorised: the softmax of a tile ---- */

H3F_INLINE void softmax_body(int nr, const h3f_softmax *tile) {
    float top[H3F_MAX_NR], sum[H3F_MAX_NR], correction[H3F_MAX_NR];
    for (int j = 0; j < nr; j++) {
        top[j] = tile->most[j];
        sum[j] = 0;
    }
    for (int64_t k = 0; k < tile->keys; k++) {
        float *restrict s = tile->scores + k * nr;
        for (int j = 0; j < nr; j++) {
            s[j] *= tile->scale;
            top[j] = s[j] > top[j] ? s[j] : top[j];
        }
    }
    for (int64_t k = 0; k < tile->keys; k++) {
        float *restrict s = tile->scores + k * nr;
        for (int j = 0; j < nr; j++) {
            s[j] = h3f_exp(s[j] - top[j]);
            sum[j] += s[j];
        }
    }
    for (int j = 0; j < nr; j++) {
        correction[j] = h3f_exp(tile->most[j] - top[j]);
        tile->most[j] = top[j];
        tile->total[j] = tile->total[j] * correction[j] + sum[j];
    }
    for (int64_t d = 0; d < tile->head_dim; d++) {
        float *restrict o = tile->out + d * nr;
        for (int j = 0; j < nr; j++)
            o[j] *= correction[j];
    }
}

#ifdef H3F_X86
H3F_AVX2 static void softmax_avx2(const h3f_softmax *tile) {
    softmax_body(16, tile);
}
const h3f_attention_kernels h3f_attention_avx2 = {.softmax = softmax_avx2};

H3F_AVX512 static void softmax_avx512(const h3f_softmax *tile) {
    softmax_body(32, tile);
}
const h3f_attention_kernels h3f_attention_avx512 = {.softmax = softmax_avx512};
#endif
#ifdef H3F_ARM
H3F_NEON static void softmax_neon(const h3f_softmax *tile) {
    softmax_body(12, tile);
}
const h3f_attention_kernels h3f_attention_neon = {.softmax = softmax_neon};
#endif

const h3f_attention_kernels h3f_attention_scalar = {.softmax = NULL};

/* ---- one head by one tile of queries ---- */

/* QUERY_ROWS: a multiple of every nr. KEY_ROWS: room for a tile of keys, of which as many are used
 * as make whole strips of mr. Together with head_dim 128 a third of a megabyte, which a
 * second-level cache holds. */
enum { QUERY_ROWS = 192, KEY_ROWS = 128, SCALAR_ROWS = 32 };

typedef struct attention {
    h3f_context *ctx;
    const h3f_attention *a;
    const h3f_matmul_kernels *matmul;
    const h3f_attention_kernels *kernels;
    int64_t key_rows; /* of a tile */
    int64_t query_rows, query_tiles;
} attention;

/* The buffers of a thread, in its scratch. n = nr: queries side by side. */
typedef struct buffers {
    float *q;            /* [panel][head_dim][n] */
    float *out;          /* [panel][head_dim][n] */
    float *k;            /* [head_dim][KEY_ROWS] */
    float *v;            /* [key][head_dim] */
    float *scores;       /* [key][n] */
    float *most, *total; /* [panel][n] */
} buffers;

static size_t lay_out(int64_t head_dim, int64_t nr, float *memory, buffers *b) {
    size_t used = 0;
    const struct {
        float **place;
        int64_t count;
    } parts[] = {
        {&b->q, QUERY_ROWS * head_dim}, {&b->out, QUERY_ROWS * head_dim},
        {&b->k, KEY_ROWS * head_dim},   {&b->v, KEY_ROWS * head_dim},
        {&b->scores, KEY_ROWS * nr},    {&b->most, QUERY_ROWS},
        {&b->total, QUERY_ROWS},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].place = memory ? memory + used : NULL;
        used += (size_t)(parts[i].count + 15) / 16 * 16; /* whole cache lines */
    }
    return used * sizeof(float);
}

/* Rows first .. first+count-1 of x (count > 0), transposed to [head_dim][stride]; whole groups of
 * lanes are written, with the last row repeated. */
static void pack_rows(const attention *job, const float *x, int64_t x_stride, int64_t first,
                      int64_t count, float *out, int64_t stride) {
    const h3f_matmul_kernels *matmul = job->matmul;
    for (int64_t n = 0; n < count; n += matmul->lanes) {
        const void *rows[H3F_MAX_NR];
        for (int64_t i = 0; i < matmul->lanes; i++)
            rows[i] = x + (first + (n + i < count ? n + i : count - 1)) * x_stride;
        matmul->pack(H3F_F32, rows, job->a->head_dim, out + n, stride);
    }
}

static void copy_rows(const attention *job, const float *x, int64_t x_stride, int64_t first,
                      int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < job->a->head_dim; d++)
            out[i * job->a->head_dim + d] = x[(first + i) * x_stride + d];
}

/* Keys that come after a query do not exist for it. query: of the panel's first lane. */
static void mask_scores(const attention *job, int64_t query, int64_t key, int64_t keys,
                        float *scores) {
    int64_t nr = job->matmul->nr;
    for (int64_t k = 0; k < keys; k++)
        for (int64_t j = 0; j < nr && query + j < key + k; j++)
            scores[k * nr + j] = -INFINITY;
}

/* A panel of queries against a tile of keys: out += P V, everything rescaled to the largest score
 * so far. */
static void attend_panel(const attention *job, const buffers *b, int64_t panel, int64_t query,
                         int64_t key, int64_t keys) {
    static const float zeros[H3F_MAX_NR];
    const h3f_matmul_kernels *matmul = job->matmul;
    int64_t nr = matmul->nr, head_dim = job->a->head_dim;
    float *out = b->out + panel * head_dim * nr;
    for (int64_t i = 0; i < keys; i += matmul->mr) {
        int64_t rows = keys - i < matmul->mr ? keys - i : matmul->mr;
        matmul->tile[rows](head_dim, b->k + i, KEY_ROWS, b->q + panel * head_dim * nr, zeros, 0,
                           b->scores + i * nr, nr);
    }
    if (job->a->causal && query < key + keys - 1)
        mask_scores(job, query, key, keys, b->scores);
    h3f_softmax tile = {.keys = keys,
                        .head_dim = head_dim,
                        .scale = job->a->scale,
                        .scores = b->scores,
                        .most = b->most + panel * nr,
                        .total = b->total + panel * nr,
                        .out = out};
    job->kernels->softmax(&tile);
    for (int64_t i = 0; i < head_dim; i += matmul->mr) {
        int64_t rows = head_dim - i < matmul->mr ? head_dim - i : matmul->mr;
        matmul->tile[rows](keys, b->v + i, head_dim, b->scores, out + i * nr, nr, out + i * nr, nr);
    }
}

/* Divides by the sums and turns the panel over: pack does for [head_dim][query] what it does for W.
 */
static void store_panel(const attention *job, const buffers *b, int64_t panel, int64_t rows,
                        float *out) {
    const h3f_matmul_kernels *matmul = job->matmul;
    int64_t nr = matmul->nr, head_dim = job->a->head_dim, stride = job->a->out_stride;
    float *sums = b->out + panel * head_dim * nr;
    for (int64_t d = 0; d < head_dim; d++)
        for (int64_t j = 0; j < nr; j++)
            sums[d * nr + j] /= b->total[panel * nr + j];
    int64_t whole = head_dim / matmul->lanes * matmul->lanes;
    for (int64_t d = 0; d < whole; d += matmul->lanes) {
        const void *lanes[H3F_MAX_NR];
        for (int64_t i = 0; i < matmul->lanes; i++)
            lanes[i] = sums + (d + i) * nr;
        matmul->pack(H3F_F32, lanes, rows, out + d, stride);
    }
    for (int64_t j = 0; j < rows; j++)
        for (int64_t d = whole; d < head_dim; d++)
            out[j * stride + d] = sums[d * nr + j];
}

static void attend_tile(void *argument, int64_t item, void *scratch) {
    const attention *job = argument;
    const h3f_attention *a = job->a;
    int64_t nr = job->matmul->nr, head = item / job->query_tiles;
    int64_t first = item % job->query_tiles * job->query_rows;
    int64_t rows = a->q_rows - first < job->query_rows ? a->q_rows - first : job->query_rows;
    int64_t panels = (rows + nr - 1) / nr, kv_head = head / (a->heads / a->kv_heads);
    buffers b;
    lay_out(a->head_dim, nr, scratch, &b);
    for (int64_t p = 0; p < panels; p++)
        pack_rows(job, a->q + head * a->head_dim, a->q_stride, first + p * nr,
                  rows - p * nr < nr ? rows - p * nr : nr, b.q + p * a->head_dim * nr, nr);
    for (int64_t i = 0; i < panels * a->head_dim * nr; i++)
        b.out[i] = 0;
    for (int64_t i = 0; i < panels * nr; i++) {
        b.most[i] = -INFINITY;
        b.total[i] = 0;
    }

    int64_t seen = a->q_first + first + rows; /* keys that the last query sees */
    int64_t end = a->causal && seen < a->kv_rows ? seen : a->kv_rows;
    for (int64_t key = 0; key < end && !h3f_cancelled(job->ctx); key += job->key_rows) {
        /* With `causal` a tile is cut where the last key is, not where the last query ends. */
        int64_t keys = a->kv_rows - key < job->key_rows ? a->kv_rows - key : job->key_rows;
        pack_rows(job, a->k + kv_head * a->head_dim, a->k_stride, key, keys, b.k, KEY_ROWS);
        copy_rows(job, a->v + kv_head * a->head_dim, a->v_stride, key, keys, b.v);
        for (int64_t p = 0; p < panels; p++) {
            int64_t query = a->q_first + first + p * nr;
            if (!a->causal || key < query + nr)
                attend_panel(job, &b, p, query, key, keys);
        }
    }
    for (int64_t p = 0; p < panels; p++)
        store_panel(job, &b, p, rows - p * nr < nr ? rows - p * nr : nr,
                    a->out + (first + p * nr) * a->out_stride + head * a->head_dim);
}

static void attend_rows_ref(void *argument, int64_t item, void *scratch) {
    const attention *job = argument;
    const h3f_attention *a = job->a;
    int64_t first = item % job->query_tiles * job->query_rows;
    int64_t end = a->q_rows - first < job->query_rows ? a->q_rows : first + job->query_rows;
    float *sums = scratch, *scores = sums + a->head_dim;
    for (int64_t row = first; row < end && !h3f_cancelled(job->ctx); row++)
        attend_row_ref(a, row, (int32_t)(item / job->query_tiles), scores, sums);
}

int h3f_attention_run(h3f_context *ctx, const h3f_attention *a) {
    assert(a->heads % a->kv_heads == 0 && a->scale > 0 && a->kv_rows > 0);
    attention job = {.ctx = ctx,
                     .a = a,
                     .matmul = ctx->kernels->matmul,
                     .kernels = ctx->kernels->attention,
                     .key_rows = KEY_ROWS / ctx->kernels->matmul->mr * ctx->kernels->matmul->mr};
    bool plain = job.kernels->softmax == NULL;
    job.query_rows = plain ? SCALAR_ROWS : QUERY_ROWS;
    job.query_tiles = (a->q_rows + job.query_rows - 1) / job.query_rows;
    buffers unplaced;
    size_t scratch = plain ? (size_t)(a->kv_rows + a->head_dim) * sizeof(float)
                           : lay_out(a->head_dim, job.matmul->nr, NULL, &unplaced);
    return h3f_pool_run(ctx, job.query_tiles * a->heads, scratch,
                        plain ? attend_rows_ref : attend_tile, &job);
}
