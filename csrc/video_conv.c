#include "video_conv.h"

#include <math.h>
#include <string.h>

#include "kernels_table.h"
#include "pool.h"

/* Windows are copied out so many values at a time, or so many rows when that is more: enough for
 * the product to be worth reading the weights for, and little enough to stay in the cache. */
enum { KERNEL = 3, COLUMN_VALUES = 1 << 20, COLUMN_ROWS = 512, GATHER_ROWS = 32 };
enum { NORM_PIXELS = 1024, NORM_RUN = 16 }; /* of an item; of one call of a kernel */

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* ---- weights ---- */

int h3f_conv3d_find(const h3f_checkpoint *checkpoint, h3f_conv3d *conv, const char *module) {
    const int64_t shape[] = {conv->out, conv->in, KERNEL, KERNEL, KERNEL};
    H3F_TRY(h3f_find_tensor(checkpoint, 5, shape, &conv->stored, "%s.weight", module));
    return h3f_read_vector(checkpoint, conv->out, conv->bias, "%s.bias", module);
}

static int64_t window_values(const h3f_conv3d *conv) {
    return (int64_t)conv->taps * KERNEL * KERNEL * conv->in;
}

void h3f_conv3d_layout(h3f_arena *arena, h3f_conv3d *conv, int32_t frames) {
    conv->taps = frames == 1 ? 1 : KERNEL;
    const size_t row = (size_t)window_values(conv) * h3f_dtype_size(conv->stored.dtype);
    conv->arranged = h3f_arena_take(arena, (size_t)conv->out * row);
}

/* [in, 3, 3, 3] -> [taps, 3, 3, in] for one output, elements of `size` bytes. */
static void arrange_row(void *argument, int64_t out, void *scratch) {
    (void)scratch;
    const h3f_conv3d *conv = argument;
    const size_t size = h3f_dtype_size(conv->stored.dtype);
    const int64_t kernel = KERNEL * KERNEL * KERNEL, used = (int64_t)conv->taps * KERNEL * KERNEL;
    const unsigned char *from = conv->stored.data;
    unsigned char *to = conv->arranged;
    from += (size_t)(out * conv->in * kernel + kernel - used) * size;
    to += (size_t)(out * used * conv->in) * size;
    for (int64_t tap = 0; tap < used; tap++)
        for (int64_t in = 0; in < conv->in; in++, to += size)
            memcpy(to, from + (size_t)(in * kernel + tap) * size, size);
}

int h3f_conv3d_arrange(h3f_context *ctx, const h3f_conv3d *conv) {
    h3f_conv3d argument = *conv;
    return h3f_pool_run(ctx, conv->out, 0, arrange_row, &argument);
}

/* ---- run ---- */

h3f_volume h3f_conv3d_result(const h3f_conv3d *conv, h3f_volume volume) {
    return (h3f_volume){.frames = (volume.frames - 1) / conv->time_stride + 1,
                        .height = (volume.height - 1) / conv->stride + 1,
                        .width = (volume.width - 1) / conv->stride + 1};
}

static int64_t chunk_rows(int64_t values, int64_t rows) {
    return h3f_min(rows, h3f_max(COLUMN_VALUES / values, COLUMN_ROWS));
}

static size_t column_bytes(const h3f_conv3d *conv, int64_t rows) {
    return rounded((size_t)(rows * window_values(conv)) * sizeof(float));
}

size_t h3f_conv3d_scratch(const h3f_conv3d *conv, h3f_volume volume) {
    const int64_t pixels = h3f_volume_pixels(h3f_conv3d_result(conv, volume));
    const int64_t rows = chunk_rows(window_values(conv), pixels);
    return column_bytes(conv, rows) + h3f_linear_scratch(rows, window_values(conv));
}

typedef struct gather_job {
    const h3f_conv3d *conv;
    h3f_volume from, to;
    const float *x;
    int64_t first, rows; /* pixels of the result */
    float *columns;
} gather_job;

static int64_t mirrored(int64_t i, int64_t count) {
    return i < 0 ? -i : i < count ? i : 2 * count - 2 - i;
}

