/* Tiled attention: every instruction set against the formula in double. */
#include "harness.h"
#include "kernels.h"

#include <math.h>
#include <stdlib.h>

/* Operands in the way the networks have them: q, k and v of a token side by side. */
typedef struct problem {
    h3f_attention a;
    float *q, *kv;
} problem;

static problem draw_problem(h_draw *draw, int64_t q_rows, int64_t kv_rows, int32_t heads,
                            int32_t kv_heads, int32_t head_dim, bool causal) {
    int64_t q_stride = heads * head_dim + h_between(draw, 0, 3);
    int64_t kv_stride = 2 * kv_heads * head_dim + h_between(draw, 0, 3);
    problem p = {.q = malloc((size_t)(q_rows * q_stride) * sizeof(float)),
                 .kv = malloc((size_t)(kv_rows * kv_stride) * sizeof(float))};
    h_fill(draw, p.q, q_rows * q_stride);
    h_fill(draw, p.kv, kv_rows * kv_stride);
    p.a = (h3f_attention){.q_rows = q_rows,
                          .kv_rows = kv_rows,
                          .q_first = causal && kv_rows > q_rows ? kv_rows - q_rows : 0,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .causal = causal,
                          .scale = 1.5F / sqrtf((float)head_dim),
                          .q = p.q,
                          .k = p.kv,
                          .v = p.kv + kv_heads * head_dim,
                          .q_stride = q_stride,
                          .k_stride = kv_stride,
                          .v_stride = kv_stride,
                          .out_stride = heads * head_dim};
    return p;
}

static void free_problem(problem *p) {
    free(p->q);
    free(p->kv);
}

static float *new_out(const problem *p) {
    return calloc((size_t)(p->a.q_rows * p->a.out_stride), sizeof(float));
}

static float *run(h3f_context *ctx, const problem *p) {
    h3f_attention a = p->a;
    a.out = new_out(p);
    CHECK_OK(ctx, h3f_attention_run(ctx, &a));
    return a.out;
}

static float *expected_attention(const problem *p) {
    const h3f_attention *a = &p->a;
    float *out = new_out(p);
    double *weights = malloc((size_t)a->kv_rows * sizeof *weights);
    for (int64_t row = 0; row < a->q_rows; row++) {
        for (int32_t head = 0; head < a->heads; head++) {
            int32_t kv_head = head / (a->heads / a->kv_heads);
            double total = 0;
            for (int64_t j = 0; j < a->kv_rows; j++) {
                double dot = 0;
                for (int32_t d = 0; d < a->head_dim; d++)
                    dot += (double)a->q[row * a->q_stride + head * a->head_dim + d] *
                           (double)a->k[j * a->k_stride + kv_head * a->head_dim + d];
                bool seen = !a->causal || j <= a->q_first + row;
                weights[j] = seen ? exp(dot * (double)a->scale) : 0;
                total += weights[j];
            }
            for (int32_t d = 0; d < a->head_dim; d++) {
                double sum = 0;
                for (int64_t j = 0; j < a->kv_rows; j++)
                    sum += weights[j] * (double)a->v[j * a->v_stride + kv_head * a->head_dim + d];
                out[row * a->out_stride + head * a->head_dim + d] = (float)(sum / total);
            }
        }
    }
    free(weights);
    return out;
}

static void check_problem(h3f_context *ctx, const problem *p) {
    const h3f_attention *a = &p->a;
    float *out = run(ctx, p), *expected = expected_attention(p);
    double difference = h_difference(out, expected, a->q_rows * a->out_stride);
    if (!(difference < 1e-5))
        h_failed(__FILE__, __LINE__,
                 "%s: %lld x %lld, heads %d / %d, head_dim %d, causal %d: off by %g",
                 h3f_isa_name(ctx), (long long)a->q_rows, (long long)a->kv_rows, a->heads,
                 a->kv_heads, a->head_dim, a->causal, difference);
    free(out);
    free(expected);
}

static void each_isa(void (*check)(h3f_context *ctx)) {
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *ctx = h_context(isa, 2);
        if (ctx)
            check(ctx);
        h3f_context_free(ctx);
    }
}

static void drawn_shapes(h3f_context *ctx) {
    h_draw draw = {21};
    for (int i = 0; i < 120; i++) {
        int32_t kv_heads = (int32_t)h_between(&draw, 1, 3), group = (int32_t)h_between(&draw, 1, 3);
        int64_t kv_rows = h_between(&draw, 1, i % 3 ? 40 : 400);
        bool causal = i % 2 == 0;
        int64_t q_rows = h_between(&draw, 1, i % 5 == 0 ? 250 : 20);
        q_rows = causal && q_rows > kv_rows ? kv_rows : q_rows;
        problem p = draw_problem(&draw, q_rows, kv_rows, kv_heads * group, kv_heads,
                                 (int32_t)h_between(&draw, 1, 70), causal);
        check_problem(ctx, &p);
        free_problem(&p);
    }
}

static void test_attention_matches_the_formula(void) {
    each_isa(drawn_shapes);
}

