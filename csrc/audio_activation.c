#include "audio_activation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pool.h"

enum {
    PHASE_TAPS = H3F_FILTER_TAPS / 2,
    /* An output needs the doubled signal 3 rows to both sides of its own two, and these need x 3
       further. */
    HALO = 3,
    LEAST_PERIOD = 64,     /* values in the inner loop */
    TILE_VALUES = 1 << 13, /* of x in a tile: with the two phases it stays in the second cache */
    TILE_ROWS = 48
};

/* ---- weights ---- */

void h3f_activation_layout(h3f_arena *arena, h3f_activation *activation) {
    const int32_t channels = activation->channels;
    activation->period = (LEAST_PERIOD + channels - 1) / channels * channels;
    const size_t bytes = (size_t)activation->period * sizeof(float);
    activation->alpha = h3f_arena_take(arena, bytes);
    activation->inverse = h3f_arena_take(arena, bytes);
    activation->filter_up = h3f_arena_take(arena, H3F_FILTER_TAPS * sizeof(float));
    activation->filter_down = h3f_arena_take(arena, H3F_FILTER_TAPS * sizeof(float));
}

int h3f_activation_load(const h3f_checkpoint *checkpoint, h3f_activation *activation) {
    const int32_t channels = activation->channels;
    const char *name = activation->name;
    H3F_TRY(h3f_read_vector(checkpoint, channels, activation->alpha, "%s.act.alpha", name));
    H3F_TRY(h3f_read_vector(checkpoint, channels, activation->inverse, "%s.act.beta", name));
    H3F_TRY(h3f_read_vector(checkpoint, H3F_FILTER_TAPS, activation->filter_up,
                            "%s.upsample.filter", name));
    H3F_TRY(h3f_read_vector(checkpoint, H3F_FILTER_TAPS, activation->filter_down,
                            "%s.downsample.lowpass.filter", name));
    for (int32_t c = 0; c < channels; c++) {
        activation->alpha[c] = expf(activation->alpha[c]);
        activation->inverse[c] = 1.0F / (expf(activation->inverse[c]) + 1e-9F);
    }
    for (int32_t i = channels; i < activation->period; i++) {
        activation->alpha[i] = activation->alpha[i - channels];
        activation->inverse[i] = activation->inverse[i - channels];
    }
    return H3F_OK;
}

/* ---- snake ---- */

/* Up to here a multiple of pi is subtracted exactly: n pi in parts of 8 and 11 bits, n below 2^13.
 */
static const float SINE_LIMIT = 25000.0F;

/* sin(a)^2, |a| <= SINE_LIMIT, to about 1e-7: the squared sine repeats every pi, so that no sign is
 * needed. Adding and subtracting 1.5 * 2^23 rounds to an integer without a call that baseline x86
 * lacks. */
static inline float sine_squared(float a) {
    const float round = 12582912.0F;
    const float n = (a * 0.318309886F + round) - round;
    const float r = ((a - n * 3.140625F) - n * 9.67502593994140625e-4F) -
                    n * 1.509957990978376432e-7F;
    const float s = r * r;
    /* Taylor's to r^13: the rest is below 1e-9 at pi / 2. */
    float p = 1.60590438e-10F;
    p = p * s - 2.50521084e-8F;
    p = p * s + 2.75573192e-6F;
    p = p * s - 1.98412698e-4F;
    p = p * s + 8.33333333e-3F;
    p = p * s - 1.66666667e-1F;
    const float sine = r + r * s * p;
    return sine * sine;
}

static void snake_far(const h3f_activation *activation, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) {
        const float sine = sinf(values[i] * activation->alpha[i]);
        values[i] += activation->inverse[i] * (sine * sine);
    }
}

static void snake_near(const h3f_activation *activation, int64_t count, float *restrict values) {
    const float *restrict alpha = activation->alpha, *restrict inverse = activation->inverse;
    for (int64_t i = 0; i < count; i++)
        values[i] += inverse[i] * sine_squared(values[i] * alpha[i]);
}

static bool is_near(const h3f_activation *activation, int64_t count, const float *values) {
    int far = 0;
    for (int64_t i = 0; i < count; i++)
        far |= fabsf(values[i] * activation->alpha[i]) > SINE_LIMIT;
    return !far;
}

void h3f_snake(const h3f_activation *activation, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i += activation->period) {
        const int64_t left = count - i,
                      part = left < activation->period ? left : activation->period;
        if (is_near(activation, part, values + i))
            snake_near(activation, part, values + i);
        else
            snake_far(activation, part, values + i);
    }
}

/* ---- resampling ----
 *
 * u, the doubled signal, is kept as its even and its odd samples: then every tap reads a run of
 * rows, and the loops go over time and channels at once. With x and v clamped at their ends u[2m] =
 * 2 sum f[2k+1] x[m+2-k],  u[2m+1] = 2 sum f[2k] x[m+3-k],  k < 6 y[n] = sum f[2j] v[2(n+j)-5] +
 * f[2j+1] v[2(n+j)-4],  j < 6. */

/* out[i] = 2 sum over k of taps[2k] x[i + (5 - k) channels]. */
static void upsample_phase(const float *taps, int64_t channels, int64_t count,
                           const float *restrict x, float *restrict out) {
    for (int64_t i = 0; i < count; i++) {
        float sum = 0.0F;
        for (int64_t k = 0; k < PHASE_TAPS; k++)
            sum += taps[2 * k] * x[i + (PHASE_TAPS - 1 - k) * channels];
        out[i] = 2.0F * sum;
    }
}

