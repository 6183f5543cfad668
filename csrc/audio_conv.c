#include "audio_conv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pool.h"

/* Windows are copied out this many values at a time, at least: enough rows for the product to be
 * worth reading the weights for, and still few megabytes. */
enum { COLUMN_VALUES = 1 << 22, COLUMN_ROWS = 64, GATHER_ROWS = 32 };

static int32_t outputs_a_row(const h3f_conv *conv) {
    return conv->out * (conv->rate ? conv->rate : 1);
}

/* ---- weights ---- */

static int shape_failure(const h3f_checkpoint *checkpoint, const h3f_tensor *tensor,
                         const h3f_conv *conv) {
    char found[128] = "", wanted[3][16];
    size_t used = 0;
    for (int32_t i = 0; i < tensor->ndim && used < sizeof found; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%lld", i ? ", " : "",
                                 (long long)tensor->shape[i]);
    const int32_t sizes[3] = {conv->rate ? conv->in : conv->out, conv->rate ? conv->out : conv->in,
                              conv->kernel};
    for (int i = 0; i < 3; i++)
        snprintf(wanted[i], sizeof wanted[i], sizes[i] ? "%d" : "any", sizes[i]);
    return h3f_fail(h3f_checkpoint_context(checkpoint), H3F_ETENSOR,
                    "%s: tensor '%s' has shape [%s], expected [%s, %s, %s]", tensor->file,
                    tensor->name, found, wanted[0], wanted[1], wanted[2]);
}

static bool is_folded(const h3f_checkpoint *checkpoint, const h3f_conv *conv) {
    char name[96];
    snprintf(name, sizeof name, "%s.weight", conv->name);
    return h3f_checkpoint_has(checkpoint, name);
}

static int find_weight(const h3f_checkpoint *checkpoint, const h3f_conv *conv, h3f_tensor *tensor) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", conv->name,
             is_folded(checkpoint, conv) ? "weight" : "weight_v");
    H3F_TRY(h3f_checkpoint_find(checkpoint, name, tensor));
    return h3f_check_dtype(checkpoint, tensor);
}

static bool fits(int64_t found, int32_t wanted) {
    return found >= 1 && found <= 1 << 20 && (wanted == 0 || found == wanted);
}

/* Lengths are kept, or multiplied by the rate, only when the padding is even. */
static int check_kernel(const h3f_checkpoint *checkpoint, const h3f_tensor *tensor,
                        const h3f_conv *conv) {
    h3f_context *ctx = h3f_checkpoint_context(checkpoint);
    if (!conv->rate && conv->kernel % 2 == 0)
        return h3f_fail(ctx, H3F_ETENSOR, "%s: tensor '%s' has a kernel of %d, expected an odd one",
                        tensor->file, tensor->name, conv->kernel);
    if (conv->rate && (conv->kernel < conv->rate || (conv->kernel - conv->rate) % 2 != 0))
        return h3f_fail(
            ctx, H3F_ETENSOR,
            "%s: tensor '%s' has a kernel of %d, expected the rate %d and an even number",
            tensor->file, tensor->name, conv->kernel, conv->rate);
    return H3F_OK;
}

int h3f_conv_find(const h3f_checkpoint *checkpoint, h3f_conv *conv) {
    h3f_tensor tensor;
    H3F_TRY(find_weight(checkpoint, conv, &tensor));
    const int out_axis = conv->rate ? 1 : 0;
    if (tensor.ndim != 3 || !fits(tensor.shape[out_axis], conv->out) ||
        !fits(tensor.shape[1 - out_axis], conv->in) || !fits(tensor.shape[2], conv->kernel))
        return shape_failure(checkpoint, &tensor, conv);
    conv->out = (int32_t)tensor.shape[out_axis];
    conv->kernel = (int32_t)tensor.shape[2];
    H3F_TRY(check_kernel(checkpoint, &tensor, conv));
    if (conv->rate) {
        conv->dilation = 1;
        conv->taps = (conv->kernel + conv->rate - 1) / conv->rate;
        conv->before = conv->taps - 1;
        conv->lead = (conv->kernel - conv->rate) / 2;
    } else {
        conv->taps = conv->kernel;
        conv->before = (conv->kernel - 1) / 2 * conv->dilation;
    }
    return H3F_OK;
}

