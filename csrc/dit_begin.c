/* The beginning of a request: its arguments, its memory, its text.
 * Source: docs/model.md, "Packing" and "Transformer". */
#include "dit.h"

#include <stdio.h>
#include <string.h>

/* Far more than anybody samples with, and few enough that a pair of time and tag is an int32_t. */
enum { MOST_TIMES = 65536 };

/* Below a shift of 0.5 the first sigma, s / (1 + (s - 1)), is not 1 but up to this more: the shift
 * is 0.001 or more. The reference goes on with that number. */
#define T_ROUNDING 1e-4F

/* ---- arguments ---- */

static int check_indices(h3f_context *ctx, const char *kind, const int32_t *indices, int64_t count,
                         int64_t rows, unsigned char *seen) {
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= rows)
            return h3f_fail(ctx, H3F_EINVAL, "%s index %lld is %d, allowed are 0 to %lld", kind,
                            (long long)i, indices[i], (long long)rows - 1);
        if (seen[indices[i]])
            return h3f_fail(ctx, H3F_EINVAL, "row %d of the sequence is named twice", indices[i]);
        seen[indices[i]] = 1;
    }
    return H3F_OK;
}

static int check_every_row(h3f_context *ctx, const h3f_sequence *s, unsigned char *seen) {
    H3F_TRY(check_indices(ctx, "text", s->text_indices, s->text_rows, s->rows, seen));
    H3F_TRY(check_indices(ctx, "video", s->video_indices, s->video_rows, s->rows, seen));
    H3F_TRY(check_indices(ctx, "audio", s->audio_indices, s->audio_rows, s->rows, seen));
    for (int64_t i = 0; i < s->rows; i++)
        if (s->tags[i] < 0 || s->tags[i] >= H3F_TAGS)
            return h3f_fail(ctx, H3F_EINVAL, "tag of row %lld is %d, allowed are 0 to 2",
                            (long long)i, s->tags[i]);
    return H3F_OK;
}

/* Each part is held against the whole first: their sum may overflow. */
static bool is_whole(const h3f_sequence *s) {
    const int64_t parts[] = {s->text_rows, s->video_rows, s->audio_rows};
    if (s->rows < 1 || s->rows > INT32_MAX)
        return false;
    for (int i = 0; i < 3; i++)
        if (parts[i] < 0 || parts[i] > s->rows)
            return false;
    return parts[0] + parts[1] + parts[2] == s->rows;
}

static int check_sequence(h3f_context *ctx, const h3f_sequence *s) {
    if (!is_whole(s))
        return h3f_fail(ctx, H3F_EINVAL,
                        "a sequence of %lld rows cannot be %lld of text, %lld of video and %lld of "
                        "audio",
                        (long long)s->rows, (long long)s->text_rows, (long long)s->video_rows,
                        (long long)s->audio_rows);
    unsigned char *seen = h3f_alloc(ctx, (size_t)s->rows, "checking the sequence");
    if (!seen)
        return H3F_ENOMEM;
    const int code = check_every_row(ctx, s, seen);
    h3f_free(ctx, seen);
    return code;
}

static int check_times(h3f_context *ctx, const h3f_time *times, int32_t count) {
    if (count < 1 || count > MOST_TIMES)
        return h3f_fail(ctx, H3F_EINVAL, "a run of %d timesteps, allowed are 1 to %d", count,
                        MOST_TIMES);
    for (int32_t i = 0; i < count; i++)
        if (!(times[i].t >= -T_ROUNDING && times[i].t <= 1.0F) || times[i].tag_mask > 7)
            return h3f_fail(ctx, H3F_EINVAL,
                            "timestep %d is %g with tags %u: allowed are 0 to 1, and 0 to 7", i,
                            (double)times[i].t, times[i].tag_mask);
    return H3F_OK;
}

/* ---- memory ---- */

static void layout_run(h3f_arena *arena, h3f_dit_run *run) {
    const h3f_dit_config *c = &run->dit->config;
    const int64_t rows = run->sequence.rows, hidden = c->hidden, pairs = run->dit->shape.pairs;
    run->entry_of = h3f_arena_take(arena, (size_t)run->times * H3F_TAGS * sizeof *run->entry_of);
    run->tables = h3f_take_floats(arena, (int64_t)c->layers * run->entries,
                                  (int64_t)H3F_MODULATIONS * hidden);
    run->final_tables = h3f_take_floats(arena, run->times, 2 * hidden);
    run->cosine = h3f_take_floats(arena, rows, pairs);
    run->sine = h3f_take_floats(arena, rows, pairs);
    run->text = h3f_take_floats(arena, run->sequence.text_rows, hidden);
    run->x = h3f_take_floats(arena, rows, hidden);
    run->modulation = h3f_arena_take(arena, (size_t)rows * sizeof *run->modulation);
    run->both = h3f_take_floats(arena, 2, pairs);
    h3f_block_buffers_layout(arena, &run->dit->shape, rows, &run->block);
    const int64_t widest =
        h3f_max(h3f_max(hidden, c->text_dim), h3f_max(c->video_dim, c->audio_dim));
    run->scratch = h3f_arena_take(arena, h3f_linear_scratch(run->block.chunk, widest));
}