/* Three pixels of a row, the first at `left`. */
static float *gather_pixels(const gather_job *job, const float *row, int64_t left, float *out) {
    const int64_t channels = job->conv->in;
    if (left >= 0 && left + KERNEL <= job->from.width) {
        memcpy(out, row + left * channels, (size_t)(KERNEL * channels) * sizeof(float));
        return out + KERNEL * channels;
    }
    for (int64_t x = left; x < left + KERNEL; x++, out += channels)
        memcpy(out, row + mirrored(x, job->from.width) * channels,
               (size_t)channels * sizeof(float));
    return out;
}

static void gather_window(const gather_job *job, int64_t pixel, float *out) {
    const h3f_conv3d *conv = job->conv;
    const int64_t area = (int64_t)job->to.height * job->to.width, margin = conv->corner ? 0 : 1;
    const int64_t top = pixel % area / job->to.width * conv->stride - margin;
    const int64_t left = pixel % job->to.width * conv->stride - margin;
    const int64_t last = pixel / area * conv->time_stride;
    const int64_t row_values = (int64_t)job->from.width * conv->in;
    for (int64_t frame = last - conv->taps + 1; frame <= last; frame++) {
        if (frame < 0) {
            memset(out, 0, (size_t)(KERNEL * KERNEL * conv->in) * sizeof(float));
            out += KERNEL * KERNEL * conv->in;
            continue;
        }
        for (int64_t y = top; y < top + KERNEL; y++) {
            const int64_t row = frame * job->from.height + mirrored(y, job->from.height);
            out = gather_pixels(job, job->x + row * row_values, left, out);
        }
    }
}

static void gather_rows(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    const gather_job *job = argument;
    const int64_t end = h3f_min((item + 1) * GATHER_ROWS, job->rows);
    for (int64_t row = item * GATHER_ROWS; row < end; row++)
        gather_window(job, job->first + row, job->columns + row * window_values(job->conv));
}

int h3f_conv3d_run(h3f_context *ctx, const h3f_conv3d *conv, h3f_volume volume, const float *x,
                   float *y, void *scratch) {
    const h3f_volume to = h3f_conv3d_result(conv, volume);
    const int64_t pixels = h3f_volume_pixels(to), values = window_values(conv);
    const int64_t chunk = chunk_rows(values, pixels);
    const h3f_linear linear = {.w = {.data = conv->arranged,
                                     .dtype = conv->stored.dtype,
                                     .rows = conv->out,
                                     .cols = values,
                                     .group = conv->out,
                                     .group_stride = conv->out},
                               .bias = conv->bias};
    void *linear_scratch = (unsigned char *)scratch + column_bytes(conv, chunk);
    for (int64_t first = 0; first < pixels; first += chunk) {
        gather_job job = {.conv = conv,
                          .from = volume,
                          .to = to,
                          .x = x,
                          .first = first,
                          .rows = h3f_min(chunk, pixels - first),
                          .columns = scratch};
        const int64_t items = (job.rows + GATHER_ROWS - 1) / GATHER_ROWS;
        H3F_TRY(h3f_pool_run(ctx, items, 0, gather_rows, &job));
        H3F_TRY(h3f_linear_run(ctx, &linear, job.columns, job.rows, y + first * conv->out,
                               conv->out, linear_scratch));
    }
    return H3F_OK;
}

size_t h3f_pointwise_scratch(const h3f_linear *linear, int64_t pixels) {
    return h3f_linear_scratch(chunk_rows(linear->w.cols, pixels), linear->w.cols);
}

int h3f_pointwise_run(h3f_context *ctx, const h3f_linear *linear, int64_t pixels, const float *x,
                      float *y, void *scratch) {
    const int64_t chunk = chunk_rows(linear->w.cols, pixels), rows = linear->w.rows;
    for (int64_t first = 0; first < pixels; first += chunk)
        H3F_TRY(h3f_linear_run(ctx, linear, x + first * linear->w.cols,
                               h3f_min(chunk, pixels - first), y + first * rows, rows, scratch));
    return H3F_OK;
}

/* ---- group norm ---- */

/* Sums are made for each channel over blocks of pixels, in double: the variance is a difference of
 * two of them. */
typedef struct norm_job {
    const h3f_group_norm *norm;
    const h3f_row_kernels *kernels;
    int64_t area, blocks; /* pixels and blocks of a frame */
    bool silu;
    const float *x;
    float *out;
    double *sums;         /* [frames, blocks, 2, channels]: of the values, of their squares */
    float *scale, *shift; /* [frames, channels] */
} norm_job;