void h3f_conv_layout(h3f_arena *arena, h3f_conv *conv) {
    const size_t rows = (size_t)outputs_a_row(conv), cols = (size_t)conv->taps * (size_t)conv->in;
    conv->weight = h3f_arena_take(arena, rows * cols * sizeof(float));
    conv->bias = conv->biased ? h3f_arena_take(arena, rows * sizeof(float)) : NULL;
}

typedef struct fold_job {
    const h3f_conv *conv;
    const h3f_tensor *stored; /* weight or weight_v, [first axis, second, kernel] */
    const float *gain;        /* weight_g, or NULL when folded already */
    size_t element;
} fold_job;

static float norm_of(const float *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return (float)sqrt(sum);
}

/* [out, in, kernel] -> [out, kernel, in]. */
static void put_plain(const h3f_conv *conv, int64_t out, const float *row, float scale) {
    float *weight = conv->weight + out * conv->taps * conv->in;
    for (int64_t i = 0; i < conv->in; i++)
        for (int64_t k = 0; k < conv->kernel; k++)
            weight[k * conv->in + i] = row[i * conv->kernel + k] * scale;
}

/* [in, out, kernel] -> [phase, out, tap, in]: tap k belongs to phase k % rate, and meets the input
 * row k / rate before. What a kernel lacks of taps * rate stays zero. */
static void put_transposed(const h3f_conv *conv, int64_t in, const float *row, float scale) {
    for (int64_t o = 0; o < conv->out; o++)
        for (int64_t k = 0; k < conv->kernel; k++) {
            const int64_t output = k % conv->rate * conv->out + o;
            const int64_t tap = conv->before - k / conv->rate;
            conv->weight[(output * conv->taps + tap) * conv->in + in] = row[o * conv->kernel + k] *
                                                                        scale;
        }
}

static void fold_row(void *argument, int64_t item, void *scratch) {
    const fold_job *job = argument;
    const int64_t count = job->stored->shape[1] * job->stored->shape[2];
    const unsigned char *bytes = job->stored->data;
    float *row = scratch;
    h3f_widen(job->stored->dtype, bytes + (size_t)(item * count) * job->element, count, row);
    const float scale = job->gain ? job->gain[item] / norm_of(row, count) : 1.0F;
    if (job->conv->rate)
        put_transposed(job->conv, item, row, scale);
    else
        put_plain(job->conv, item, row, scale);
}

static int load_bias(const h3f_checkpoint *checkpoint, const h3f_conv *conv) {
    if (!conv->biased)
        return H3F_OK;
    H3F_TRY(h3f_read_vector(checkpoint, conv->out, conv->bias, "%s.bias", conv->name));
    for (int32_t phase = 1; phase < conv->rate; phase++)
        memcpy(conv->bias + (int64_t)phase * conv->out, conv->bias,
               (size_t)conv->out * sizeof(float));
    return H3F_OK;
}

int h3f_conv_load(const h3f_checkpoint *checkpoint, h3f_conv *conv) {
    h3f_context *ctx = h3f_checkpoint_context(checkpoint);
    const int64_t rows = outputs_a_row(conv), cols = (int64_t)conv->taps * conv->in;
    h3f_tensor stored;
    H3F_TRY(load_bias(checkpoint, conv));
    H3F_TRY(find_weight(checkpoint, conv, &stored));
    float *gain = NULL;
    if (!is_folded(checkpoint, conv)) {
        gain = h3f_alloc(ctx, (size_t)stored.shape[0] * sizeof(float),
                         "the gains of a convolution");
        if (!gain)
            return H3F_ENOMEM;
        const int code = h3f_read_vector(checkpoint, stored.shape[0], gain, "%s.weight_g",
                                         conv->name);
        if (code != H3F_OK) {
            h3f_free(ctx, gain);
            return code;
        }
    }
    fold_job job = {
        .conv = conv, .stored = &stored, .gain = gain, .element = h3f_dtype_size(stored.dtype)};
    const size_t row_bytes = (size_t)(stored.shape[1] * stored.shape[2]) * sizeof(float);
    const int code = h3f_pool_run(ctx, stored.shape[0], row_bytes, fold_row, &job);
    h3f_free(ctx, gain);
    conv->linear.w = (h3f_mat){.data = conv->weight,
                               .dtype = H3F_F32,
                               .rows = rows,
                               .cols = cols,
                               .group = rows,
                               .group_stride = rows};
    conv->linear.bias = conv->bias;
    return code;
}

