#include "block_reference.h"

#include <stdio.h>

enum { ENTRIES = 3 }; /* modulations, of which each row has one */

/* A block of drawn weights, as the engine and as the reference want it, and rows to send through
 * it. */
typedef struct drawn {
    h3f_block_shape shape;
    h3f_block block;
    r_block reference;
    float *values; /* all of the above */
    int64_t used;
    int64_t rows;
    float *x, *result; /* [rows, hidden] */
    double *angles;    /* [rows, pairs] */
    float *cosine, *sine;
    double *table; /* [ENTRIES][6][hidden] */
    float *table_f32;
    const double **modulation; /* [rows], or NULL */
    const float **modulation_f32;
} drawn;

static float *take(drawn *d, h_draw *draw, int64_t count, float scale, float offset) {
    float *values = d->values + d->used;
    d->used += count;
    for (int64_t i = 0; i < count; i++)
        values[i] = h_normal(draw) * scale + offset;
    return values;
}

static const float *matrix(drawn *d, h_draw *draw, int64_t rows, int64_t cols, h3f_linear *linear) {
    const float *values = take(d, draw, rows * cols, 1.0F / sqrtf((float)cols), 0);
    *linear = (h3f_linear){.w = {.data = values,
                                 .dtype = H3F_F32,
                                 .rows = rows,
                                 .cols = cols,
                                 .group = rows,
                                 .group_stride = rows}};
    return values;
}

static void draw_weights(drawn *d, h_draw *draw) {
    const h3f_block_shape *s = &d->shape;
    const int64_t inner = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    const int64_t count =
        2 * (s->hidden + s->head_dim + s->hidden * (inner + kv)) + 3 * s->hidden * s->ffn;
    d->values = malloc((size_t)count * sizeof *d->values);
    d->reference.norm1 = d->block.norm1 = take(d, draw, s->hidden, 0.2F, 1);
    d->reference.norm2 = d->block.norm2 = take(d, draw, s->hidden, 0.2F, 1);
    d->reference.q_norm = d->block.q_norm = take(d, draw, s->head_dim, 0.2F, 1);
    d->reference.k_norm = d->block.k_norm = take(d, draw, s->head_dim, 0.2F, 1);
    d->reference.q = matrix(d, draw, inner, s->hidden, &d->block.q);
    d->reference.k = matrix(d, draw, kv, s->hidden, &d->block.k);
    d->reference.v = matrix(d, draw, kv, s->hidden, &d->block.v);
    d->reference.out = matrix(d, draw, s->hidden, inner, &d->block.out);
    d->reference.gate = matrix(d, draw, s->ffn, s->hidden, &d->block.gate);
    d->reference.up = matrix(d, draw, s->ffn, s->hidden, &d->block.up);
    d->reference.down = matrix(d, draw, s->hidden, s->ffn, &d->block.down);
    CHECK_INT(d->used, count);
}

static void draw_rotation(drawn *d, h_draw *draw) {
    const int64_t count = d->rows * d->shape.pairs;
    if (d->shape.pairs == 0)
        return;
    d->angles = r_room(count);
    d->cosine = malloc((size_t)count * sizeof(float));
    d->sine = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        d->angles[i] = 3 * (double)h_normal(draw);
        d->cosine[i] = (float)cos(d->angles[i]);
        d->sine[i] = (float)sin(d->angles[i]);
    }
}

static void draw_modulation(drawn *d, h_draw *draw) {
    const int64_t size = H3F_MODULATIONS * d->shape.hidden;
    d->table = r_room(ENTRIES * size);
    d->table_f32 = malloc((size_t)(ENTRIES * size) * sizeof(float));
    d->modulation = malloc((size_t)d->rows * sizeof *d->modulation);
    d->modulation_f32 = malloc((size_t)d->rows * sizeof *d->modulation_f32);
    for (int64_t i = 0; i < ENTRIES * size; i++)
        d->table[i] = (double)(d->table_f32[i] = h_normal(draw));
    for (int64_t i = 0; i < d->rows; i++) {
        const int64_t entry = h_between(draw, 0, ENTRIES - 1);
        d->modulation[i] = d->table + entry * size;
        d->modulation_f32[i] = d->table_f32 + entry * size;
    }
}

static drawn draw_block(const h3f_block_shape *shape, int64_t rows, bool modulated, uint64_t seed) {
    h_draw draw = {seed};
    drawn d = {.shape = *shape, .rows = rows};
    draw_weights(&d, &draw);
    draw_rotation(&d, &draw);
    if (modulated)
        draw_modulation(&d, &draw);
    d.x = malloc((size_t)(rows * shape->hidden) * sizeof(float));
    d.result = malloc((size_t)(rows * shape->hidden) * sizeof(float));
    h_fill(&draw, d.x, rows * shape->hidden);
    return d;
}

static void drop(drawn *d) {
    free(d->values);
    free(d->x);
    free(d->result);
    free(d->angles);
    free(d->cosine);
    free(d->sine);
    free(d->table);
    free(d->table_f32);
    free(d->modulation);
    free(d->modulation_f32);
}

/* x -> result, in chunks of `chunk` rows; 0: as many as the block chooses. */
static int run(h3f_context *ctx, const drawn *d, int64_t chunk) {
    h3f_arena arena = {0};
    h3f_block_buffers buffers;
    h3f_block_buffers_layout(&arena, &d->shape, d->rows, &buffers);
    CHECK_OK(ctx, h3f_arena_reserve(ctx, &arena, "a test"));
    h3f_block_buffers_layout(&arena, &d->shape, d->rows, &buffers);
    if (chunk && chunk < buffers.chunk)
        buffers.chunk = chunk;
    const h3f_block_pass pass = {.shape = &d->shape,
                                 .block = &d->block,
                                 .buffers = &buffers,
                                 .cosine = d->cosine,
                                 .sine = d->sine,
                                 .modulation = d->modulation_f32,
                                 .what = "the block"};
    memcpy(d->result, d->x, (size_t)(d->rows * d->shape.hidden) * sizeof(float));
    const int code = h3f_block_run(ctx, &pass, d->result);
    h3f_arena_release(ctx, &arena);
    return code;
}