static void downsample(const float *taps, int64_t channels, int64_t count,
                       const float *restrict even, const float *restrict odd, float *restrict out) {
    for (int64_t i = 0; i < count; i++) {
        float sum = 0.0F;
        for (int64_t j = 0; j < PHASE_TAPS; j++) {
            sum += taps[2 * j] * odd[i + j * channels];
            sum += taps[2 * j + 1] * even[i + (j + 1) * channels];
        }
        out[i] = sum;
    }
}

/* Outputs first .. first + rows - 1; the phases hold HALO rows more at both ends. */
typedef struct tile {
    const h3f_activation *activation;
    const float *x;
    int64_t length, first, rows;
    float *padded;     /* [rows + 4 HALO, channels] */
    float *even, *odd; /* [rows + 2 HALO, channels] */
} tile;

static size_t tile_bytes(const h3f_activation *activation, int64_t rows) {
    return (size_t)((3 * rows + 8 * HALO) * activation->channels) * sizeof(float);
}

static void place_tile(tile *t, float *memory) {
    const int64_t channels = t->activation->channels;
    t->padded = memory;
    t->even = t->padded + (t->rows + 4 * HALO) * channels;
    t->odd = t->even + (t->rows + 2 * HALO) * channels;
}

static int64_t clamp(int64_t value, int64_t most) {
    return value < 0 ? 0 : value > most ? most : value;
}

static void upsample_tile(const tile *t) {
    const int64_t channels = t->activation->channels, count = (t->rows + 2 * HALO) * channels;
    for (int64_t i = 0; i < t->rows + 4 * HALO; i++) {
        const int64_t row = clamp(t->first - 2 * HALO + i, t->length - 1);
        memcpy(t->padded + i * channels, t->x + row * channels, (size_t)channels * sizeof(float));
    }
    upsample_phase(t->activation->filter_up + 1, channels, count, t->padded, t->even);
    upsample_phase(t->activation->filter_up, channels, count, t->padded + channels, t->odd);
}

static void repeat_row(const tile *t, int64_t row, const float *source) {
    const int64_t at = (row - t->first + HALO) * t->activation->channels;
    const size_t bytes = (size_t)t->activation->channels * sizeof(float);
    if (t->even + at != source)
        memcpy(t->even + at, source, bytes);
    if (t->odd + at != source)
        memcpy(t->odd + at, source, bytes);
}

/* Beyond the ends the doubled signal stands still at its first and its last sample. */
static void clamp_ends(const tile *t) {
    const int64_t channels = t->activation->channels, last = t->length - 1;
    for (int64_t row = t->first - HALO; row < 0; row++)
        repeat_row(t, row, t->even + (HALO - t->first) * channels);
    for (int64_t row = t->length; row < t->first + t->rows + HALO; row++)
        repeat_row(t, row, t->odd + (last - t->first + HALO) * channels);
}

static void activate_tile(const tile *t) {
    const int64_t count = (t->rows + 2 * HALO) * t->activation->channels;
    h3f_snake(t->activation, count, t->even);
    h3f_snake(t->activation, count, t->odd);
    clamp_ends(t);
}

static void downsample_tile(const tile *t, float *out) {
    const int64_t channels = t->activation->channels;
    downsample(t->activation->filter_down, channels, t->rows * channels, t->even, t->odd,
               out + t->first * channels);
}

/* ---- run ---- */

typedef struct run_job {
    const h3f_activation *activation;
    const float *x;
    float *out;
    int64_t length, rows;
} run_job;

static void run_tile(void *argument, int64_t item, void *scratch) {
    const run_job *job = argument;
    const int64_t first = item * job->rows, left = job->length - first;
    tile t = {.activation = job->activation,
              .x = job->x,
              .length = job->length,
              .first = first,
              .rows = left < job->rows ? left : job->rows};
    place_tile(&t, scratch);
    upsample_tile(&t);
    activate_tile(&t);
    downsample_tile(&t, job->out);
}

int h3f_activation_run(h3f_context *ctx, const h3f_activation *activation, const float *x,
                       int64_t length, float *out) {
    const int64_t fitting = TILE_VALUES / activation->channels;
    run_job job = {.activation = activation, .x = x, .out = out, .length = length};
    job.rows = fitting > TILE_ROWS ? fitting : TILE_ROWS;
    const int64_t items = (length + job.rows - 1) / job.rows;
    return h3f_pool_run(ctx, items, tile_bytes(activation, job.rows), run_tile, &job);
}

static void interleave(const tile *t, float *out) {
    const int64_t channels = t->activation->channels;
    const size_t bytes = (size_t)channels * sizeof(float);
    for (int64_t i = 0; i < t->rows; i++) {
        memcpy(out + 2 * i * channels, t->even + (i + HALO) * channels, bytes);
        memcpy(out + (2 * i + 1) * channels, t->odd + (i + HALO) * channels, bytes);
    }
}

int h3f_activation_trace(h3f_context *ctx, const h3f_activation *activation, const float *x,
                         int64_t length, float *upsampled, float *activated, float *out) {
    tile t = {.activation = activation, .x = x, .length = length, .rows = length};
    float *memory = h3f_alloc(ctx, tile_bytes(activation, length), "an activation");
    if (!memory)
        return H3F_ENOMEM;
    place_tile(&t, memory);
    upsample_tile(&t);
    interleave(&t, upsampled);
    activate_tile(&t);
    interleave(&t, activated);
    downsample_tile(&t, out);
    h3f_free(ctx, memory);
    return H3F_OK;
}
