/* Row kernels: every instruction set against the plain one, and that one against known values. */
#include "harness.h"
#include "kernels.h"
#include "kernels_exp.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 5000 };

static void each_isa(void (*check)(h3f_context *ctx, h3f_context *plain)) {
    h3f_context *plain = h_context(H3F_ISA_SCALAR, 1);
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *ctx = h_context(isa, 2);
        if (ctx)
            check(ctx, plain);
        h3f_context_free(ctx);
    }
    h3f_context_free(plain);
}

/* Drawn values that begin one float past an aligned place, now and then with something special
 * among them. */
static float *drawn(h_draw *draw, int64_t count) {
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    h_fill(draw, values, count + 1);
    if (count > 0 && h_between(draw, 0, 9) == 0)
        values[1 + h_between(draw, 0, count - 1)] = h_between(draw, 0, 1) ? NAN : INFINITY;
    return values + 1;
}

static void release(float *values) {
    free(values - 1);
}

static float *copy_of(const float *values, int64_t count) {
    float *copy = malloc((size_t)(count + 1) * sizeof *copy);
    memcpy(copy + 1, values, (size_t)count * sizeof *copy);
    return copy + 1;
}

static void check_same(h3f_context *ctx, const char *what, const float *actual,
                       const float *expected, int64_t count, double bound) {
    double difference = h_difference(actual, expected, count);
    if (!(difference <= bound))
        h_failed(__FILE__, __LINE__, "%s: %s of %lld values: off by %g", h3f_isa_name(ctx), what,
                 (long long)count, difference);
}

typedef int norm_fn(h3f_context *ctx, const h3f_norm *norm, const float *x, float *out);

static void norms(h3f_context *ctx, h3f_context *plain) {
    static norm_fn *const functions[] = {h3f_rms_norm, h3f_layer_norm};
    h_draw draw = {31};
    for (int i = 0; i < 100; i++) {
        norm_fn *norm = functions[i % 2];
        int64_t rows = h_between(&draw, 1, 40), cols = h_between(&draw, 1, i % 10 ? 70 : MOST);
        float *x = drawn(&draw, rows * cols), *weight = drawn(&draw, cols),
              *bias = drawn(&draw, cols);
        float *out = copy_of(x, rows * cols), *expected = copy_of(x, rows * cols);
        h3f_norm options = {.rows = rows, .cols = cols, .eps = 1e-6F};
        options.weight = i % 3 ? weight : NULL;
        options.bias = i % 4 >= 2 && i % 2 ? bias : NULL;
        CHECK_OK(ctx, norm(ctx, &options, out, out)); /* in place */
        CHECK_OK(plain, norm(plain, &options, x, expected));
        check_same(ctx, "norm", out, expected, rows * cols, 3e-7);
        release(x), release(weight), release(bias), release(out), release(expected);
    }
}

static void test_norms_match_the_plain_ones(void) {
    each_isa(norms);
}

static void test_norms_of_known_rows(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    const float x[4] = {3, -4, 0, 0}, weight[4] = {1, 2, 3, 4}, bias[4] = {0, 0, 1, 0};
    float out[4];
    h3f_norm norm = {.rows = 1, .cols = 4, .weight = weight};
    CHECK_OK(ctx, h3f_rms_norm(ctx, &norm, x, out));
    CHECK(fabsf(out[0] - 1.2F) < 1e-6F && fabsf(out[1] + 3.2F) < 1e-6F && out[2] == 0);
    const float y[4] = {1, 3, 1, 3};
    norm.bias = bias;
    CHECK_OK(ctx, h3f_layer_norm(ctx, &norm, y, out));
    CHECK(out[0] == -1 && out[1] == 2 && out[2] == -2 && out[3] == 4);
    h3f_context_free(ctx);
}