static void usual_shapes(h3f_context *ctx) {
    h_draw draw = {22};
    static const int32_t head_dims[] = {16, 32, 64, 96, 128};
    for (int i = 0; i < 5; i++) {
        problem p = draw_problem(&draw, 200, 260, 2, 1, head_dims[i], false);
        check_problem(ctx, &p);
        free_problem(&p);
    }
}

static void test_usual_head_sizes_match_the_formula(void) {
    each_isa(usual_shapes);
}

static void chunks(h3f_context *ctx) {
    h_draw draw = {23};
    for (int causal = 0; causal < 2; causal++) {
        problem p = draw_problem(&draw, 300, 300, 2, 2, 24, causal);
        float *whole = run(ctx, &p);
        for (int64_t first = 0, rows; first < p.a.q_rows; first += rows) {
            rows = first % 5 * 17 + 1;
            rows = p.a.q_rows - first < rows ? p.a.q_rows - first : rows;
            problem part = p;
            part.a.q += first * p.a.q_stride;
            part.a.q_rows = rows;
            part.a.q_first = first;
            float *out = run(ctx, &part);
            CHECK(memcmp(out, whole + first * p.a.out_stride,
                         (size_t)(rows * p.a.out_stride) * sizeof *out) == 0);
            free(out);
        }
        free(whole);
        free_problem(&p);
    }
}

static void test_a_query_has_the_same_bits_in_any_chunk(void) {
    each_isa(chunks);
}

static void in_place(h3f_context *ctx) {
    h_draw draw = {24};
    problem p = draw_problem(&draw, 210, 190, 4, 2, 20, false);
    p.a.out_stride = p.a.q_stride;
    float *apart = run(ctx, &p);
    h3f_attention a = p.a;
    a.out = p.q;
    CHECK_OK(ctx, h3f_attention_run(ctx, &a));
    for (int64_t row = 0; row < a.q_rows; row++)
        CHECK(memcmp(apart + row * a.out_stride, p.q + row * a.out_stride, 80 * sizeof(float)) ==
              0);
    free(apart);
    free_problem(&p);
}

static void test_the_result_may_replace_the_queries(void) {
    each_isa(in_place);
}

static void large_scores(h3f_context *ctx) {
    /* Scores of some hundreds: only their differences may reach exp. */
    h_draw draw = {25};
    problem p = draw_problem(&draw, 33, 150, 1, 1, 16, false);
    for (int64_t i = 0; i < 33 * p.a.q_stride; i++)
        p.q[i] *= 20;
    p.a.scale = 1;
    float *out = run(ctx, &p), *expected = expected_attention(&p);
    CHECK(h_difference(out, expected, 33 * p.a.out_stride) < 1e-3);
    for (int64_t i = 0; i < 33 * p.a.q_stride; i++)
        p.q[i] *= 40;
    free(out);
    out = run(ctx, &p);
    for (int64_t i = 0; i < 33 * p.a.out_stride; i++)
        CHECK(isfinite(out[i]));
    free(out);
    free(expected);
    free_problem(&p);
}

static void test_large_scores_do_not_overflow(void) {
    each_isa(large_scores);
}

static void special_values(h3f_context *ctx) {
    h_draw draw = {26};
    problem p = draw_problem(&draw, 40, 140, 1, 1, 16, false);
    p.q[7 * p.a.q_stride + 3] = NAN;
    float *out = run(ctx, &p);
    for (int64_t i = 0; i < 40 * 16; i++)
        CHECK((isnan(out[i]) != 0) == (i / 16 == 7));
    free(out);
    p.kv[130 * p.a.k_stride] = NAN; /* a key of the second tile */
    out = run(ctx, &p);
    for (int64_t i = 0; i < 40 * 16; i++)
        CHECK(isnan(out[i]));
    free(out);
    free_problem(&p);
}

static void test_nan_reaches_the_rows_that_see_it(void) {
    each_isa(special_values);
}

static void test_thread_counts_give_the_same_bits(void) {
    h_draw draw = {27};
    problem p = draw_problem(&draw, 230, 333, 3, 3, 40, false);
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        float *first = NULL;
        for (int32_t threads = 1; threads <= 3; threads++) {
            h3f_context *ctx = h_context(isa, threads);
            if (!ctx)
                continue;
            float *out = run(ctx, &p);
            CHECK(!first || memcmp(first, out, (size_t)(230 * p.a.out_stride) * sizeof *out) == 0);
            free(first);
            first = out;
            h3f_context_free(ctx);
        }
        free(first);
    }
    free_problem(&p);
}

int main(void) {
    RUN(test_attention_matches_the_formula);
    RUN(test_usual_head_sizes_match_the_formula);
    RUN(test_a_query_has_the_same_bits_in_any_chunk);
    RUN(test_the_result_may_replace_the_queries);
    RUN(test_large_scores_do_not_overflow);
    RUN(test_nan_reaches_the_rows_that_see_it);
    RUN(test_thread_counts_give_the_same_bits);
    return H_END();
}
