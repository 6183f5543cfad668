#include "harness.h"

#include <math.h>

enum { MOST = 4096 };
static float sigmas[MOST];

static int32_t made(h3f_context *ctx, float shift, int32_t points) {
    int32_t count = -1;
    CHECK_OK(ctx, h3f_sigmas(ctx, shift, points, sigmas, &count));
    return count;
}

static void test_falls_from_one_to_zero_without_a_step_in_place(void) {
    static const float shifts[] = {0.001F, 0.3F, 1, 3, 12, 1000};
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++)
        for (int32_t points = 2; points <= MOST; points += 1 + points / 7) {
            const int32_t count = made(ctx, shifts[i], points);
            CHECK(count >= 2 && count <= points);
            CHECK(fabsf(sigmas[0] - 1) < 1e-4F);
            CHECK(sigmas[count - 1] == 0 && !signbit(sigmas[count - 1]));
            for (int32_t j = 1; j < count; j++)
                CHECK(sigmas[j] < sigmas[j - 1]);
        }
    h3f_context_free(ctx);
}

static void test_two_points_are_one_step_from_noise_to_data(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    CHECK_INT(made(ctx, 12, 2), 2);
    CHECK(sigmas[0] == 1 && sigmas[1] == 0);
    h3f_context_free(ctx);
}

/* shift 1 leaves the grid as it is: equal distances. */
static void test_shift_bends_the_grid_by_the_formula(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    for (int shift = 1; shift <= 12; shift += 11) {
        CHECK_INT(made(ctx, (float)shift, 21), 21);
        for (int i = 0; i < 21; i++) {
            const double b = 1 - i / 20.0;
            CHECK(fabs((double)sigmas[i] - shift * b / (1 + (shift - 1) * b)) < 1e-6);
        }
    }
    h3f_context_free(ctx);
}

/* A large shift crowds the first points until float32 cannot tell them apart. */
static void test_points_that_round_to_the_same_sigma_are_dropped(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    const int32_t count = made(ctx, 1e6F, MOST);
    CHECK(count > 2 && count < MOST);
    for (int32_t i = 1; i < count; i++)
        CHECK(sigmas[i] < sigmas[i - 1]);
    CHECK(sigmas[0] == 1 && sigmas[count - 1] == 0);
    h3f_context_free(ctx);
}

static void test_impossible_schedules_are_refused(void) {
    static const struct {
        float shift;
        int32_t points;
        const char *sentence;
    } table[] = {
        {12, 1, "a schedule needs at least 2 grid points, got 1"},
        {12, -4, "a schedule needs at least 2 grid points, got -4"},
        {0, 20, "shift must be from 0.001 to 1000000, got 0"},
        {-3, 20, "shift must be from 0.001 to 1000000, got -3"},
        {1e-9F, 20,
         "shift must be from 0.001 to 1000000, got 9.99999972e-10"}, /* 1 + (shift - 1) is 0 */
        {INFINITY, 20, "shift must be from 0.001 to 1000000, got inf"},
    };
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int32_t count = -1;
        CHECK_INT(h3f_sigmas(ctx, table[i].shift, table[i].points, sigmas, &count), H3F_EINVAL);
        CHECK_TEXT(h3f_error(ctx), table[i].sentence);
        CHECK_INT(count, -1);
    }
    int32_t count = -1;
    CHECK_INT(h3f_sigmas(ctx, NAN, 20, sigmas, &count), H3F_EINVAL);
    h3f_context_free(ctx);
}

/* ---- the step ---- */

enum { VALUES = 37 };

/* The network predicts x0 - noise: with the true velocity each step stays on the line between them.
 */
static void test_euler_follows_a_straight_line_to_the_data(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    h_draw draw = {1};
    float noise[VALUES], clean[VALUES], velocity[VALUES], sample[VALUES];
    h_fill(&draw, noise, VALUES);
    h_fill(&draw, clean, VALUES);
    for (int i = 0; i < VALUES; i++)
        velocity[i] = clean[i] - noise[i];
    memcpy(sample, noise, sizeof sample);
    const int32_t count = made(ctx, 12, 21);
    for (int32_t step = 0; step + 1 < count; step++) {
        h3f_euler_step(sigmas, step, velocity, VALUES, sample);
        for (int i = 0; i < VALUES; i++) {
            const float expected = clean[i] - sigmas[step + 1] * velocity[i];
            CHECK(fabsf(sample[i] - expected) < 1e-5F);
        }
    }
    h3f_context_free(ctx);
}

/* The last step goes to sigma 0: what is left is the prediction of the data, to the bit. */
static void test_last_step_gives_exactly_the_predicted_data(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 1);
    h_draw draw = {2};
    float velocity[VALUES], sample[VALUES], expected[VALUES];
    const int32_t last = made(ctx, 3, 9) - 2;
    h_fill(&draw, velocity, VALUES);
    h_fill(&draw, sample, VALUES);
    const float sigma = 1.0F - (1.0F - sigmas[last]);
    for (int i = 0; i < VALUES; i++)
        expected[i] = sample[i] + sigma * velocity[i];
    h3f_euler_step(sigmas, last, velocity, VALUES, sample);
    for (int i = 0; i < VALUES; i++)
        CHECK(sample[i] == expected[i]);
    h3f_context_free(ctx);
}

int main(void) {
    RUN(test_falls_from_one_to_zero_without_a_step_in_place);
    RUN(test_two_points_are_one_step_from_noise_to_data);
    RUN(test_shift_bends_the_grid_by_the_formula);
    RUN(test_points_that_round_to_the_same_sigma_are_dropped);
    RUN(test_impossible_schedules_are_refused);
    RUN(test_euler_follows_a_straight_line_to_the_data);
    RUN(test_last_step_gives_exactly_the_predicted_data);
    return H_END();
}
