/* One request through the transformer: what stays the same over its steps, and the steps.
 * Source: docs/model.md, "Packing" and "Transformer". */
#include "dit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct h3f_dit_run {
    h3f_dit *dit;
    h3f_sequence sequence; /* its arrays are ours */
    int32_t times;
    int32_t *entry_of;   /* [times][tags] entry in a block's table, -1: no row has this pair */
    int32_t entries;     /* ordered by tag, then time */
    float *tables;       /* [layers][entries][6][hidden] */
    float *final_tables; /* [times][2][hidden]: shift, scale */
    float *cosine, *sine; /* [rows, pairs] */
    float *text;          /* [text_rows, hidden], refined */
    float *x;             /* [rows, hidden] */
    const float **modulation; /* [rows]: into the running block's table */
    float *both;              /* [2 * pairs]: a row of the rotary tap */
    void *scratch;            /* for the projections in and out */
    h3f_block_buffers block;
    h3f_arena arena;
};

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

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

static int check_sequence(h3f_context *ctx, const h3f_sequence *s) {
    if (s->rows < 1 || s->text_rows < 0 || s->video_rows < 0 || s->audio_rows < 0 ||
        s->rows > INT32_MAX || s->text_rows + s->video_rows + s->audio_rows != s->rows)
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
    if (count < 1)
        return h3f_fail(ctx, H3F_EINVAL, "a run needs at least one timestep");
    for (int32_t i = 0; i < count; i++)
        if (!(times[i].t >= 0.0F && times[i].t <= 1.0F) || times[i].tag_mask > 7)
            return h3f_fail(ctx, H3F_EINVAL,
                            "timestep %d is %g with tags %u: allowed are 0 to 1, and 0 to 7", i,
                            (double)times[i].t, times[i].tag_mask);
    return H3F_OK;
}

/* ---- memory ---- */

static void *take(h3f_arena *arena, int64_t count, int64_t per, size_t size) {
    return h3f_arena_take(arena, (size_t)count * (size_t)per * size);
}

static void layout_run(h3f_arena *arena, h3f_dit_run *run) {
    const h3f_dit_config *c = &run->dit->config;
    const int64_t rows = run->sequence.rows, hidden = c->hidden;
    run->entry_of = take(arena, run->times, H3F_TAGS, sizeof *run->entry_of);
    run->tables = take(arena, (int64_t)c->layers * run->entries, H3F_MODULATIONS * hidden,
                       sizeof(float));
    run->final_tables = take(arena, run->times, 2 * hidden, sizeof(float));
    run->cosine = take(arena, rows, run->dit->shape.pairs, sizeof(float));
    run->sine = take(arena, rows, run->dit->shape.pairs, sizeof(float));
    run->text = take(arena, run->sequence.text_rows, hidden, sizeof(float));
    run->x = take(arena, rows, hidden, sizeof(float));
    run->modulation = take(arena, rows, 1, sizeof *run->modulation);
    run->both = take(arena, 2, run->dit->shape.pairs, sizeof(float));
    h3f_block_buffers_layout(arena, &run->dit->shape, rows, &run->block);
    run->scratch = h3f_arena_take(
        arena, h3f_linear_scratch(run->block.chunk, larger(hidden, larger(c->video_dim, c->audio_dim))));
}

/* The caller's arrays are only read during begin. */
static void layout_sequence(h3f_arena *arena, h3f_sequence *s, int32_t *parts[4]) {
    const int64_t counts[4] = {s->rows, s->text_rows, s->video_rows, s->audio_rows};
    for (int i = 0; i < 4; i++)
        parts[i] = take(arena, counts[i], 1, sizeof(int32_t));
}

