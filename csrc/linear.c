/* Matrix products with packed operands.
 *
 * x is packed once per call into strips of mr rows, [k][row]; a block of W is widened and packed
 * into panels of nr rows, [k][row], by the thread that works on it, and meets all strips while it
 * is in the cache. Sums run over DEPTH columns at a time in registers, k ascending, and the partial
 * sums are added in the same order: what an output's rounding depends on is the number of columns
 * and nothing else. */
#include "kernels_table.h"
#include "pool.h"

#include <assert.h>
#include <string.h>

enum { DEPTH = 384, BLOCK_ROWS = 504 }; /* 504: a multiple of every mr there is (4, 6, 8, 14) */

typedef struct product {
    h3f_context *ctx;
    const h3f_linear *linear;
    const float *x;
    float *packed; /* x in strips */
    int64_t m, block_m, block_n, n_blocks;
    float *y;
    int64_t ldy;
} product;

size_t h3f_linear_scratch(int64_t m, int64_t cols) {
    return ((size_t)m * (size_t)cols * sizeof(float) + 63) / 64 * 64;
}

/* One strip of x: rows of the strip side by side, so that a tile reads it front to back. */
static void pack_strip(void *argument, int64_t item, void *scratch) {
    const product *p = argument;
    (void)scratch;
    int64_t cols = p->linear->w.cols, mr = p->ctx->kernels->matmul->mr, first = item * mr;
    int64_t rows = p->m - first < mr ? p->m - first : mr;
    const float *source = p->x + first * cols;
    float *out = p->packed + first * cols;
    for (int64_t k = 0; k < cols; k++)
        for (int64_t i = 0; i < rows; i++)
            out[k * rows + i] = source[i * cols + k];
}

static const void *weight_row(const h3f_mat *w, int64_t row, int64_t col) {
    int64_t place = ((row / w->group) * w->group_stride + row % w->group) * w->cols + col;
    return (const unsigned char *)w->data + (size_t)place * h3f_dtype_size(w->dtype);
}

/* `lanes` rows of W from column k on, into their lanes of a panel. What comes next in each row is
 * asked for meanwhile: the stretches are too short for the processor to see where they lead. */
static void pack_lanes(const product *p, const void *rows[], int64_t depth, float *out) {
    enum { PIECE = 64, LINE = 64 };
    const h3f_matmul_kernels *kernels = p->ctx->kernels->matmul;
    int32_t dtype = p->linear->w.dtype;
    int64_t size = (int64_t)h3f_dtype_size(dtype);
    for (int64_t k = 0; k < depth; k += PIECE) {
        int64_t width = depth - k < PIECE ? depth - k : PIECE;
        for (int32_t i = 0; i < kernels->lanes; i++)
            for (int64_t line = 0; line < width * size; line += LINE)
                __builtin_prefetch((const unsigned char *)rows[i] + DEPTH * size + line, 0, 2);
        kernels->pack(dtype, rows, width, out + k * kernels->nr, kernels->nr);
        for (int32_t i = 0; i < kernels->lanes; i++)
            rows[i] = (const unsigned char *)rows[i] + width * size;
    }
}

/* Panels of nr rows, [depth][nr]; lanes beyond the last row hold anything. */
static void pack_panels(const product *p, int64_t first, int64_t count, int64_t k, int64_t depth,
                        float *panels) {
    int32_t lanes = p->ctx->kernels->matmul->lanes, nr = p->ctx->kernels->matmul->nr;
    for (int64_t n = 0; n < count; n += lanes) {
        const void *rows[H3F_MAX_NR];
        for (int64_t i = 0; i < lanes; i++)
            rows[i] = weight_row(&p->linear->w, first + (n + i < count ? n + i : count - 1), k);
        pack_lanes(p, rows, depth, panels + n / nr * nr * depth + n % nr);
    }
}

