/* Row kernels. They are bound by memory, so one body serves all vector instruction sets: compilers
 * vectorise it once for each. Statistics of the norms are summed in double, which costs nothing
 * beside the memory traffic and makes the twins agree. */
#include "kernels_exp.h"
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

H3F_INLINE void rotate_ref(const h3f_rotary *rotary, const float *cosine, const float *sine,
                           float *x) {
    for (int32_t head = 0; head < rotary->heads; head++, x += rotary->head_dim) {
        for (int32_t j = 0; j < rotary->pairs; j++) {
            float low = x[j], high = x[j + rotary->pairs];
            x[j] = low * cosine[j] - high * sine[j];
            x[j + rotary->pairs] = high * cosine[j] + low * sine[j];
        }
    }
}

H3F_INLINE void modulate_ref(int64_t cols, const float *x, const float *shift, const float *scale,
                             float *out) {
    for (int64_t i = 0; i < cols; i++)
        out[i] = x[i] * (1 + scale[i]) + shift[i];
}

H3F_INLINE void add_gated_ref(int64_t cols, const float *gate, const float *branch, float *x) {
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

/* ---- vectorised: bodies ---- */

#if defined(H3F_X86) || defined(H3F_ARM)

enum { LANES = 8 }; /* sums side by side, added up in a fixed order */

H3F_INLINE double sum_lanes(const double lanes[LANES]) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/* The sum of (x - center)^2. */
H3F_INLINE double sum_squares(int64_t count, const float *x, double center) {
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += ((double)x[i + j] - center) * ((double)x[i + j] - center);
    for (int j = 0; i + j < count; j++)
        lanes[j] += ((double)x[i + j] - center) * ((double)x[i + j] - center);
    return sum_lanes(lanes);
}

H3F_INLINE double sum_values(int64_t count, const float *x) {
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += (double)x[i + j];
    for (int j = 0; i + j < count; j++)
        lanes[j] += (double)x[i + j];
    return sum_lanes(lanes);
}

H3F_INLINE void rms_norm_body(const h3f_norm *norm, const float *x, float *out) {
    double mean = sum_squares(norm->cols, x, 0) / (double)norm->cols;
    float inverse = (float)(1.0 / sqrt(mean + (double)norm->eps));
    if (!norm->weight) {
        for (int64_t i = 0; i < norm->cols; i++)
            out[i] = x[i] * inverse;
        return;
    }
    for (int64_t i = 0; i < norm->cols; i++)
        out[i] = x[i] * inverse * norm->weight[i];
}

H3F_INLINE void layer_norm_body(const h3f_norm *norm, const float *x, float *out) {
    double mean = sum_values(norm->cols, x) / (double)norm->cols;
    double inverse =
        1.0 / sqrt(sum_squares(norm->cols, x, mean) / (double)norm->cols + (double)norm->eps);
    for (int64_t i = 0; i < norm->cols; i++)
        out[i] = (float)(((double)x[i] - mean) * inverse);
    for (int64_t i = 0; norm->weight && i < norm->cols; i++)
        out[i] *= norm->weight[i];
    for (int64_t i = 0; norm->bias && i < norm->cols; i++)
        out[i] += norm->bias[i];
}

H3F_INLINE void silu_body(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = x[i] / (1 + h3f_exp(-x[i]));
}

H3F_INLINE void silu_mul_body(int64_t count, float *restrict gate, const float *restrict up) {
    for (int64_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1 + h3f_exp(-gate[i])) * up[i];
}

/* ---- vectorised: one twin of each for an instruction set ---- */

#define TWINS(isa, target)                                                                   \
    target static void rms_norm_##isa(const h3f_norm *norm, const float *x, float *out) {    \
        rms_norm_body(norm, x, out);                                                         \
    }                                                                                        \
    target static void layer_norm_##isa(const h3f_norm *norm, const float *x, float *out) {  \
        layer_norm_body(norm, x, out);                                                       \
    }                                                                                        \
    target static void rotate_##isa(const h3f_rotary *rotary, const float *cosine,           \
                                    const float *sine, float *x) {                           \
        rotate_ref(rotary, cosine, sine, x);                                                 \
    }                                                                                        \
    target static void modulate_##isa(int64_t cols, const float *x, const float *shift,      \
                                      const float *scale, float *out) {                      \
        modulate_ref(cols, x, shift, scale, out);                                            \
    }                                                                                        \
    target static void add_gated_##isa(int64_t cols, const float *gate, const float *branch, \
                                       float *x) {                                           \
        add_gated_ref(cols, gate, branch, x);                                                \
    }                                                                                        \
    target static void silu_mul_##isa(int64_t count, float *gate, const float *up) {         \
        silu_mul_body(count, gate, up);                                                      \
    }                                                                                        \
    target static void silu_##isa(int64_t count, const float *x, float *out) {               \
        silu_body(count, x, out);                                                            \
    }                                                                                        \
    const h3f_row_kernels h3f_rows_##isa = {                                                 \
        .rms_norm = rms_norm_##isa,                                                          \
        .layer_norm = layer_norm_##isa,                                                      \
        .rotate = rotate_##isa,                                                              \
        .modulate = modulate_##isa,                                                          \
        .add_gated = add_gated_##isa,                                                        \
        .silu_mul = silu_mul_##isa,                                                          \
        .silu = silu_##isa,                                                                  \
    };

#ifdef H3F_X86
TWINS(avx2, H3F_AVX2)
TWINS(avx512, H3F_AVX512)
#else
TWINS(neon, H3F_NEON)
#endif

#endif

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
    return h3f_pool_run(ctx, (job->rows + job->rows_per_item - 1) / job->rows_per_item, 0, run_rows,
                        job);
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
    job->kernels->rotate(rotary, rotary->cosine + row * rotary->pairs,
                         rotary->sine + row * rotary->pairs, job->out + row * rotary->stride);
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

int h3f_modulate(h3f_context *ctx, int64_t rows, int64_t cols, const float *x,
                 const float *const *shift, const float *const *scale, float *out) {
    row_job job = {.rows = rows, .cols = cols, .x = x, .shift = shift, .scale = scale, .out = out};
    job.run_row = modulate_row;
    return run_row_job(ctx, &job);
}

static void add_gated_row(const row_job *job, int64_t row) {
    job->kernels->add_gated(job->cols, job->gate ? job->gate[row] : NULL,
                            job->branch + row * job->cols, job->out + row * job->cols);
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
    job->kernels->silu_mul(piece(job, row), job->out + row * ITEM_VALUES,
                           job->x + row * ITEM_VALUES);
}

static void silu_piece(const row_job *job, int64_t row) {
    job->kernels->silu(piece(job, row), job->x + row * ITEM_VALUES, job->out + row * ITEM_VALUES);
}

int h3f_silu_mul(h3f_context *ctx, int64_t count, float *gate, const float *up) {
    row_job job = {
        .rows = (count + ITEM_VALUES - 1) / ITEM_VALUES, .cols = count, .x = up, .out = gate};
    job.run_row = silu_mul_piece;
    return run_row_job(ctx, &job);
}

int h3f_silu(h3f_context *ctx, int64_t count, const float *x, float *out) {
    row_job job = {
        .rows = (count + ITEM_VALUES - 1) / ITEM_VALUES, .cols = count, .x = x, .out = out};
    job.run_row = silu_piece;
    return run_row_job(ctx, &job);
}
