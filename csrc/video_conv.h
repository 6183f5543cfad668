/* video_conv: the video encoder's causal convolutions, as matrix products, and its group norm.
 *
 * A volume is [frames, height, width, channels], so that what a window takes from a row of pixels
 * is one run of values. Windows see two frames of zeros before the first frame, and the picture
 * mirrored beyond its edges (the edge itself not repeated). */
#ifndef H3F_VIDEO_CONV_H
#define H3F_VIDEO_CONV_H

#include "arena.h"
#include "checkpoint.h"

typedef struct h3f_volume {
    int32_t frames, height, width;
} h3f_volume;

static inline int64_t h3f_volume_pixels(h3f_volume volume) {
    return (int64_t)volume.frames * volume.height * volume.width;
}

/* Three frames of 3 x 3 pixels. */
typedef struct h3f_conv3d {
    int32_t in, out;
    int32_t time_stride, stride;
    bool corner;       /* windows begin at their pixel; else they are centred on it */
    h3f_tensor stored; /* [out, in, 3, 3, 3], in the mapping */
    float *bias;       /* [out] */
    int32_t taps;      /* frames of a window that see any: 1 for a single picture, else 3 */
    void *arranged;    /* [out, taps, 3, 3, in], of the stored type */
} h3f_conv3d;

/* Finds `<module>.weight` and reads `<module>.bias` into conv->bias. */
int h3f_conv3d_find(const h3f_checkpoint *checkpoint, h3f_conv3d *conv, const char *module);
/* Takes the room for the weights of volumes of so many frames; `arrange` fills it. */
void h3f_conv3d_layout(h3f_arena *arena, h3f_conv3d *conv, int32_t frames);
int h3f_conv3d_arrange(h3f_context *ctx, const h3f_conv3d *conv);

h3f_volume h3f_conv3d_result(const h3f_conv3d *conv, h3f_volume volume);
size_t h3f_conv3d_scratch(const h3f_conv3d *conv, h3f_volume volume);
/* x: the volume, with conv->in channels; y: its result, with conv->out. They must not overlap. */
int h3f_conv3d_run(h3f_context *ctx, const h3f_conv3d *conv, h3f_volume volume, const float *x,
                   float *y, void *scratch);

/* y = W x + bias for every pixel, some rows at a time. */
size_t h3f_pointwise_scratch(const h3f_linear *linear, int64_t pixels);
int h3f_pointwise_run(h3f_context *ctx, const h3f_linear *linear, int64_t pixels, const float *x,
                      float *y, void *scratch);

/* Each frame by itself: over its pixels and the channels of a group. */
typedef struct h3f_group_norm {
    int32_t channels, groups;
    float eps;
    float *weight, *bias; /* [channels] */
} h3f_group_norm;

size_t h3f_group_norm_scratch(const h3f_group_norm *norm, h3f_volume volume);
/* out = norm(x), or silu of that; out may be x. */
int h3f_group_norm_run(h3f_context *ctx, const h3f_group_norm *norm, h3f_volume volume, bool silu,
                       const float *x, float *out, void *scratch);

#endif