/* A strip against one panel; what is beyond the last column of y goes through a buffer. */
static void run_tile(const product *p, int64_t rows, int64_t lanes, int64_t depth, const float *a,
                     const float *b, bool first, int64_t n, float *c) {
    static const float zeros[H3F_MAX_NR];
    const h3f_matmul_kernels *kernels = p->ctx->kernels->matmul;
    const float *bias = p->linear->bias ? p->linear->bias + n : NULL;
    const float *base = !first ? c : bias ? bias : zeros;
    int64_t base_stride = first ? 0 : p->ldy;
    if (lanes == kernels->nr) {
        kernels->tile[rows](depth, a, rows, b, base, base_stride, c, p->ldy);
        return;
    }
    float edge[H3F_MAX_MR * H3F_MAX_NR] = {0};
    for (int64_t i = 0; i < rows; i++)
        memcpy(edge + i * kernels->nr, base + i * base_stride, (size_t)lanes * sizeof *edge);
    kernels->tile[rows](depth, a, rows, b, edge, kernels->nr, edge, kernels->nr);
    for (int64_t i = 0; i < rows; i++)
        memcpy(c + i * p->ldy, edge + i * kernels->nr, (size_t)lanes * sizeof *edge);
}

/* A block of W's rows against a block of x's rows. */
static void run_block(void *argument, int64_t item, void *scratch) {
    const product *p = argument;
    const h3f_matmul_kernels *kernels = p->ctx->kernels->matmul;
    int64_t cols = p->linear->w.cols;
    int64_t n0 = item % p->n_blocks * p->block_n, m0 = item / p->n_blocks * p->block_m;
    int64_t n_count = p->linear->w.rows - n0 < p->block_n ? p->linear->w.rows - n0 : p->block_n;
    int64_t m_end = p->m - m0 < p->block_m ? p->m : m0 + p->block_m;
    float *panels = scratch;
    for (int64_t k = 0; k < cols && !h3f_cancelled(p->ctx); k += DEPTH) {
        int64_t depth = cols - k < DEPTH ? cols - k : DEPTH;
        pack_panels(p, n0, n_count, k, depth, panels);
        for (int64_t m = m0; m < m_end; m += kernels->mr) {
            int64_t rows = m_end - m < kernels->mr ? m_end - m : kernels->mr;
            const float *a = p->packed + m * cols + k * rows;
            for (int64_t n = 0; n < n_count; n += kernels->nr) {
                int64_t lanes = n_count - n < kernels->nr ? n_count - n : kernels->nr;
                run_tile(p, rows, lanes, depth, a, panels + n * depth, k == 0, n0 + n,
                         p->y + m * p->ldy + n0 + n);
            }
        }
    }
}

/* Rows of W for one item: as many as fit the second-level cache, fewer when that leaves too few
 * items. */
static int64_t choose_block_n(int64_t rows, int64_t m_blocks, int64_t nr) {
    enum { LARGEST = 256, ENOUGH_ITEMS = 64 };
    int64_t block = LARGEST / nr * nr;
    while (block > nr && (rows + block - 1) / block * m_blocks < ENOUGH_ITEMS)
        block -= nr;
    return block;
}

int h3f_linear_run(h3f_context *ctx, const h3f_linear *linear, const float *x, int64_t m, float *y,
                   int64_t ldy, void *scratch) {
    const h3f_mat *w = &linear->w;
    assert(w->cols > 0 && (uintptr_t)scratch % 64 == 0);
    if (m == 0 || w->rows == 0)
        return h3f_poll(ctx);
    const h3f_matmul_kernels *kernels = ctx->kernels->matmul;
    product p = {
        .ctx = ctx, .linear = linear, .x = x, .packed = scratch, .m = m, .y = y, .ldy = ldy};
    p.block_m = BLOCK_ROWS;
    int64_t m_blocks = (m + p.block_m - 1) / p.block_m;
    p.block_n = choose_block_n(w->rows, m_blocks, kernels->nr);
    p.n_blocks = (w->rows + p.block_n - 1) / p.block_n;

    int status = h3f_pool_run(ctx, (m + kernels->mr - 1) / kernels->mr, 0, pack_strip, &p);
    if (status != H3F_OK)
        return status;
    return h3f_pool_run(ctx, p.n_blocks * m_blocks, (size_t)p.block_n * DEPTH * sizeof(float),
                        run_block, &p);
}
