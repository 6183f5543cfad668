/* One denoise step: rows in, blocks, velocities out.
 * Source: docs/model.md, "Transformer". */
#include "dit.h"

#include <stdio.h>
#include <string.h>

/* ---- arguments and packing ---- */

static int check_row_times(const h3f_dit_run *run, const int32_t *row_times) {
    for (int64_t i = 0; i < run->sequence.rows; i++) {
        const int32_t time = row_times[i], tag = run->sequence.tags[i];
        if (time < 0 || time >= run->times)
            return h3f_fail(run->dit->ctx, H3F_EINVAL,
                            "timestep index of row %lld is %d, allowed are 0 to %d", (long long)i,
                            time, run->times - 1);
        if (run->entry_of[time * H3F_TAGS + tag] < 0)
            return h3f_fail(
                run->dit->ctx, H3F_EINVAL,
                "row %lld has tag %d and timestep %d, a pair that begin was not told of",
                (long long)i, tag, time);
    }
    return H3F_OK;
}

static void scatter(const h3f_dit_run *run, const float *rows, const int32_t *indices,
                    int64_t count) {
    const int64_t hidden = run->dit->config.hidden;
    for (int64_t i = 0; i < count; i++)
        memcpy(run->x + indices[i] * hidden, rows + i * hidden, (size_t)hidden * sizeof(float));
}

static int embed_rows(const h3f_dit_run *run, const h3f_linear *projection, const float *rows,
                      const int32_t *indices, int64_t count, const char *name) {
    const int64_t hidden = run->dit->config.hidden, chunk = run->block.chunk;
    for (int64_t first = 0; first < count; first += chunk) {
        const int64_t part = h3f_min(chunk, count - first);
        H3F_TRY(h3f_linear_run(run->dit->ctx, projection, rows + first * projection->w.cols, part,
                               run->block.n, hidden, run->scratch));
        h3f_tap(run->dit->ctx, name, first, part, count, hidden, run->block.n);
        scatter(run, run->block.n, indices + first, part);
    }
    return H3F_OK;
}

static int pack(const h3f_dit_run *run, const float *video, const float *audio) {
    const h3f_sequence *s = &run->sequence;
    scatter(run, run->text, s->text_indices, s->text_rows);
    H3F_TRY(embed_rows(run, &run->dit->video_in, video, s->video_indices, s->video_rows,
                       "video_embeds"));
    H3F_TRY(embed_rows(run, &run->dit->audio_in, audio, s->audio_indices, s->audio_rows,
                       "audio_embeds"));
    h3f_tap(run->dit->ctx, "packed", 0, s->rows, s->rows, run->dit->config.hidden, run->x);
    return H3F_OK;
}

/* ---- the blocks ---- */

static void point_at_table(const h3f_dit_run *run, int32_t block, const int32_t *row_times) {
    const int64_t entry_size = (int64_t)H3F_MODULATIONS * run->dit->config.hidden;
    const float *table = run->tables + (int64_t)block * run->entries * entry_size;
    for (int64_t i = 0; i < run->sequence.rows; i++) {
        const int32_t pair = row_times[i] * H3F_TAGS + run->sequence.tags[i];
        run->modulation[i] = table + run->entry_of[pair] * entry_size;
    }
}

static int run_block(const h3f_dit_run *run, int32_t i, const int32_t *row_times) {
    const h3f_dit *dit = run->dit;
    const int64_t rows = run->sequence.rows;
    char what[40], name[40];
    snprintf(what, sizeof what, "transformer block %d", i);
    snprintf(name, sizeof name, "block.%d", i);
    const h3f_block_pass pass = {.shape = &dit->shape,
                                 .block = &dit->blocks[i],
                                 .buffers = &run->block,
                                 .cosine = run->cosine,
                                 .sine = run->sine,
                                 .modulation = run->modulation,
                                 .taps = name,
                                 .what = what};
    point_at_table(run, i, row_times);
    H3F_TRY(h3f_block_run(dit->ctx, &pass, run->x));
    h3f_tap(dit->ctx, name, 0, rows, rows, dit->config.hidden, run->x);
    h3f_progress(dit->ctx, "denoise", i + 1, dit->config.layers);
    return H3F_OK;
}

/* ---- velocities ---- */

/* The last norm of `count` rows (those at `indices`, or the first ones) into block.n. */
static int norm_out(const h3f_dit_run *run, const int32_t *indices, int64_t first, int64_t count,
                    const int32_t *row_times) {
    const h3f_dit *dit = run->dit;
    const h3f_block_buffers *b = &run->block;
    const int64_t hidden = dit->config.hidden;
    const h3f_norm norm = {.rows = count,
                           .cols = hidden,
                           .weight = dit->final_norm,
                           .eps = dit->config.final_norm_eps};
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = indices ? indices[first + i] : first + i;
        const float *table = run->final_tables + row_times[row] * 2 * hidden;
        b->rows_of[H3F_SHIFT1][i] = table;
        b->rows_of[H3F_SCALE1][i] = table + hidden;
        memcpy(b->n + i * hidden, run->x + row * hidden, (size_t)hidden * sizeof(float));
    }
    H3F_TRY(h3f_rms_norm(dit->ctx, &norm, b->n, b->n));
    return h3f_modulate(dit->ctx, count, hidden, b->n, b->rows_of[H3F_SHIFT1],
                        b->rows_of[H3F_SCALE1], b->n);
}

/* The calculation needs the last norm of media rows only; the tap has it of all. */
static int tap_norm_out(const h3f_dit_run *run, const int32_t *row_times) {
    const int64_t rows = run->sequence.rows, chunk = run->block.chunk;
    for (int64_t first = 0; first < rows && run->dit->ctx->tap; first += chunk) {
        const int64_t part = h3f_min(chunk, rows - first);
        H3F_TRY(norm_out(run, NULL, first, part, row_times));
        h3f_tap(run->dit->ctx, "norm_out", first, part, rows, run->dit->config.hidden,
                run->block.n);
    }
    return H3F_OK;
}

static int velocity(const h3f_dit_run *run, const h3f_linear *head, const int32_t *indices,
                    int64_t count, const int32_t *row_times, float *out) {
    const int64_t chunk = run->block.chunk, cols = head->w.rows;
    for (int64_t first = 0; first < count; first += chunk) {
        const int64_t part = h3f_min(chunk, count - first);
        H3F_TRY(norm_out(run, indices, first, part, row_times));
        H3F_TRY(h3f_linear_run(run->dit->ctx, head, run->block.n, part, out + first * cols, cols,
                               run->scratch));
    }
    if (!h3f_all_finite(out, count * cols))
        return h3f_fail(run->dit->ctx, H3F_ENUMERIC, "NaN or infinity in the predicted velocity");
    return H3F_OK;
}

int h3f_dit_step(h3f_dit_run *run, const int32_t *row_times, const float *video, const float *audio,
                 float *video_velocity, float *audio_velocity) {
    const h3f_dit *dit = run->dit;
    const h3f_sequence *s = &run->sequence;
    H3F_TRY(check_row_times(run, row_times));
    H3F_TRY(pack(run, video, audio));
    for (int32_t i = 0; i < dit->config.layers; i++)
        H3F_TRY(run_block(run, i, row_times));
    H3F_TRY(tap_norm_out(run, row_times));
    H3F_TRY(
        velocity(run, &dit->video_out, s->video_indices, s->video_rows, row_times, video_velocity));
    return velocity(run, &dit->audio_out, s->audio_indices, s->audio_rows, row_times,
                    audio_velocity);
}
