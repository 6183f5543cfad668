/* Matrix products: every instruction set against the formula in double. */
#include "harness.h"
#include "kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static const int32_t dtypes[] = {H3F_F32, H3F_F16, H3F_BF16};

/* A problem with its operands, all of them drawn; freed by its end. */
typedef struct problem {
    int64_t m, ldy;
    h3f_linear linear;
    unsigned char *weights;
    float *bias, *x;
} problem;

static void store(int32_t dtype, float value, unsigned char *out) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == H3F_F16) { /* values of about 1: cut off, and no exponent out of range */
        int exponent = (int)(bits >> 23 & 0xFF) - 112;
        half = (uint16_t)((bits >> 16 & 0x8000) | (bits >> 13 & 0x3FF));
        half = exponent > 0 ? (uint16_t)(half | exponent << 10) : (uint16_t)(half & 0x8000);
    }
    memcpy(out, dtype == H3F_F32 ? (const void *)&bits : (const void *)&half,
           dtype == H3F_F32 ? 4 : 2);
}

static problem draw_problem(h_draw *draw, int64_t m, int64_t rows, int64_t cols, int32_t dtype) {
    problem p = {.m = m, .ldy = rows + h_between(draw, 0, 3)};
    int64_t parts = h_between(draw, 1, 3), group = rows;
    while (group > 1 && (rows % group != 0 || h_between(draw, 0, 2) == 0))
        group--;
    int64_t offset = h_between(draw, 0, 3); /* not aligned to anything */
    size_t size = h3f_dtype_size(dtype);
    p.weights = malloc((size_t)(parts * rows * cols) * size + 4);
    p.bias = h_between(draw, 0, 1) ? malloc((size_t)rows * sizeof(float)) : NULL;
    p.x = malloc((size_t)(m * cols) * sizeof(float));
    for (int64_t i = 0; i < parts * rows * cols; i++)
        store(dtype, h_normal(draw), p.weights + offset + (size_t)i * size);
    if (p.bias)
        h_fill(draw, p.bias, rows);
    h_fill(draw, p.x, m * cols);
    p.linear = (h3f_linear){.bias = p.bias};
    p.linear.w = (h3f_mat){.data = p.weights + offset,
                           .dtype = dtype,
                           .rows = rows,
                           .cols = cols,
                           .group = group,
                           .group_stride = parts * group};
    return p;
}

static void free_problem(problem *p) {
    free(p->weights);
    free(p->bias);
    free(p->x);
}

static const unsigned char *row_of(const h3f_mat *w, int64_t row) {
    int64_t place = (row / w->group * w->group_stride + row % w->group) * w->cols;
    return (const unsigned char *)w->data + (size_t)place * h3f_dtype_size(w->dtype);
}

static void expected_product(const problem *p, float *y) {
    const h3f_mat *w = &p->linear.w;
    float *row = malloc((size_t)w->cols * sizeof *row);
    for (int64_t n = 0; n < w->rows; n++) {
        h3f_widen(w->dtype, row_of(w, n), w->cols, row);
        for (int64_t i = 0; i < p->m; i++) {
            double sum = p->bias ? (double)p->bias[n] : 0;
            for (int64_t k = 0; k < w->cols; k++)
                sum += (double)p->x[i * w->cols + k] * (double)row[k];
            y[i * p->ldy + n] = (float)sum;
        }
    }
    free(row);
}

/* y of the problem; 77 where nothing was written. */
static float *run(h3f_context *ctx, const problem *p) {
    float *y = malloc((size_t)(p->m * p->ldy) * sizeof *y);
    for (int64_t i = 0; i < p->m * p->ldy; i++)
        y[i] = 77;
    void *scratch = h3f_alloc(ctx, h3f_linear_scratch(p->m, p->linear.w.cols), "x");
    CHECK_OK(ctx, h3f_linear_run(ctx, &p->linear, p->x, p->m, y, p->ldy, scratch));
    h3f_free(ctx, scratch);
    return y;
}