static void rotations(h3f_context *ctx, h3f_context *plain) {
    h_draw draw = {32};
    for (int i = 0; i < 60; i++) {
        h3f_rotary rotary = {.rows = h_between(&draw, 1, 60),
                             .heads = (int32_t)h_between(&draw, 1, 4)};
        rotary.head_dim = (int32_t)h_between(&draw, 1, 130);
        rotary.pairs = (int32_t)h_between(&draw, 0, rotary.head_dim / 2);
        rotary.stride = (int64_t)rotary.heads * rotary.head_dim + h_between(&draw, 0, 2);
        float *cosine = drawn(&draw, rotary.rows * rotary.pairs),
              *sine = drawn(&draw, rotary.rows * rotary.pairs);
        int64_t count = rotary.rows * rotary.stride;
        float *x = drawn(&draw, count), *expected = copy_of(x, count);
        rotary.cosine = cosine;
        rotary.sine = sine;
        CHECK_OK(ctx, h3f_rotate(ctx, &rotary, x));
        CHECK_OK(plain, h3f_rotate(plain, &rotary, expected));
        check_same(ctx, "rotation", x, expected, count, 0);
        release(cosine), release(sine), release(x), release(expected);
    }
}

static void test_rotations_match_the_plain_ones(void) {
    each_isa(rotations);
}

static void test_a_quarter_turn_swaps_the_pair(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    float x[5] = {1, 2, 3, 4, 5};
    const float cosine[2] = {0, 1}, sine[2] = {1, 0};
    h3f_rotary rotary = {.rows = 1, .stride = 5, .heads = 1, .head_dim = 5, .pairs = 2};
    rotary.cosine = cosine;
    rotary.sine = sine;
    CHECK_OK(ctx, h3f_rotate(ctx, &rotary, x));
    CHECK(x[0] == -3 && x[1] == 2 && x[2] == 1 && x[3] == 4 && x[4] == 5);
    h3f_context_free(ctx);
}

static void modulations(h3f_context *ctx, h3f_context *plain) {
    h_draw draw = {33};
    for (int i = 0; i < 60; i++) {
        int64_t rows = h_between(&draw, 1, 50), cols = h_between(&draw, 1, i % 10 ? 60 : MOST);
        float *tables = drawn(&draw, 3 * cols), *x = drawn(&draw, rows * cols),
              *branch = drawn(&draw, rows * cols);
        const float *shift[50], *scale[50];
        for (int64_t row = 0; row < rows; row++) {
            shift[row] = tables + h_between(&draw, 0, 2) * cols;
            scale[row] = tables + h_between(&draw, 0, 2) * cols;
        }
        float *out = copy_of(x, rows * cols), *expected = copy_of(x, rows * cols);
        CHECK_OK(ctx, h3f_modulate(ctx, rows, cols, out, shift, scale, out));
        CHECK_OK(plain, h3f_modulate(plain, rows, cols, x, shift, scale, expected));
        check_same(ctx, "modulation", out, expected, rows * cols, 0);
        CHECK_OK(ctx, h3f_add_gated(ctx, rows, cols, i % 2 ? scale : NULL, branch, out));
        CHECK_OK(plain, h3f_add_gated(plain, rows, cols, i % 2 ? scale : NULL, branch, expected));
        check_same(ctx, "gated sum", out, expected, rows * cols, 0);
        release(tables), release(x), release(branch), release(out), release(expected);
    }
}

static void test_modulation_and_gated_sums_match_the_plain_ones(void) {
    each_isa(modulations);
}

static void test_modulation_of_known_rows(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    const float a[2] = {1, 2}, b[2] = {0.5F, -1};
    const float *const shift[2] = {a, b}, *const scale[2] = {b, a};
    float x[4] = {2, 2, 3, 3};
    CHECK_OK(ctx, h3f_modulate(ctx, 2, 2, x, shift, scale, x));
    CHECK(x[0] == 4 && x[1] == 2 && x[2] == 6.5F && x[3] == 8);
    const float branch[4] = {10, 10, 10, 10};
    CHECK_OK(ctx, h3f_add_gated(ctx, 2, 2, shift, branch, x));
    CHECK(x[0] == 14 && x[1] == 22 && x[2] == 11.5F && x[3] == -2);
    h3f_context_free(ctx);
}

