#include "harness.h"

#include <math.h>

static h3f_context *ctx;

static h3f_noise *seeded(uint64_t seed) {
    h3f_noise *noise = NULL;
    CHECK_OK(ctx, h3f_noise_new(ctx, seed, &noise));
    return noise;
}

/* ---- MT19937 as the paper has it, apart from the engine's ---- */

typedef struct twister {
    uint32_t words[624];
    int at;
} twister;

static twister twister_of(uint32_t seed) {
    twister t = {.at = 624};
    t.words[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        t.words[i] = 1812433253U * (t.words[i - 1] ^ t.words[i - 1] >> 30) + i;
    return t;
}

static uint32_t twister_next(twister *t) {
    if (t->at == 624) {
        for (int i = 0; i < 624; i++) {
            const uint32_t y = (t->words[i] & 1U << 31) | (t->words[(i + 1) % 624] & ~(1U << 31));
            t->words[i] = t->words[(i + 397) % 624] ^ y >> 1 ^ (y & 1) * 0x9908B0DFU;
        }
        t->at = 0;
    }
    uint32_t y = t->words[t->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680U;
    y ^= y << 15 & 0xEFC60000U;
    return y ^ y >> 18;
}

/* std::mt19937's published check: the 10000th number of the seed 5489. And the first of it. */
static void test_the_twister_of_this_test_is_mt19937(void) {
    twister t = twister_of(5489);
    uint32_t value = twister_next(&t);
    CHECK_INT(value, 3499211612U);
    for (int i = 1; i < 10000; i++)
        value = twister_next(&t);
    CHECK_INT(value, 4123659995U);
}

/* ---- the two ways of drawing ---- */

/* 16 and more: blocks of 16 uniform numbers of 24 bits, the radius from the first 8, the angle from
 * the last 8. */
static void expect_block(const float uniform[16], float out[16]) {
    const double turn = 2 * acos(-1.0);
    for (int i = 0; i < 8; i++) {
        const double radius = sqrt(-2 * log(1 - (double)uniform[i]));
        out[i] = (float)(radius * cos(turn * (double)uniform[i + 8]));
        out[i + 8] = (float)(radius * sin(turn * (double)uniform[i + 8]));
    }
}

static void draw_uniform(twister *t, int count, float *out) {
    for (int i = 0; i < count; i++)
        out[i] = (float)(twister_next(t) & 0xFFFFFF) / 16777216.0F;
}

static void test_blocks_of_16_are_box_muller_of_the_twister(void) {
    enum { COUNT = 1600 }; /* the twister turns over in the middle */
    static float found[COUNT];
    float uniform[16], expected[16];
    h3f_noise *noise = seeded(42);
    twister t = twister_of(42);
    h3f_noise_draw(noise, COUNT, found);
    for (int i = 0; i < COUNT; i += 16) {
        draw_uniform(&t, 16, uniform);
        expect_block(uniform, expected);
        CHECK(h_difference(found + i, expected, 16) < 1e-5);
    }
    h3f_noise_free(noise);
}

/* A count that is no multiple of 16: the last 16 are filled from 16 numbers more. */
static void test_the_tail_is_drawn_anew(void) {
    float found[37], uniform[37], expected[37];
    h3f_noise *noise = seeded(7);
    twister t = twister_of(7);
    h3f_noise_draw(noise, 37, found);
    draw_uniform(&t, 37, uniform);
    expect_block(uniform, expected);
    expect_block(uniform + 16, expected + 16);
    draw_uniform(&t, 16, uniform);
    expect_block(uniform, expected + 21);
    CHECK(h_difference(found, expected, 37) < 1e-5);
    h3f_noise_free(noise);
}

/* Below 16: pairs in double precision, 53 bits each; the second of a pair waits for the next
 * number, even over a large draw in between. */
static void test_short_draws_keep_the_second_of_a_pair(void) {
    float found[6], long_draw[16], uniform[16], expected[16];
    h3f_noise *noise = seeded(11);
    twister t = twister_of(11);
    double pair[2][2];
    h3f_noise_draw(noise, 1, found);
    h3f_noise_draw(noise, 16, long_draw);
    h3f_noise_draw(noise, 2, found + 1);
    h3f_noise_draw(noise, 1, found + 3);
    for (int i = 0; i < 2; i++) {
        double u[2];
        for (int j = 0; j < 2; j++) {
            const uint64_t high = twister_next(&t), low = twister_next(&t);
            u[j] = (double)((high << 32 | low) & 0x1FFFFFFFFFFFFFU) / 9007199254740992.0;
        }
        pair[i][0] = sqrt(-2 * log1p(-u[1])) * cos(2 * acos(-1.0) * u[0]);
        pair[i][1] = sqrt(-2 * log1p(-u[1])) * sin(2 * acos(-1.0) * u[0]);
        if (i == 0) {
            draw_uniform(&t, 16, uniform);
            expect_block(uniform, expected);
        }
    }
    CHECK(h_difference(long_draw, expected, 16) < 1e-5);
    for (int i = 0; i < 4; i++)
        CHECK(fabs((double)found[i] - pair[i / 2][i % 2]) < 1e-6);
    h3f_noise_free(noise);
}

static void test_an_empty_draw_draws_nothing(void) {
    float a[20], b[20];
    h3f_noise *noise = seeded(3), *other = seeded(3);
    h3f_noise_draw(noise, 0, a);
    h3f_noise_draw(noise, 20, a);
    h3f_noise_draw(other, 20, b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    h3f_noise_free(noise);
    h3f_noise_free(other);
}

/* torch seeds its twister with the lower 32 bits. */
static void test_seeds_alike_in_their_lower_32_bits_draw_alike(void) {
    float a[20], b[20], c[20];
    h3f_noise *noise = seeded(5), *high = seeded(5 + (7ULL << 32)), *other = seeded(6);
    h3f_noise_draw(noise, 20, a);
    h3f_noise_draw(high, 20, b);
    h3f_noise_draw(other, 20, c);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK(memcmp(a, c, sizeof a) != 0);
    h3f_noise_free(noise);
    h3f_noise_free(high);
    h3f_noise_free(other);
}

static void test_numbers_are_standard_normal(void) {
    enum { COUNT = 200000 };
    static float values[COUNT];
    double moments[5] = {0};
    h3f_noise *noise = seeded(1);
    h3f_noise_draw(noise, COUNT, values);
    for (int i = 0; i < COUNT; i++)
        for (int k = 1; k < 5; k++)
            moments[k] += pow((double)values[i], k) / (double)COUNT;
    /* Five standard errors: sqrt(var / COUNT) with variances 1, 2, 15, 96. */
    CHECK(fabs(moments[1]) < 0.012);
    CHECK(fabs(moments[2] - 1) < 0.016);
    CHECK(fabs(moments[3]) < 0.044);
    CHECK(fabs(moments[4] - 3) < 0.11);
    h3f_noise_free(noise);
}

static void test_no_memory_is_a_message(void) {
    h3f_noise *noise = NULL;
    atomic_store(&ctx->fail_allocation, 0);
    CHECK_INT(h3f_noise_new(ctx, 1, &noise), H3F_ENOMEM);
    CHECK_HAS(h3f_error(ctx), "not enough memory for a noise generator");
    CHECK(!noise);
    h3f_noise_free(NULL);
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 1);
    RUN(test_the_twister_of_this_test_is_mt19937);
    RUN(test_blocks_of_16_are_box_muller_of_the_twister);
    RUN(test_the_tail_is_drawn_anew);
    RUN(test_short_draws_keep_the_second_of_a_pair);
    RUN(test_an_empty_draw_draws_nothing);
    RUN(test_seeds_alike_in_their_lower_32_bits_draw_alike);
    RUN(test_numbers_are_standard_normal);
    RUN(test_no_memory_is_a_message);
    h3f_context_free(ctx);
    return H_END();
}