static void copy_sequence(const h3f_sequence *from, int32_t *parts[4], h3f_sequence *to) {
    memcpy(parts[0], from->tags, (size_t)from->rows * sizeof(int32_t));
    memcpy(parts[1], from->text_indices, (size_t)from->text_rows * sizeof(int32_t));
    memcpy(parts[2], from->video_indices, (size_t)from->video_rows * sizeof(int32_t));
    memcpy(parts[3], from->audio_indices, (size_t)from->audio_rows * sizeof(int32_t));
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

/* ---- rotary tables ---- */

/* The reference's table holds every angle twice, once for each half of the rotated channels. */
static void tap_rotary(const h3f_dit_run *run, const char *name, const float *table) {
    const int64_t pairs = run->dit->shape.pairs, rows = run->sequence.rows;
    for (int64_t i = 0; i < rows && run->dit->ctx->tap; i++) {
        for (int half = 0; half < 2; half++)
            memcpy(run->both + half * pairs, table + i * pairs, (size_t)pairs * sizeof(float));
        h3f_tap(run->dit->ctx, name, i, 1, rows, 2 * pairs, run->both);
    }
}

static int fill_rotary(h3f_dit_run *run, const double *positions) {
    const h3f_dit_config *c = &run->dit->config;
    const int64_t freqs = c->rope_freqs, pairs = run->dit->shape.pairs;
    for (int64_t f = 0; f < freqs; f++) {
        const float inverse = (float)(1.0 / pow(c->rope_theta, (double)f / (double)freqs));
        for (int64_t i = 0; i < run->sequence.rows; i++) {
            for (int axis = 0; axis < 3; axis++) {
                const float angle = (float)positions[3 * i + axis] * inverse;
                run->cosine[i * pairs + axis * freqs + f] = cosf(angle);
                run->sine[i * pairs + axis * freqs + f] = sinf(angle);
            }
        }
        H3F_TRY(h3f_poll(run->dit->ctx));
    }
    tap_rotary(run, "rope_cos", run->cosine);
    tap_rotary(run, "rope_sin", run->sine);
    return H3F_OK;
}

/* ---- modulation tables ---- */

/* Which (time, tag) pairs need an entry; ordered by tag so that one product fills a tag's entries. */
static int32_t number_entries(const h3f_time *times, int32_t count, int32_t *entry_of) {
    int32_t entries = 0;
    for (int32_t tag = 0; tag < H3F_TAGS; tag++)
        for (int32_t i = 0; i < count; i++) {
            const bool wanted = (times[i].tag_mask >> tag) & 1;
            if (entry_of)
                entry_of[i * H3F_TAGS + tag] = wanted ? entries : -1;
            entries += wanted;
        }
    return entries;
}

typedef struct time_buffers {
    h3f_arena arena;
    float *sinusoid;  /* [times, freq_dim] */
    float *inner;     /* [times, time_hidden] */
    float *embedding; /* [times, time_dim], through SiLU in the end */
    float *of_tag;    /* [times, time_dim]: the times that a tag needs */
    void *scratch;
} time_buffers;

static void layout_time(const h3f_dit_run *run, time_buffers *b) {
    const h3f_dit_config *c = &run->dit->config;
    const int64_t widest = larger(c->freq_dim, larger(c->time_hidden, c->time_dim));
    b->sinusoid = take(&b->arena, run->times, c->freq_dim, sizeof(float));
    b->inner = take(&b->arena, run->times, c->time_hidden, sizeof(float));
    b->embedding = take(&b->arena, run->times, c->time_dim, sizeof(float));
    b->of_tag = take(&b->arena, run->times, c->time_dim, sizeof(float));
    b->scratch = h3f_arena_take(&b->arena, h3f_linear_scratch(run->times, widest));
}

/* t is not scaled; cosines before sines. */
static void fill_sinusoid(const h3f_dit_run *run, const h3f_time *times, float *out) {
    const int32_t half = run->dit->config.freq_dim / 2;
    for (int32_t j = 0; j < half; j++) {
        const float frequency = (float)exp(-log(10000.0) * j / half);
        for (int32_t i = 0; i < run->times; i++) {
            const float angle = times[i].t * frequency;
            out[i * 2 * half + j] = cosf(angle);
            out[i * 2 * half + half + j] = sinf(angle);
        }
    }
}

static int embed_times(const h3f_dit_run *run, const h3f_time *times, time_buffers *b) {
    const h3f_dit *dit = run->dit;
    const h3f_dit_config *c = &dit->config;
    const int64_t n = run->times;
    fill_sinusoid(run, times, b->sinusoid);
    h3f_tap(dit->ctx, "time_sinusoid", 0, n, n, c->freq_dim, b->sinusoid);
    H3F_TRY(h3f_linear_run(dit->ctx, &dit->time_in, b->sinusoid, n, b->inner, c->time_hidden,
                           b->scratch));
    H3F_TRY(h3f_silu(dit->ctx, n * c->time_hidden, b->inner, b->inner));
    H3F_TRY(h3f_linear_run(dit->ctx, &dit->time_out, b->inner, n, b->embedding, c->time_dim,
                           b->scratch));
    h3f_tap(dit->ctx, "time_embedding", 0, n, n, c->time_dim, b->embedding);
    return h3f_silu(dit->ctx, n * c->time_dim, b->embedding, b->embedding);
}

/* The part of a block's projection that belongs to one tag: [6][hidden] outputs. */
static h3f_linear adaln_of_tag(const h3f_linear *adaln, int32_t tag, int64_t outputs) {
    const size_t offset = (size_t)tag * (size_t)outputs * (size_t)adaln->w.cols *
                          h3f_dtype_size(adaln->w.dtype);
    h3f_linear part = *adaln;
    part.w.data = (const unsigned char *)adaln->w.data + offset;
    part.w.rows = part.w.group = part.w.group_stride = outputs;
    part.bias = adaln->bias + tag * outputs;
    return part;
}

static int fill_tag(const h3f_dit_run *run, const h3f_linear *adaln, int32_t tag, float *table,
                    const time_buffers *b) {
    const h3f_dit_config *c = &run->dit->config;
    const int64_t outputs = (int64_t)H3F_MODULATIONS * c->hidden;
    int64_t count = 0, first = 0;
    for (int32_t i = 0; i < run->times; i++) {
        const int32_t entry = run->entry_of[i * H3F_TAGS + tag];
        if (entry < 0)
            continue;
        if (count == 0)
            first = entry;
        memcpy(b->of_tag + count++ * c->time_dim, b->embedding + (int64_t)i * c->time_dim,
               (size_t)c->time_dim * sizeof(float));
    }
    if (count == 0)
        return H3F_OK;
    const h3f_linear part = adaln_of_tag(adaln, tag, outputs);
    return h3f_linear_run(run->dit->ctx, &part, b->of_tag, count, table + first * outputs, outputs,
                          b->scratch);
}

/* As the golden tensor has it: [6][times * tags][hidden]; pairs that no row has are left out. */
static void tap_adaln(const h3f_dit_run *run, int32_t block, const float *table) {
    const int64_t hidden = run->dit->config.hidden, pairs = (int64_t)run->times * H3F_TAGS;
    char name[40];
    snprintf(name, sizeof name, "block.%d.adaln", block);
    for (int64_t row = 0; row < H3F_MODULATIONS * pairs && run->dit->ctx->tap; row++) {
        const int64_t part = row / pairs;
        const int32_t entry = run->entry_of[row % pairs];
        if (entry >= 0)
            h3f_tap(run->dit->ctx, name, row, 1, H3F_MODULATIONS * pairs, hidden,
                    table + (entry * H3F_MODULATIONS + part) * hidden);
    }
}

static int fill_tables(const h3f_dit_run *run, const time_buffers *b) {
    const h3f_dit *dit = run->dit;
    const h3f_dit_config *c = &dit->config;
    const int64_t size = (int64_t)run->entries * H3F_MODULATIONS * c->hidden;
    for (int32_t i = 0; i < c->layers; i++) {
        float *table = run->tables + i * size;
        for (int32_t tag = 0; tag < H3F_TAGS; tag++)
            H3F_TRY(fill_tag(run, &dit->adaln[i], tag, table, b));
        tap_adaln(run, i, table);
        h3f_progress(dit->ctx, "adaln", i + 1, c->layers);
    }
    return h3f_linear_run(dit->ctx, &dit->final_adaln, b->embedding, run->times, run->final_tables,
                          2 * (int64_t)c->hidden, b->scratch);
}

static int modulation_tables(const h3f_dit_run *run, const h3f_time *times) {
    time_buffers b = {0};
    layout_time(run, &b);
    H3F_TRY(h3f_arena_reserve(run->dit->ctx, &b.arena, "the time embedding"));
    layout_time(run, &b);
    number_entries(times, run->times, run->entry_of);
    int code = embed_times(run, times, &b);
    if (code == H3F_OK)
        code = fill_tables(run, &b);
    h3f_arena_release(run->dit->ctx, &b.arena);
    return code;
}

/* ---- text ---- */

static int project_text(const h3f_dit_run *run, const float *text) {
    const h3f_dit *dit = run->dit;
    const int64_t rows = run->sequence.text_rows, hidden = dit->config.hidden;
    void *scratch = h3f_alloc(dit->ctx, h3f_linear_scratch(rows, dit->config.text_dim),
                              "projecting the text");
    if (!scratch)
        return H3F_ENOMEM;
    const int code = h3f_linear_run(dit->ctx, &dit->text_in, text, rows, run->text, hidden, scratch);
    h3f_free(dit->ctx, scratch);
    return code;
}

static int refine(const h3f_dit_run *run, const h3f_block_buffers *buffers) {
    const h3f_dit *dit = run->dit;
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
                                     .buffers = buffers,
                                     .what = what};
        H3F_TRY(h3f_block_run(dit->ctx, &pass, run->text));
        h3f_tap(dit->ctx, name, 0, rows, rows, hidden, run->text);
    }
    H3F_TRY(h3f_rms_norm(dit->ctx, &norm, run->text, run->text));
    h3f_tap(dit->ctx, "refined_text", 0, rows, rows, hidden, run->text);
    return H3F_OK;
}

