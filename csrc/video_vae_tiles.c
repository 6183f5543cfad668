#include "video_vae_tiles.h"

#include <string.h>

#include "pool.h"

/* ---- time ---- */

int h3f_clip_rules_init(h3f_context *ctx, const h3f_video_vae_config *config,
                        h3f_clip_rules *rules) {
    const int32_t factor = config->temporal_factor, length = config->clip_length;
    if (factor < 1 || length < 1 || length > 65536 || factor > 65536)
        return h3f_fail(ctx, H3F_EINVAL,
                        "video VAE: temporal_factor %d and clip_length %d, expected 1 to 65536",
                        factor, length);
    const int32_t stride = (length + factor - 1) / factor;
    if (config->token_drop < 1 || config->token_drop >= stride)
        return h3f_fail(ctx, H3F_EINVAL,
                        "video VAE: token_drop %d, expected 1 to %d with clip_length %d and "
                        "temporal_factor %d",
                        config->token_drop, stride - 1, length, factor);
    rules->factor = factor;
    rules->length = length;
    rules->stride = stride;
    rules->overlap = stride - config->token_drop;
    rules->lead = stride * factor - length;
    rules->overlap_frames = rules->overlap * factor - rules->lead;
    return H3F_OK;
}

int h3f_clip_plan_init(h3f_context *ctx, const h3f_clip_rules *rules, int32_t latent_frames,
                       h3f_clip_plan *plan) {
    const int32_t stride = rules->stride, shortest = rules->overlap + 1;
    if (latent_frames < shortest || latent_frames > INT32_MAX / 2 / rules->factor)
        return h3f_fail(
            ctx, H3F_EINVAL,
            "video VAE: %d latent frames cannot be decoded; %d (%d frames) is the least",
            latent_frames, shortest, rules->overlap_frames + rules->factor);
    const int32_t clips = (latent_frames - rules->overlap + stride - 1) / stride;
    const int32_t padded = clips * stride + rules->overlap;
    /* A latent frame stands for `factor` frames, but for the first of a clip, which lost `lead` of
     * them. */
    int32_t cut = 0;
    for (int32_t t = latent_frames; t < padded; t++)
        cut += t % stride == 0 ? rules->factor - rules->lead : rules->factor;
    plan->clips = clips;
    plan->last_frames = rules->length + rules->overlap_frames - cut;
    plan->frames = (clips - 1) * rules->length + plan->last_frames;
    return H3F_OK;
}

int32_t h3f_clip_frames(const h3f_clip_rules *rules, const h3f_clip_plan *plan, int32_t clip) {
    return clip == plan->clips - 1 ? plan->last_frames : rules->length;
}

/* ---- space ---- */

void h3f_axis_init(h3f_axis *axis, int32_t length, int32_t tile, int32_t least, int32_t unit) {
    *axis = (h3f_axis){.count = 1, .size = length, .unit = unit};
    if (tile == 0 || tile >= length)
        return;
    const int32_t step = tile - least;
    axis->size = tile;
    axis->least = least;
    axis->count = (length - least + step - 1) / step;
    const int32_t units = (least + axis->count * step - length) / unit;
    axis->each = units / (axis->count - 1);
    axis->extra = units % (axis->count - 1);
}

int32_t h3f_axis_start(const h3f_axis *axis, int32_t tile) {
    const int32_t more = tile < axis->extra ? tile : axis->extra;
    return tile * (axis->size - axis->least) - (tile * axis->each + more) * axis->unit;
}

int32_t h3f_axis_overlap(const h3f_axis *axis, int32_t tile) {
    if (tile < 0 || tile >= axis->count - 1)
        return 0;
    return axis->least + (axis->each + (tile < axis->extra ? 1 : 0)) * axis->unit;
}

int32_t h3f_axis_widest(const h3f_axis *axis) {
    return h3f_axis_overlap(axis, 0); /* the first overlaps get the odd units */
}

/* ---- pixels ---- */

static int64_t above_rows(const h3f_mosaic *mosaic) {
    return (int64_t)mosaic->channels * mosaic->frames * h3f_axis_widest(&mosaic->y);
}

size_t h3f_mosaic_above_bytes(const h3f_mosaic *mosaic) {
    return (size_t)(mosaic->x.count * above_rows(mosaic) * mosaic->x.size) * sizeof(float);
}

size_t h3f_mosaic_left_bytes(const h3f_mosaic *mosaic) {
    const int64_t rows = (int64_t)mosaic->channels * mosaic->frames * mosaic->y.size;
    return (size_t)(rows * h3f_axis_widest(&mosaic->x)) * sizeof(float);
}

typedef struct tile_job {
    const h3f_mosaic *mosaic;
    const float *tokens;
    int32_t row, col;
    int32_t up, down;    /* overlap with the tile above, and below */
    int32_t back, right; /* overlap with the tile on the left, and on the right */
    int64_t top, start;  /* where the tile begins in the picture */
    int64_t height, width;
} tile_job;

/* From `before` at p = 0 to `after` at p = extent; the weights are rounded as the reference does
 * it. */
static float blend(float before, float after, int32_t p, int32_t extent) {
    const double share = (double)p / extent;
    return before * (float)(1.0 - share) + after * (float)share;
}