/* The caller's arrays are only read during begin. */
static void layout_sequence(h3f_arena *arena, h3f_sequence *s, int32_t *parts[4]) {
    const int64_t counts[4] = {s->rows, s->text_rows, s->video_rows, s->audio_rows};
    for (int i = 0; i < 4; i++)
        parts[i] = h3f_arena_take(arena, (size_t)counts[i] * sizeof(int32_t));
}

static void copy_sequence(const h3f_sequence *from, int32_t *parts[4], h3f_sequence *to) {
    const int32_t *lists[4] = {from->tags, from->text_indices, from->video_indices,
                               from->audio_indices};
    const int64_t counts[4] = {from->rows, from->text_rows, from->video_rows, from->audio_rows};
    for (int i = 0; i < 4; i++)
        if (counts[i] > 0) /* an empty list may be NULL */
            memcpy(parts[i], lists[i], (size_t)counts[i] * sizeof(int32_t));
    to->positions = NULL; /* nothing needs them after the rotary tables */
    to->tags = parts[0];
    to->text_indices = parts[1];
    to->video_indices = parts[2];
    to->audio_indices = parts[3];
}

static int reserve(h3f_dit_run *run, const h3f_sequence *sequence) {
    int32_t *parts[4];
    layout_run(&run->arena, run);
    layout_sequence(&run->arena, &run->sequence, parts);
    H3F_TRY(h3f_arena_reserve(run->dit->ctx, &run->arena, "denoising"));
    layout_run(&run->arena, run);
    layout_sequence(&run->arena, &run->sequence, parts);
    copy_sequence(sequence, parts, &run->sequence);
    return H3F_OK;
}

/* ---- text ---- */

/* A step's buffers, which are free yet: no part of a sequence is longer than all of it. */
static h3f_block_buffers buffers_for_text(const h3f_dit_run *run) {
    h3f_block_buffers buffers = run->block;
    buffers.rows = run->sequence.text_rows;
    buffers.chunk = h3f_min(buffers.rows, buffers.chunk);
    return buffers;
}

static int project_text(const h3f_dit_run *run, const float *text) {
    const h3f_dit *dit = run->dit;
    const int64_t rows = run->sequence.text_rows, chunk = run->block.chunk;
    const int64_t hidden = dit->config.hidden, text_dim = dit->config.text_dim;
    for (int64_t first = 0; first < rows; first += chunk)
        H3F_TRY(h3f_linear_run(dit->ctx, &dit->text_in, text + first * text_dim,
                               h3f_min(chunk, rows - first), run->text + first * hidden, hidden,
                               run->scratch));
    h3f_tap(dit->ctx, "text_embeds", 0, rows, rows, hidden, run->text);
    return H3F_OK;
}

static int refine_text(const h3f_dit_run *run) {
    const h3f_dit *dit = run->dit;
    const h3f_block_buffers buffers = buffers_for_text(run);
    const int64_t rows = run->sequence.text_rows, hidden = dit->config.hidden;
    const h3f_norm norm = {.rows = rows,
                           .cols = hidden,
                           .weight = dit->refiner_norm,
                           .eps = dit->config.final_norm_eps};
    for (int32_t i = 0; i < dit->config.refiner_layers; i++) {
        char what[40], name[40];
        snprintf(what, sizeof what, "token refiner block %d", i);
        snprintf(name, sizeof name, "refiner.%d", i);
        const h3f_block_pass pass = {.shape = &dit->refiner_shape,
                                     .block = &dit->refiner[i],
                                     .buffers = &buffers,
                                     .what = what};
        H3F_TRY(h3f_block_run(dit->ctx, &pass, run->text));
        h3f_tap(dit->ctx, name, 0, rows, rows, hidden, run->text);
    }
    H3F_TRY(h3f_rms_norm(dit->ctx, &norm, run->text, run->text));
    h3f_tap(dit->ctx, "refined_text", 0, rows, rows, hidden, run->text);
    return H3F_OK;
}

/* ---- begin and end ---- */

static int prepare(h3f_dit_run *run, const h3f_sequence *sequence, const float *text,
                   const h3f_time *times) {
    H3F_TRY(reserve(run, sequence));
    H3F_TRY(h3f_dit_fill_rotary(run, sequence->positions));
    H3F_TRY(h3f_dit_fill_modulation(run, times));
    if (run->sequence.text_rows == 0)
        return H3F_OK;
    H3F_TRY(project_text(run, text));
    return refine_text(run);
}

int h3f_dit_begin(h3f_dit *dit, const h3f_sequence *sequence, const float *text,
                  const h3f_time *times, int32_t time_count, h3f_dit_run **run) {
    H3F_TRY(check_sequence(dit->ctx, sequence));
    H3F_TRY(check_times(dit->ctx, times, time_count));
    h3f_dit_run *begun = h3f_alloc(dit->ctx, sizeof *begun, "a run of the transformer");
    if (!begun)
        return H3F_ENOMEM;
    begun->dit = dit;
    begun->sequence = *sequence;
    begun->times = time_count;
    begun->entries = h3f_dit_number_entries(times, time_count, NULL);
    const int code = prepare(begun, sequence, text, times);
    if (code != H3F_OK) {
        h3f_dit_end(begun);
        return code;
    }
    *run = begun;
    return H3F_OK;
}

void h3f_dit_end(h3f_dit_run *run) {
    if (!run)
        return;
    h3f_context *ctx = run->dit->ctx;
    h3f_arena_release(ctx, &run->arena);
    h3f_free(ctx, run);
}
