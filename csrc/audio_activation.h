/* audio_activation: SnakeBeta without aliasing: twice the rate, x + sin(alpha x)^2 / beta, and
 * back.
 *
 * Both resamplings are one symmetric low-pass filter. Signals are time-major, [length, channels].
 */
#ifndef H3F_AUDIO_ACTIVATION_H
#define H3F_AUDIO_ACTIVATION_H

#include "arena.h"
#include "checkpoint.h"

enum { H3F_FILTER_TAPS = 12 }; /* BigVGAN's: 6 a phase, at a ratio of 2 */

typedef struct h3f_activation {
    char name[64]; /* of the module in the checkpoint */
    int32_t channels;
    int32_t period; /* alpha and beta are repeated to this length, a multiple of channels */
    float *alpha;   /* [period], exp of the stored one */
    float *inverse; /* [period], 1 / (exp of the stored beta + 1e-9) */
    float *filter_up, *filter_down; /* [H3F_FILTER_TAPS] */
} h3f_activation;

/* `name` and `channels` are set before. */
void h3f_activation_layout(h3f_arena *arena, h3f_activation *activation);
int h3f_activation_load(const h3f_checkpoint *checkpoint, h3f_activation *activation);

/* x, out: [length, channels], not overlapping. */
int h3f_activation_run(h3f_context *ctx, const h3f_activation *activation, const float *x,
                       int64_t length, float *out);

/* The same in one piece, for tests, with what lies between. upsampled, activated: [2 length,
 * channels]. */
int h3f_activation_trace(h3f_context *ctx, const h3f_activation *activation, const float *x,
                         int64_t length, float *upsampled, float *activated, float *out);

/* values[i] += inverse[c] * sin(alpha[c] values[i])^2 in place, for values [count / channels,
 * channels]. */
void h3f_snake(const h3f_activation *activation, int64_t count, float *values);

#endif
