/* torch's CPU generator: MT19937 and Box-Muller, so that a seed gives the reference's noise.
 *
 * MT19937: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998). The two ways of
 * drawing normal numbers are torch.randn's: below 16 elements one by one in double precision, from
 * 16 on by blocks of 16 in single precision. */
#include "context.h"

#include <math.h>

enum { N = 624, M = 397, BLOCK = 16 };

struct h3f_noise {
    h3f_context *ctx;
    uint32_t state[N];
    int32_t next;
    /* Box-Muller makes two numbers; the one by one way keeps the second for its next call. */
    bool has_spare;
    double spare;
};

int h3f_noise_new(h3f_context *ctx, uint64_t seed, h3f_noise **noise) {
    h3f_noise *made = h3f_alloc(ctx, sizeof *made, "a noise generator");
    if (!made)
        return H3F_ENOMEM;
    made->ctx = ctx;
    made->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < N; i++) {
        const uint32_t before = made->state[i - 1];
        made->state[i] = 1812433253U * (before ^ (before >> 30)) + i;
    }
    made->next = N;
    *noise = made;
    return H3F_OK;
}

void h3f_noise_free(h3f_noise *noise) {
    if (noise)
        h3f_free(noise->ctx, noise);
}

static void twist(h3f_noise *noise) {
    uint32_t *s = noise->state;
    for (int i = 0; i < N; i++) {
        const uint32_t mixed = (s[i] & 0x80000000U) | (s[(i + 1) % N] & 0x7fffffffU);
        s[i] = s[(i + M) % N] ^ (mixed >> 1) ^ (mixed & 1 ? 0x9908b0dfU : 0U);
    }
    noise->next = 0;
}

static uint32_t next_bits(h3f_noise *noise) {
    if (noise->next == N)
        twist(noise);
    uint32_t bits = noise->state[noise->next++];
    bits ^= bits >> 11;
    bits ^= (bits << 7) & 0x9d2c5680U;
    bits ^= (bits << 15) & 0xefc60000U;
    return bits ^ (bits >> 18);
}

/* 53 bits, [0, 1). */
static double next_double(h3f_noise *noise) {
    const uint64_t high = next_bits(noise), low = next_bits(noise);
    return (double)(((high << 32) | low) & ((1ULL << 53) - 1)) * 0x1p-53;
}

static double next_normal(h3f_noise *noise) {
    if (noise->has_spare) {
        noise->has_spare = false;
        return noise->spare;
    }
    const double turn = next_double(noise), length = next_double(noise);
    const double radius = sqrt(-2.0 * log1p(-length)), angle = 2.0 * acos(-1.0) * turn;
    noise->spare = radius * sin(angle);
    noise->has_spare = true;
    return radius * cos(angle);
}

/* 24 bits each, [0, 1). */
static void draw_uniform(h3f_noise *noise, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(next_bits(noise) & 0xffffffU) * 0x1p-24F;
}

/* 16 uniform numbers become 16 normal ones. */
static void to_normal(float *block) {
    for (int i = 0; i < BLOCK / 2; i++) {
        const float length = 1.0F - block[i]; /* (0, 1]: its logarithm exists */
        const float angle = 2.0F * acosf(-1.0F) * block[i + BLOCK / 2];
        const float radius = sqrtf(-2.0F * logf(length));
        block[i] = radius * cosf(angle);
        block[i + BLOCK / 2] = radius * sinf(angle);
    }
}

void h3f_noise_draw(h3f_noise *noise, int64_t count, float *out) {
    if (count < BLOCK) {
        for (int64_t i = 0; i < count; i++)
            out[i] = (float)next_normal(noise);
        return;
    }
    draw_uniform(noise, count, out);
    for (int64_t i = 0; i + BLOCK <= count; i += BLOCK)
        to_normal(out + i);
    if (count % BLOCK) {
        /* The last 16 are drawn anew, those of the last whole block among them. */
        draw_uniform(noise, BLOCK, out + count - BLOCK);
        to_normal(out + count - BLOCK);
    }
}
