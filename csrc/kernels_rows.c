/* Row kernels. Statistics of the norms are summed in double, in LANES sums that are added in a fixed order: cheap
 * beside the memory traffic, and every instruction set rounds alike. */
#include "kernels_table.h"
#include "pool.h"

#include <math.h>

/* ---- scalar ---- */

static void rms_norm_ref(const h3f_norm *norm, const float *x, float *out) {
    double sum = 0;
    for (int64_t i = 0; i < norm->cols; i++)
        sum += (double)x[i] * (double)x[i];
    float inverse = (float)(1.0 / sqrt(sum / (double)norm->cols + (double)norm->eps));
    for (int64_t i = 0; i < norm->cols; i++)
        out[i] = x[i] * inverse * (norm->weight ? norm->weight[i] : 1);
}

static void layer_norm_ref(const h3f_norm *norm, const float *x, float *out) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < norm->cols; i++)
        sum += (double)x[i];
    double mean = sum / (double)norm->cols;
    for (int64_t i = 0; i < norm->cols; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double inverse = 1.0 / sqrt(squares / (double)norm->cols + (double)norm->eps);
    for (int64_t i = 0; i < norm->cols; i++)
        out[i] = (float)(((double)x[i] - mean) * inverse) * (norm->weight ? norm->weight[i] : 1) +
                 (norm->bias ? norm->bias[i] : 0);
}

static void rotate_ref(const h3f_rotary *rotary, const float *cosine, const float *sine, float *x) {
    for (int32_t head = 0; head < rotary->heads; head++, x += rotary->head_dim) {
        for (int32_t j = 0; j < rotary->pairs; j++) {
            float low = x[j], high = x[j + rotary->pairs];
            x[j] = low * cosine[j] - high * sine[j];
            x[j + rotary->pairs] = high * cosine[j] + low * sine[j];
        }
    }
}

static void modulate_ref(int64_t cols, const float *x, const float *shift, const float *scale, float *out) {
    for (int64_t i = 0; i < cols; i++)
        out[i] = x[i] * (1 + scale[i]) + shift[i];
}

static void add_gated_ref(int64_t cols, const float *gate, const float *branch, float *x) {
    for (int64_t i = 0; i < cols; i++)
        x[i] += gate ? gate[i] * branch[i] : branch[i];
}

static void silu_ref(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = x[i] / (1 + expf(-x[i]));
}