static void check_problem(h3f_context *ctx, const problem *p) {
    float *y = run(ctx, p), *expected = malloc((size_t)(p->m * p->ldy) * sizeof *expected);
    for (int64_t i = 0; i < p->m * p->ldy; i++)
        expected[i] = 77; /* between the rows of y nothing is touched */
    expected_product(p, expected);
    double difference = h_difference(y, expected, p->m * p->ldy);
    if (!(difference < 2e-6 * sqrt((double)p->linear.w.cols)))
        h_failed(__FILE__, __LINE__, "%s: m %lld, rows %lld, cols %lld, dtype %d: off by %g",
                 h3f_isa_name(ctx), (long long)p->m, (long long)p->linear.w.rows,
                 (long long)p->linear.w.cols, p->linear.w.dtype, difference);
    free(expected);
    free(y);
}

static void each_isa(void (*check)(h3f_context *ctx)) {
    int done = 0;
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *ctx = h_context(isa, 2);
        if (!ctx)
            continue;
        check(ctx);
        h3f_context_free(ctx);
        done++;
    }
    CHECK(done >= 1);
}

static void drawn_shapes(h3f_context *ctx) {
    h_draw draw = {11};
    for (int i = 0; i < 250; i++) {
        problem p =
            draw_problem(&draw, h_between(&draw, 1, i % 4 ? 33 : 3), h_between(&draw, 1, 80),
                         h_between(&draw, 1, i % 5 ? 130 : 900), dtypes[i % 3]);
        check_problem(ctx, &p);
        free_problem(&p);
    }
}

static void test_products_match_the_formula(void) {
    each_isa(drawn_shapes);
}

static void large_shapes(h3f_context *ctx) {
    /* More than one block of rows of x, of rows of W and of columns. */
    h_draw draw = {12};
    for (int i = 0; i < 3; i++) {
        problem p = draw_problem(&draw, 507, 517 + i, 400, dtypes[i]);
        check_problem(ctx, &p);
        free_problem(&p);
    }
}

static void test_products_of_several_blocks_match_the_formula(void) {
    each_isa(large_shapes);
}

static void chunks(h3f_context *ctx) {
    h_draw draw = {13};
    problem p = draw_problem(&draw, 45, 70, 801, H3F_BF16);
    float *whole = run(ctx, &p);
    for (int64_t first = 0, rows; first < p.m; first += rows) {
        rows = first % 3 + 1 + (first > 20 ? 7 : 0);
        rows = p.m - first < rows ? p.m - first : rows;
        problem part = p;
        part.m = rows;
        part.x = p.x + first * p.linear.w.cols;
        float *y = run(ctx, &part);
        CHECK(memcmp(y, whole + first * p.ldy, (size_t)(rows * p.ldy) * sizeof *y) == 0);
        free(y);
    }
    free(whole);
    free_problem(&p);
}

static void test_a_row_has_the_same_bits_in_any_chunk(void) {
    each_isa(chunks);
}

static void parts(h3f_context *ctx) {
    h_draw draw = {14};
    problem p = draw_problem(&draw, 9, 96, 500, H3F_F16);
    float *whole = run(ctx, &p);
    for (int64_t n = 0; n < 96; n += 5) {
        problem part = p;
        part.linear.w.rows = part.linear.w.group = part.linear.w.group_stride = 1;
        part.linear.w.data = row_of(&p.linear.w, n);
        part.linear.bias = p.bias ? p.bias + n : NULL;
        part.ldy = 1;
        float *y = run(ctx, &part);
        for (int64_t i = 0; i < p.m; i++)
            CHECK(memcmp(&y[i], &whole[i * p.ldy + n], sizeof *y) == 0);
        free(y);
    }
    free(whole);
    free_problem(&p);
}

static void test_a_column_has_the_same_bits_wherever_it_lies(void) {
    each_isa(parts);
}

static void test_thread_counts_give_the_same_bits(void) {
    h_draw draw = {15};
    problem p = draw_problem(&draw, 61, 333, 777, H3F_BF16);
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        float *first = NULL;
        for (int32_t threads = 1; threads <= 3; threads++) {
            h3f_context *ctx = h_context(isa, threads);
            if (!ctx)
                continue;
            float *y = run(ctx, &p);
            if (first)
                CHECK(memcmp(first, y, (size_t)(p.m * p.ldy) * sizeof *y) == 0);
            free(first);
            first = y;
            h3f_context_free(ctx);
        }
        free(first);
    }
    free_problem(&p);
}