static void check_against_reference(h3f_context *ctx, const drawn *d) {
    const int64_t count = d->rows * d->shape.hidden;
    double *expected = r_room(count);
    for (int64_t i = 0; i < count; i++)
        expected[i] = (double)d->x[i];
    r_block_run(&d->shape, &d->reference, d->rows, d->angles, d->modulation, expected);
    CHECK_OK(ctx, run(ctx, d, 0));
    CHECK(r_difference(d->result, expected, count) < 2e-5);
    free(expected);
}

static h3f_block_shape draw_shape(h_draw *draw) {
    h3f_block_shape shape = {.hidden = h_between(draw, 1, 40),
                             .ffn = h_between(draw, 1, 70),
                             .kv_heads = (int32_t)h_between(draw, 1, 3),
                             .head_dim = (int32_t)h_between(draw, 1, 37),
                             .causal = h_between(draw, 0, 1),
                             .norm_eps = 1e-5F,
                             .qk_norm_eps = 1e-6F};
    shape.heads = shape.kv_heads * (int32_t)h_between(draw, 1, 3);
    shape.pairs = (int32_t)h_between(draw, 0, shape.head_dim / 2);
    return shape;
}

/* ---- tests ---- */

static void test_agrees_with_the_formulas_over_drawn_shapes(void) {
    h_draw draw = {1};
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *ctx = h_context(isa, 2);
        for (int i = 0; i < 25 && ctx; i++) {
            const h3f_block_shape shape = draw_shape(&draw);
            drawn d =
                draw_block(&shape, h_between(&draw, 1, 60), h_between(&draw, 0, 1), (uint64_t)i);
            check_against_reference(ctx, &d);
            drop(&d);
        }
        h3f_context_free(ctx);
    }
}

static const h3f_block_shape small = {.hidden = 12,
                                      .ffn = 18,
                                      .heads = 3,
                                      .kv_heads = 1,
                                      .head_dim = 6,
                                      .pairs = 2,
                                      .norm_eps = 1e-5F,
                                      .qk_norm_eps = 1e-5F};

/* A block takes at most 1024 rows at a time. */
static void test_agrees_with_the_formulas_over_chunk_borders(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 2);
    for (int causal = 0; causal < 2; causal++) {
        h3f_block_shape shape = small;
        shape.causal = causal;
        drawn d = draw_block(&shape, 1024 + 7, true, 3);
        check_against_reference(ctx, &d);
        drop(&d);
    }
    h3f_context_free(ctx);
}

/* What a row becomes does not depend on the rows that happen to share its chunk. */
static void test_chunk_size_changes_no_bit(void) {
    static const int64_t chunks[] = {1, 2, 7, 13, 48, 49, 96};
    h3f_context *ctx = h_context(H3F_ISA_BEST, 2);
    for (int causal = 0; causal < 2; causal++) {
        h3f_block_shape shape = small;
        shape.causal = causal;
        drawn d = draw_block(&shape, 97, true, 5);
        const size_t bytes = (size_t)(d.rows * shape.hidden) * sizeof(float);
        float *whole = malloc(bytes);
        CHECK_OK(ctx, run(ctx, &d, 0));
        memcpy(whole, d.result, bytes);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            CHECK_OK(ctx, run(ctx, &d, chunks[i]));
            CHECK(memcmp(d.result, whole, bytes) == 0);
        }
        free(whole);
        drop(&d);
    }
    h3f_context_free(ctx);
}

/* Row by row, so that a row that is added behind changes nothing before it. */
static void test_causal_rows_see_nothing_that_follows(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 2);
    h3f_block_shape shape = small;
    shape.causal = true;
    drawn d = draw_block(&shape, 40, false, 6);
    float before[40 * 12];
    CHECK_OK(ctx, run(ctx, &d, 0));
    memcpy(before, d.result, sizeof before);
    for (int64_t i = 30 * 12; i < 40 * 12; i++)
        d.x[i] += 1;
    CHECK_OK(ctx, run(ctx, &d, 0));
    CHECK(memcmp(d.result, before, 30 * 12 * sizeof(float)) == 0);
    CHECK(memcmp(d.result + 30 * 12, before + 30 * 12, 12 * sizeof(float)) != 0);
    drop(&d);
    h3f_context_free(ctx);
}

static void test_what_is_not_finite_is_refused_by_name(void) {
    h3f_context *ctx = h_context(H3F_ISA_BEST, 2);
    drawn d = draw_block(&small, 1024 + 7, false, 7);
    d.x[(1024 + 5) * 12 + 3] =
        INFINITY; /* in the last chunk, seen by every row through attention */
    CHECK_INT(run(ctx, &d, 0), H3F_ENUMERIC);
    CHECK_TEXT(h3f_error(ctx), "NaN or infinity after the block");
    drop(&d);
    h3f_context_free(ctx);
}

int main(void) {
    RUN(test_agrees_with_the_formulas_over_drawn_shapes);
    RUN(test_agrees_with_the_formulas_over_chunk_borders);
    RUN(test_chunk_size_changes_no_bit);
    RUN(test_causal_rows_see_nothing_that_follows);
    RUN(test_what_is_not_finite_is_refused_by_name);
    return H_END();
}