static void gather_row(const tile_job *job, int32_t channel, int32_t frame, int32_t y, float *out) {
    const h3f_mosaic *m = job->mosaic;
    const int32_t patch = m->patch, across = m->x.size / patch, down = m->y.size / patch;
    const int64_t token_size = (int64_t)m->channels * m->factor * patch * patch;
    const int64_t token = ((int64_t)(frame / m->factor) * down + y / patch) * across;
    const int64_t inside =
        (((int64_t)channel * m->factor + frame % m->factor) * patch + y % patch) * patch;
    const float *source = job->tokens + token * token_size + inside;
    for (int32_t i = 0; i < across; i++)
        memcpy(out + (int64_t)i * patch, source + i * token_size, (size_t)patch * sizeof(float));
}

static float *edge_above(const tile_job *job, int64_t plane, int32_t y) {
    const h3f_mosaic *m = job->mosaic;
    const int64_t row = job->col * above_rows(m) + plane * h3f_axis_widest(&m->y) + y;
    return m->above + row * m->x.size;
}

static float *edge_left(const tile_job *job, int64_t plane, int32_t y) {
    const h3f_mosaic *m = job->mosaic;
    return m->left + (plane * m->y.size + y) * h3f_axis_widest(&m->x);
}

/* Where row y of a kept frame goes, in the picture; frames of a tail that has a successor go to
 * carry. */
static float *place(const tile_job *job, int32_t channel, int32_t frame, int32_t y) {
    const h3f_mosaic *m = job->mosaic;
    const bool tail = frame >= m->length && !m->last;
    const int64_t count = tail ? m->carry_frames : (m->last ? m->frames : m->length);
    const int64_t plane = channel * count + (tail ? frame - m->length : frame);
    return (tail ? m->carry : m->pixels) + (plane * job->height + job->top + y) * job->width +
           job->start;
}

static void blend_time(const tile_job *job, int32_t channel, int32_t frame, int32_t y,
                       int32_t width, float *row) {
    const h3f_mosaic *m = job->mosaic;
    const int64_t plane = (int64_t)channel * m->carry_frames + frame;
    const float *before = m->carry + (plane * job->height + job->top + y) * job->width + job->start;
    for (int32_t x = 0; x < width; x++)
        row[x] = blend(before[x], row[x], frame, m->overlap);
}

static void put_row(const tile_job *job, int32_t channel, int32_t frame, int32_t y,
                    const float *raw, float *row) {
    const h3f_mosaic *m = job->mosaic;
    const int64_t plane = (int64_t)channel * m->frames + frame;
    const int32_t width = m->x.size - job->right;
    memcpy(row, raw, (size_t)m->x.size * sizeof(float));
    if (y < job->up) {
        const float *above = edge_above(job, plane, y);
        for (int32_t x = 0; x < width; x++)
            row[x] = blend(above[x], row[x], y, job->up);
    }
    if (job->back > 0 || job->right > 0) {
        float *left = edge_left(job, plane, y);
        /* An overlap of more than half a tile reaches past what this tile keeps. */
        for (int32_t x = 0; x < job->back && x < width; x++)
            row[x] = blend(left[x], row[x], x, job->back);
        memcpy(left, raw + width, (size_t)job->right * sizeof(float));
    }
    if (frame < m->overlap)
        blend_time(job, channel, frame, y, width, row);
    memcpy(place(job, channel, frame, y), row, (size_t)width * sizeof(float));
}

/* Row y of the edge kept for the tile below goes to a place whose old content, from the tile above,
 * has been used: the rows come in order, and a tile is taller than its overlaps. */
static void put_plane(const tile_job *job, int32_t channel, int32_t frame, float *rows) {
    const h3f_mosaic *m = job->mosaic;
    const int32_t source = frame < m->length ? frame + m->lead : frame + 2 * m->lead;
    const int32_t kept = m->y.size - job->down;
    float *raw = rows, *row = rows + m->x.size;
    for (int32_t y = 0; y < m->y.size; y++) {
        gather_row(job, channel, source, y, raw);
        if (y < kept)
            put_row(job, channel, frame, y, raw, row);
        if (y >= kept)
            memcpy(edge_above(job, (int64_t)channel * m->frames + frame, y - kept), raw,
                   (size_t)m->x.size * sizeof(float));
    }
}

/* Frame k of the front is blended from frame k of carry before frame k of the tail replaces it, so
 * one item does both. */
static void put_item(void *argument, int64_t item, void *scratch) {
    const tile_job *job = argument;
    const h3f_mosaic *m = job->mosaic;
    const int32_t front = m->frames < m->length ? m->frames : m->length;
    const int32_t channel = (int32_t)(item / front), frame = (int32_t)(item % front);
    for (int32_t f = frame; f < m->frames; f += m->length)
        put_plane(job, channel, f, scratch);
}

int h3f_mosaic_put(h3f_context *ctx, const h3f_mosaic *mosaic, int32_t row, int32_t col,
                   const float *tokens) {
    const h3f_axis *y = &mosaic->y, *x = &mosaic->x;
    tile_job job = {
        .mosaic = mosaic,
        .tokens = tokens,
        .row = row,
        .col = col,
        .up = h3f_axis_overlap(y, row - 1),
        .down = h3f_axis_overlap(y, row),
        .back = h3f_axis_overlap(x, col - 1),
        .right = h3f_axis_overlap(x, col),
        .top = h3f_axis_start(y, row),
        .start = h3f_axis_start(x, col),
        .height = h3f_axis_start(y, y->count - 1) + y->size,
        .width = h3f_axis_start(x, x->count - 1) + x->size,
    };
    const int32_t front = mosaic->frames < mosaic->length ? mosaic->frames : mosaic->length;
    const size_t rows = (size_t)x->size * 2 * sizeof(float);
    return h3f_pool_run(ctx, (int64_t)mosaic->channels * front, rows, put_item, &job);
}