static void silus(h3f_context *ctx, h3f_context *plain) {
    h_draw draw = {34};
    for (int i = 0; i < 60; i++) {
        int64_t count = h_between(&draw, 1, i % 10 ? 100 : 100000);
        float *x = drawn(&draw, count), *up = drawn(&draw, count);
        for (int64_t j = 0; j < count; j++)
            x[j] *= i % 3 ? 3 : 60;
        float *gate = copy_of(x, count), *expected = copy_of(x, count);
        CHECK_OK(ctx, h3f_silu_mul(ctx, count, gate, up));
        CHECK_OK(plain, h3f_silu_mul(plain, count, expected, up));
        check_same(ctx, "silu product", gate, expected, count, 1e-6);
        CHECK_OK(ctx, h3f_silu(ctx, count, x, gate));
        CHECK_OK(plain, h3f_silu(plain, count, x, expected));
        check_same(ctx, "silu", gate, expected, count, 1e-6);
        release(x), release(up), release(gate), release(expected);
    }
}

static void test_silu_matches_the_plain_one(void) {
    each_isa(silus);
}

static void test_exp_is_within_an_ulp(void) {
    double worst = 0;
    for (float x = -87; x < 88; x += 0.00037F) {
        double expected = exp((double)x), error = fabs((double)h3f_exp(x) - expected);
        double ulp = ldexp(1, ilogb(expected) - 23);
        worst = error / ulp > worst ? error / ulp : worst;
    }
    CHECK(worst < 1.05);
    CHECK(h3f_exp(0) == 1 && h3f_exp(-INFINITY) == 0 && h3f_exp(INFINITY) == INFINITY);
    CHECK(h3f_exp(-0.0F) == 1 && h3f_exp(200) == INFINITY && h3f_exp(-200) == 0 &&
          isnan(h3f_exp(NAN)));
    CHECK(fabsf(h3f_exp(-100) / expf(-100) - 1) < 0.02F); /* a subnormal has few bits */
}

static void test_finite_means_every_value(void) {
    float x[70];
    for (int i = 0; i < 70; i++)
        x[i] = i % 2 ? 3e38F : -1e-40F;
    CHECK(h3f_all_finite(x, 70) && h3f_all_finite(x, 0));
    for (int i = 0; i < 70; i++) {
        float kept = x[i];
        x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
        CHECK(!h3f_all_finite(x, 70));
        CHECK(h3f_all_finite(x, i));
        x[i] = kept;
    }
}

static void test_widening_is_exact(void) {
    unsigned char bytes[2 * 65536 + 1];
    float *wide = malloc(65536 * sizeof *wide);
    for (int i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i;
        memcpy(bytes + 1 + 2 * i, &half, 2); /* at odd addresses */
    }
    h3f_widen(H3F_F16, bytes + 1, 65536, wide);
    for (int i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        double expected = exponent == 0   ? ldexp(mantissa, -24)
                          : exponent < 31 ? ldexp(1024 + mantissa, exponent - 25)
                          : mantissa == 0 ? INFINITY
                                          : NAN;
        expected = i & 0x8000 ? -expected : expected;
        CHECK(isnan(expected) ? isnan(wide[i]) != 0
                              : (double)wide[i] == expected && !signbit(wide[i]) == !(i & 0x8000));
    }
    h3f_widen(H3F_BF16, bytes + 1, 65536, wide);
    for (int i = 0; i < 65536; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], 4);
        CHECK(bits == (uint32_t)i << 16);
    }
    free(wide);
}

int main(void) {
    RUN(test_norms_match_the_plain_ones);
    RUN(test_norms_of_known_rows);
    RUN(test_rotations_match_the_plain_ones);
    RUN(test_a_quarter_turn_swaps_the_pair);
    RUN(test_modulation_and_gated_sums_match_the_plain_ones);
    RUN(test_modulation_of_known_rows);
    RUN(test_silu_matches_the_plain_one);
    RUN(test_exp_is_within_an_ulp);
    RUN(test_finite_means_every_value);
    RUN(test_widening_is_exact);
    return H_END();
}