static norm_job norm_job_of(const h3f_group_norm *norm, h3f_volume volume) {
    const int64_t area = (int64_t)volume.height * volume.width;
    return (norm_job){
        .norm = norm, .area = area, .blocks = (area + NORM_PIXELS - 1) / NORM_PIXELS};
}

static size_t sums_bytes(const norm_job *job, h3f_volume volume) {
    return rounded((size_t)(volume.frames * job->blocks * 2 * job->norm->channels) *
                   sizeof(double));
}

size_t h3f_group_norm_scratch(const h3f_group_norm *norm, h3f_volume volume) {
    const norm_job job = norm_job_of(norm, volume);
    const size_t vector = rounded((size_t)volume.frames * (size_t)norm->channels * sizeof(float));
    return sums_bytes(&job, volume) + 2 * vector;
}

static int64_t first_pixel(const norm_job *job, int64_t item, int64_t *count) {
    const int64_t first = item % job->blocks * NORM_PIXELS;
    *count = h3f_min(NORM_PIXELS, job->area - first);
    return item / job->blocks * job->area + first;
}

static void sum_block(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    const norm_job *job = argument;
    const int64_t channels = job->norm->channels;
    int64_t count;
    const float *x = job->x + first_pixel(job, item, &count) * channels;
    double *sum = job->sums + item * 2 * channels, *squares = sum + channels;
    memset(sum, 0, (size_t)(2 * channels) * sizeof *sum);
    for (int64_t pixel = 0; pixel < count; pixel++, x += channels)
        for (int64_t c = 0; c < channels; c++) {
            const double value = (double)x[c];
            sum[c] += value;
            squares[c] += value * value;
        }
}

static void finish_group(const norm_job *job, int64_t frame, int64_t group) {
    const h3f_group_norm *norm = job->norm;
    const int64_t channels = norm->channels, width = channels / norm->groups;
    const double count = (double)(width * job->area);
    double sum = 0, squares = 0;
    for (int64_t block = 0; block < job->blocks; block++) {
        const double *sums = job->sums + (frame * job->blocks + block) * 2 * channels;
        for (int64_t c = group * width; c < (group + 1) * width; c++) {
            sum += sums[c];
            squares += sums[channels + c];
        }
    }
    const double mean = sum / count, variance = fmax(squares / count - mean * mean, 0);
    const double inverse = 1.0 / sqrt(variance + (double)norm->eps);
    for (int64_t c = group * width; c < (group + 1) * width; c++) {
        const double scale = (double)norm->weight[c] * inverse;
        job->scale[frame * channels + c] = (float)scale;
        job->shift[frame * channels + c] = (float)((double)norm->bias[c] - mean * scale);
    }
}

static void apply_block(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    const norm_job *job = argument;
    const int64_t channels = job->norm->channels, frame = item / job->blocks;
    int64_t count;
    const int64_t first = first_pixel(job, item, &count);
    const float *x = job->x + first * channels, *scale = job->scale + frame * channels,
                *shift = job->shift + frame * channels;
    float *out = job->out + first * channels;
    for (int64_t pixel = 0; pixel < count; pixel += NORM_RUN) {
        const int64_t run = h3f_min(NORM_RUN, count - pixel);
        for (int64_t i = 0; i < run; i++)
            for (int64_t c = 0; c < channels; c++)
                out[i * channels + c] = x[i * channels + c] * scale[c] + shift[c];
        if (job->silu)
            job->kernels->silu(run * channels, out, out);
        x += run * channels;
        out += run * channels;
    }
}

int h3f_group_norm_run(h3f_context *ctx, const h3f_group_norm *norm, h3f_volume volume, bool silu,
                       const float *x, float *out, void *scratch) {
    norm_job job = norm_job_of(norm, volume);
    job.kernels = ctx->kernels->rows;
    job.silu = silu;
    job.x = x;
    job.out = out;
    job.sums = scratch;
    job.scale = (float *)(void *)((unsigned char *)scratch + sums_bytes(&job, volume));
    job.shift = job.scale + (int64_t)volume.frames * norm->channels;
    const int64_t items = volume.frames * job.blocks;
    H3F_TRY(h3f_pool_run(ctx, items, 0, sum_block, &job));
    for (int64_t frame = 0; frame < volume.frames; frame++)
        for (int64_t group = 0; group < norm->groups; group++)
            finish_group(&job, frame, group);
    return h3f_pool_run(ctx, items, 0, apply_block, &job);
}