static void silu_mul_ref(int64_t count, float *gate, const float *up) {
    for (int64_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

const h3f_row_kernels h3f_rows_scalar = {
    .rms_norm = rms_norm_ref,
    .layer_norm = layer_norm_ref,
    .rotate = rotate_ref,
    .modulate = modulate_ref,
    .add_gated = add_gated_ref,
    .silu_mul = silu_mul_ref,
    .silu = silu_ref,
};

/* ---- the drivers: runs of rows, each some tens of microseconds of work ---- */

enum { ITEM_VALUES = 1 << 15 };

typedef struct row_job {
    const h3f_row_kernels *kernels;
    int64_t rows, rows_per_item;
    int64_t cols;
    const h3f_norm *norm;
    const h3f_rotary *rotary;
    const float *const *shift, *const *scale, *const *gate;
    const float *x, *branch;
    float *out;
    void (*run_row)(const struct row_job *job, int64_t row);
} row_job;

static void run_rows(void *argument, int64_t item, void *scratch) {
    const row_job *job = argument;
    (void)scratch;
    int64_t first = item * job->rows_per_item;
    int64_t end = job->rows - first < job->rows_per_item ? job->rows : first + job->rows_per_item;
    for (int64_t row = first; row < end; row++)
        job->run_row(job, row);
}

static int run_row_job(h3f_context *ctx, row_job *job) {
    job->kernels = ctx->kernels->rows;
    if (job->rows == 0 || job->cols == 0)
        return h3f_poll(ctx);
    job->rows_per_item = job->cols < ITEM_VALUES ? ITEM_VALUES / job->cols : 1;
    return h3f_pool_run(ctx, (job->rows + job->rows_per_item - 1) / job->rows_per_item, 0, run_rows, job);
}

static void rms_norm_row(const row_job *job, int64_t row) {
    job->kernels->rms_norm(job->norm, job->x + row * job->cols, job->out + row * job->cols);
}

int h3f_rms_norm(h3f_context *ctx, const h3f_norm *norm, const float *x, float *out) {
    row_job job = {.rows = norm->rows, .cols = norm->cols, .norm = norm, .x = x, .out = out};
    job.run_row = rms_norm_row;
    return run_row_job(ctx, &job);
}

static void layer_norm_row(const row_job *job, int64_t row) {
    job->kernels->layer_norm(job->norm, job->x + row * job->cols, job->out + row * job->cols);
}

int h3f_layer_norm(h3f_context *ctx, const h3f_norm *norm, const float *x, float *out) {
    row_job job = {.rows = norm->rows, .cols = norm->cols, .norm = norm, .x = x, .out = out};
    job.run_row = layer_norm_row;
    return run_row_job(ctx, &job);
}

static void rotate_row(const row_job *job, int64_t row) {
    const h3f_rotary *rotary = job->rotary;
    job->kernels->rotate(rotary, rotary->cosine + row * rotary->pairs, rotary->sine + row * rotary->pairs,
                         job->out + row * rotary->stride);
}

int h3f_rotate(h3f_context *ctx, const h3f_rotary *rotary, float *x) {
    row_job job = {.rows = rotary->rows, .cols = (int64_t)rotary->heads * rotary->head_dim};
    job.rotary = rotary;
    job.out = x;
    job.run_row = rotate_row;
    return run_row_job(ctx, &job);
}

static void modulate_row(const row_job *job, int64_t row) {
    job->kernels->modulate(job->cols, job->x + row * job->cols, job->shift[row], job->scale[row],
                           job->out + row * job->cols);
}

int h3f_modulate(h3f_context *ctx, int64_t rows, int64_t cols, const float *x, const float *const *shift,
                 const float *const *scale, float *out) {
    row_job job = {.rows = rows, .cols = cols, .x = x, .shift = shift, .scale = scale, .out = out};
    job.run_row = modulate_row;
    return run_row_job(ctx, &job);
}

static void add_gated_row(const row_job *job, int64_t row) {
    job->kernels->add_gated(job->cols, job->gate ? job->gate[row] : NULL, job->branch + row * job->cols,
                            job->out + row * job->cols);
}

int h3f_add_gated(h3f_context *ctx, int64_t rows, int64_t cols, const float *const *gate,
                  const float *branch, float *x) {
    row_job job = {.rows = rows, .cols = cols, .gate = gate, .branch = branch, .out = x};
    job.run_row = add_gated_row;
    return run_row_job(ctx, &job);
}

/* Element-wise functions see one long row, cut at fixed places. */

static int64_t piece(const row_job *job, int64_t row) {
    int64_t left = job->cols - row * ITEM_VALUES;
    return left < ITEM_VALUES ? left : ITEM_VALUES;
}

static void silu_mul_piece(const row_job *job, int64_t row) {
    job->kernels->silu_mul(piece(job, row), job->out + row * ITEM_VALUES, job->x + row * ITEM_VALUES);
}

static void silu_piece(const row_job *job, int64_t row) {
    job->kernels->silu(piece(job, row), job->x + row * ITEM_VALUES, job->out + row * ITEM_VALUES);
}

int h3f_silu_mul(h3f_context *ctx, int64_t count, float *gate, const float *up) {
    row_job job = {.rows = (count + ITEM_VALUES - 1) / ITEM_VALUES, .cols = count, .x = up, .out = gate};
    job.run_row = silu_mul_piece;
    return run_row_job(ctx, &job);
}

int h3f_silu(h3f_context *ctx, int64_t count, const float *x, float *out) {
    row_job job = {.rows = (count + ITEM_VALUES - 1) / ITEM_VALUES, .cols = count, .x = x, .out = out};
    job.run_row = silu_piece;
    return run_row_job(ctx, &job);
}
