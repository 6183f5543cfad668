/* audio_conv: one-dimensional convolutions, plain and transposed, as matrix products.
 *
 * Signals are time-major, [length, channels], so that a window of a signal is a run of rows. A
 * transposed convolution of rate r is one product as well: row a of it gives the r outputs that
 * begin at a, each from the taps of its phase. */
#ifndef H3F_AUDIO_CONV_H
#define H3F_AUDIO_CONV_H

#include "arena.h"
#include "checkpoint.h"

typedef struct h3f_conv {
    char name[64];   /* of the module in the checkpoint */
    int32_t in, out; /* channels; when opened, 0 in `out` or `kernel` takes what the file has */
    int32_t kernel;
    int32_t dilation; /* of a plain one */
    int32_t rate;     /* of a transposed one; 0: plain */
    bool biased;
    int32_t taps;   /* rows of a window */
    int32_t before; /* of them, before the row it belongs to */
    int32_t lead;   /* rows of the product before the first output: the cut of a transposed one */
    float *weight;  /* [outputs a row, taps, in] */
    float *bias;    /* [outputs a row] or NULL */
    h3f_linear linear;
} h3f_conv;

/* From the file's shapes; the weights come with h3f_conv_load. H3F_ETENSOR names file, tensor and
 * both shapes. */
int h3f_conv_find(const h3f_checkpoint *checkpoint, h3f_conv *conv);
void h3f_conv_layout(h3f_arena *arena, h3f_conv *conv);
/* Folds weight_g and weight_v, if that is how the weight is stored: w = g v / |v|, the norm over
 * all axes but the first (of a transposed one: the input channels). */
int h3f_conv_load(const h3f_checkpoint *checkpoint, h3f_conv *conv);

/* Floats that `y` of h3f_conv_run needs for a signal of `length`. */
int64_t h3f_conv_room(const h3f_conv *conv, int64_t length);
/* Bytes of `scratch` likewise. */
size_t h3f_conv_scratch(const h3f_conv *conv, int64_t length);
/* x: [length, in]. The result, [length * rate, out], begins at *result, within y. */
int h3f_conv_run(h3f_context *ctx, const h3f_conv *conv, const float *x, int64_t length,
                 void *scratch, float *y, float **result);

#endif
