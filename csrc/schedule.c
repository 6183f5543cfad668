/* The two-schedule Euler sampler, float32 throughout. Source: docs/model.md, "Sampler". */
#include "context.h"

#include <math.h>

/* torch.linspace(1, 0, points): the first half counts from the start, the second from the end; the
 * product and the sum are rounded once, as torch's compiled loop does it. */
static float linear_sigma(int32_t i, int32_t points) {
    const float step = -1.0F / (float)(points - 1);
    return i < points / 2 ? fmaf(step, (float)i, 1.0F) : 0.0F - step * (float)(points - 1 - i);
}

int h3f_sigmas(h3f_context *ctx, float shift, int32_t points, float *sigmas, int32_t *count) {
    if (points < 2)
        return h3f_fail(ctx, H3F_EINVAL, "a schedule needs at least 2 grid points, got %d", points);
    /* Below, 1 + (shift - 1) loses what makes the first sigma 1. */
    if (!(shift >= 1e-3F && shift <= 1e6F))
        return h3f_fail(ctx, H3F_EINVAL, "shift must be from 0.001 to 1000000, got %.9g",
                        (double)shift);
    int32_t written = 0;
    for (int32_t i = 0; i < points; i++) {
        const float b = linear_sigma(i, points);
        const float sigma = shift * b / (1.0F + (shift - 1.0F) * b);
        /* Neighbours that crowd together may even rise by a rounding. */
        if (written == 0 || sigma < sigmas[written - 1])
            sigmas[written++] = sigma;
    }
    *count = written;
    return H3F_OK;
}

void h3f_euler_step(const float *sigmas, int32_t step, const float *velocity, int64_t count,
                    float *sample) {
    /* The reference stores t and takes sigma back from it, rounding on the way. */
    const float t = 1.0F - sigmas[step], sigma = 1.0F - t;
    const float ratio = sigmas[step + 1] / sigmas[step];
    for (int64_t i = 0; i < count; i++) {
        const float clean = sample[i] + sigma * velocity[i];
        sample[i] = ratio * sample[i] + (1.0F - ratio) * clean;
    }
}
