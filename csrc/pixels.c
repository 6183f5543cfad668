/* pixels: from the numbers the video VAE was trained on to the bytes of a picture. */
#include <math.h>

#include "kernels.h"
#include "pool.h"

/* ImageNet's channel statistics, with which the VAE's pixels are normalised. */
static const double pixel_mean[3] = {0.485, 0.456, 0.406};
static const double pixel_std[3] = {0.229, 0.224, 0.225};

typedef struct rgb_job {
    const float *pixels;
    int64_t frames, height, width;
    uint8_t *rgb;
    atomic_int broken; /* 1 + the first frame with a value that is not finite; 0: none */
} rgb_job;

static uint8_t to_byte(float value, int channel) {
    const double unit = value * pixel_std[channel] + pixel_mean[channel];
    return (uint8_t)lrint(fmin(fmax(unit, 0.0), 1.0) * 255.0);
}

/* Keeps the first, whichever thread comes first. */
static void mark_broken(rgb_job *job, int frame) {
    int seen = atomic_load(&job->broken);
    while ((seen == 0 || frame < seen) && !atomic_compare_exchange_weak(&job->broken, &seen, frame))
        ;
}

static void convert_row(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    rgb_job *job = argument;
    uint8_t *out = job->rgb + item * job->width * 3;
    for (int channel = 0; channel < 3; channel++) {
        const float *row = job->pixels + (channel * job->frames * job->height + item) * job->width;
        if (!h3f_all_finite(row, job->width)) {
            mark_broken(job, (int)(item / job->height) + 1);
            return;
        }
        for (int64_t x = 0; x < job->width; x++)
            out[3 * x + channel] = to_byte(row[x], channel);
    }
}

int h3f_pixels_to_rgb(h3f_context *ctx, const float *pixels, int32_t frames, int32_t height,
                      int32_t width, uint8_t *rgb) {
    int64_t rows, values;
    if (!h3f_mul_size(frames, height, &rows) || !h3f_mul_size(rows, width, &values) ||
        !h3f_mul_size(values, 3, &values))
        return h3f_fail(ctx, H3F_EINVAL, "%d frames of %d x %d are no video", frames, height,
                        width);
    rgb_job job = {
        .pixels = pixels, .frames = frames, .height = height, .width = width, .rgb = rgb};
    atomic_init(&job.broken, 0);
    const int code = h3f_pool_run(ctx, rows, 0, convert_row, &job);
    if (code != H3F_OK)
        return code;
    const int broken = atomic_load(&job.broken);
    if (broken)
        return h3f_fail(ctx, H3F_ENUMERIC, "video VAE: NaN or infinity in the pixels of frame %d",
                        broken - 1);
    return H3F_OK;
}