static int refine_text(const h3f_dit_run *run, const float *text) {
    const h3f_dit *dit = run->dit;
    const int64_t rows = run->sequence.text_rows;
    h3f_arena arena = {0};
    h3f_block_buffers buffers;
    if (rows == 0)
        return H3F_OK;
    H3F_TRY(project_text(run, text));
    h3f_tap(dit->ctx, "text_embeds", 0, rows, rows, dit->config.hidden, run->text);
    h3f_block_buffers_layout(&arena, &dit->refiner_shape, rows, &buffers);
    H3F_TRY(h3f_arena_reserve(dit->ctx, &arena, "refining the text"));
    h3f_block_buffers_layout(&arena, &dit->refiner_shape, rows, &buffers);
    const int code = refine(run, &buffers);
    h3f_arena_release(dit->ctx, &arena);
    return code;
}

/* ---- begin and end ---- */

static int prepare(h3f_dit_run *run, const h3f_sequence *sequence, const float *text,
                   const h3f_time *times) {
    H3F_TRY(reserve(run, sequence));
    H3F_TRY(fill_rotary(run, sequence->positions));
    H3F_TRY(modulation_tables(run, times));
    return refine_text(run, text);
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
    begun->entries = number_entries(times, time_count, NULL);
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

/* ---- a step ---- */

static int check_row_times(const h3f_dit_run *run, const int32_t *row_times) {
    for (int64_t i = 0; i < run->sequence.rows; i++) {
        const int32_t time = row_times[i], tag = run->sequence.tags[i];
        if (time < 0 || time >= run->times)
            return h3f_fail(run->dit->ctx, H3F_EINVAL,
                            "timestep index of row %lld is %d, allowed are 0 to %d", (long long)i,
                            time, run->times - 1);
        if (run->entry_of[time * H3F_TAGS + tag] < 0)
            return h3f_fail(run->dit->ctx, H3F_EINVAL,
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
        const int64_t part = lesser(chunk, count - first);
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

static void point_at_table(const h3f_dit_run *run, int32_t block, const int32_t *row_times) {
    const int64_t entry_size = (int64_t)H3F_MODULATIONS * run->dit->config.hidden;
    const float *table = run->tables + block * run->entries * entry_size;
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
        const int64_t part = lesser(chunk, rows - first);
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
        const int64_t part = lesser(chunk, count - first);
        H3F_TRY(norm_out(run, indices, first, part, row_times));
        H3F_TRY(h3f_linear_run(run->dit->ctx, head, run->block.n, part, out + first * cols, cols,
                               run->scratch));
    }
    if (!h3f_all_finite(out, count * cols))
        return h3f_fail(run->dit->ctx, H3F_ENUMERIC, "NaN or infinity in the predicted velocity");
    return H3F_OK;
}

int h3f_dit_step(h3f_dit_run *run, const int32_t *row_times, const float *video,
                 const float *audio, float *video_velocity, float *audio_velocity) {
    const h3f_dit *dit = run->dit;
    const h3f_sequence *s = &run->sequence;
    H3F_TRY(check_row_times(run, row_times));
    H3F_TRY(pack(run, video, audio));
    for (int32_t i = 0; i < dit->config.layers; i++)
        H3F_TRY(run_block(run, i, row_times));
    H3F_TRY(tap_norm_out(run, row_times));
    H3F_TRY(velocity(run, &dit->video_out, s->video_indices, s->video_rows, row_times,
                     video_velocity));
    return velocity(run, &dit->audio_out, s->audio_indices, s->audio_rows, row_times,
                    audio_velocity);
}