static void special_values(h3f_context *ctx) {
    h_draw draw = {16};
    problem p = draw_problem(&draw, 17, 40, 50, H3F_F32);
    p.x[3 * 50 + 7] = NAN;
    p.x[5 * 50 + 49] = INFINITY;
    float *y = run(ctx, &p);
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t n = 0; n < 40; n++)
            CHECK(i == 3   ? isnan(y[i * p.ldy + n])
                  : i == 5 ? !isfinite(y[i * p.ldy + n])
                           : isfinite(y[i * p.ldy + n]));
    free(y);
    free_problem(&p);
}

static void test_nan_and_infinity_stay_in_their_row(void) {
    each_isa(special_values);
}

static void test_no_rows_is_no_work(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 2);
    float x = 0, y = 5;
    h3f_linear linear = {.w = {.data = &x, .rows = 1, .cols = 1, .group = 1, .group_stride = 1}};
    CHECK_OK(ctx, h3f_linear_run(ctx, &linear, &x, 0, &y, 1, NULL));
    CHECK(y == 5);
    h3f_context_free(ctx);
}

/* ---- cancel ---- */

static void *cancel_soon(void *argument) {
    h3f_cancel(argument);
    return NULL;
}

static void test_cancel_from_another_thread_leaves_the_context_usable(void) {
    h_draw draw = {17};
    problem p = draw_problem(&draw, 300, 400, 800, H3F_BF16);
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 2);
    float *y = malloc((size_t)(p.m * p.ldy) * sizeof *y);
    void *scratch = h3f_alloc(ctx, h3f_linear_scratch(p.m, p.linear.w.cols), "x");
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, cancel_soon, ctx), 0);
    int status;
    do
        status = h3f_linear_run(ctx, &p.linear, p.x, p.m, y, p.ldy, scratch);
    while (status == H3F_OK); /* until the cancel has arrived */
    pthread_join(thread, NULL);
    CHECK_INT(status, H3F_ECANCELLED);
    CHECK_TEXT(h3f_error(ctx), "cancelled");
    CHECK_INT(h3f_linear_run(ctx, &p.linear, p.x, p.m, y, p.ldy, scratch), H3F_ECANCELLED);
    h3f_cancel_clear(ctx);
    h3f_free(ctx, scratch);
    free(y);
    p.m = 5;
    check_problem(ctx, &p);
    free_problem(&p);
    h3f_context_free(ctx);
}

/* ---- two contexts at once ---- */

typedef struct twin {
    const problem *p;
    float *y;
} twin;

static void *run_twin(void *argument) {
    twin *self = argument;
    h3f_context *ctx = h_context(H3F_ISA_BEST, 2);
    void *scratch = h3f_alloc(ctx, h3f_linear_scratch(self->p->m, self->p->linear.w.cols), "x");
    self->y = calloc((size_t)(self->p->m * self->p->ldy), sizeof *self->y);
    for (int i = 0; i < 5; i++)
        h3f_linear_run(ctx, &self->p->linear, self->p->x, self->p->m, self->y, self->p->ldy,
                       scratch);
    h3f_free(ctx, scratch);
    h3f_context_free(ctx);
    return NULL;
}

static void test_two_contexts_at_once_give_the_numbers_of_one(void) {
    h_draw draw = {18};
    problem p = draw_problem(&draw, 40, 200, 600, H3F_BF16);
    p.ldy = p.linear.w.rows;
    twin twins[2] = {{&p, NULL}, {&p, NULL}}, alone = {&p, NULL};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, run_twin, &twins[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    run_twin(&alone);
    for (int i = 0; i < 2; i++) {
        CHECK(memcmp(twins[i].y, alone.y, (size_t)(p.m * p.ldy) * sizeof *alone.y) == 0);
        free(twins[i].y);
    }
    free(alone.y);
    free_problem(&p);
}

int main(void) {
    RUN(test_products_match_the_formula);
    RUN(test_products_of_several_blocks_match_the_formula);
    RUN(test_a_row_has_the_same_bits_in_any_chunk);
    RUN(test_a_column_has_the_same_bits_wherever_it_lies);
    RUN(test_thread_counts_give_the_same_bits);
    RUN(test_nan_and_infinity_stay_in_their_row);
    RUN(test_no_rows_is_no_work);
    RUN(test_cancel_from_another_thread_leaves_the_context_usable);
    RUN(test_two_contexts_at_once_give_the_numbers_of_one);
    return H_END();
}