/* ---- run ---- */

/* Rows of the product. */
static int64_t rows_for(const h3f_conv *conv, int64_t length) {
    if (!conv->rate)
        return length;
    return (conv->rate * length + conv->lead + conv->rate - 1) / conv->rate;
}

int64_t h3f_conv_room(const h3f_conv *conv, int64_t length) {
    return rows_for(conv, length) * outputs_a_row(conv);
}

static int64_t chunk_rows(const h3f_conv *conv, int64_t length) {
    const int64_t rows = rows_for(conv, length);
    const int64_t chunk = COLUMN_VALUES / ((int64_t)conv->taps * conv->in);
    const int64_t least = chunk > COLUMN_ROWS ? chunk : COLUMN_ROWS;
    return least < rows ? least : rows;
}

static size_t column_bytes(const h3f_conv *conv, int64_t length) {
    const int64_t values = chunk_rows(conv, length) * conv->taps * conv->in;
    return ((size_t)values * sizeof(float) + 63) / 64 * 64;
}

size_t h3f_conv_scratch(const h3f_conv *conv, int64_t length) {
    return column_bytes(conv, length) +
           h3f_linear_scratch(chunk_rows(conv, length), (int64_t)conv->taps * conv->in);
}

typedef struct gather_job {
    const h3f_conv *conv;
    const float *x;
    int64_t length, first, rows;
    float *columns;
} gather_job;

static void gather_window(const gather_job *job, int64_t row, float *out) {
    const h3f_conv *conv = job->conv;
    const size_t bytes = (size_t)conv->in * sizeof(float);
    const int64_t first = row - conv->before;
    if (conv->dilation == 1 && first >= 0 && first + conv->taps <= job->length) {
        memcpy(out, job->x + first * conv->in, (size_t)conv->taps * bytes);
        return;
    }
    for (int64_t tap = 0; tap < conv->taps; tap++, out += conv->in) {
        const int64_t at = first + tap * conv->dilation;
        if (at >= 0 && at < job->length)
            memcpy(out, job->x + at * conv->in, bytes);
        else
            memset(out, 0, bytes);
    }
}

static void gather_rows(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    const gather_job *job = argument;
    const int64_t end = (item + 1) * GATHER_ROWS;
    for (int64_t row = item * GATHER_ROWS; row < end && row < job->rows; row++)
        gather_window(job, job->first + row, job->columns + row * job->conv->taps * job->conv->in);
}

int h3f_conv_run(h3f_context *ctx, const h3f_conv *conv, const float *x, int64_t length,
                 void *scratch, float *y, float **result) {
    const int64_t rows = rows_for(conv, length), chunk = chunk_rows(conv, length);
    const int64_t outputs = outputs_a_row(conv);
    void *linear_scratch = (unsigned char *)scratch + column_bytes(conv, length);
    for (int64_t row = 0; row < rows; row += chunk) {
        gather_job job = {.conv = conv,
                          .x = x,
                          .length = length,
                          .first = row,
                          .rows = rows - row < chunk ? rows - row : chunk,
                          .columns = scratch};
        const int64_t items = (job.rows + GATHER_ROWS - 1) / GATHER_ROWS;
        H3F_TRY(h3f_pool_run(ctx, items, 0, gather_rows, &job));
        H3F_TRY(h3f_linear_run(ctx, &conv->linear, job.columns, job.rows, y + row * outputs,
                               outputs, linear_scratch));
    }
    *result = y + (int64_t)conv->lead * conv->out;
    return H3F_OK;
}
