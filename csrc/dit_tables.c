/* What depends on the request but not on the step: rotary and modulation tables.
 * Source: docs/model.md, "Transformer". */
#include "dit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

int h3f_dit_fill_rotary(h3f_dit_run *run, const double *positions) {
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

/* Ordered by tag, so that one product fills a tag's entries. */
int32_t h3f_dit_number_entries(const h3f_time *times, int32_t count, int32_t *entry_of) {
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
    const int64_t widest = h3f_max(c->freq_dim, h3f_max(c->time_hidden, c->time_dim));
    b->sinusoid = h3f_take_floats(&b->arena, run->times, c->freq_dim);
    b->inner = h3f_take_floats(&b->arena, run->times, c->time_hidden);
    b->embedding = h3f_take_floats(&b->arena, run->times, c->time_dim);
    b->of_tag = h3f_take_floats(&b->arena, run->times, c->time_dim);
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
    const size_t offset =
        (size_t)tag * (size_t)outputs * (size_t)adaln->w.cols * h3f_dtype_size(adaln->w.dtype);
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

int h3f_dit_fill_modulation(const h3f_dit_run *run, const h3f_time *times) {
    time_buffers b = {0};
    layout_time(run, &b);
    H3F_TRY(h3f_arena_reserve(run->dit->ctx, &b.arena, "the time embedding"));
    layout_time(run, &b);
    h3f_dit_number_entries(times, run->times, run->entry_of);
    int code = embed_times(run, times, &b);
    if (code == H3F_OK)
        code = fill_tables(run, &b);
    h3f_arena_release(run->dit->ctx, &b.arena);
    return code;
}
