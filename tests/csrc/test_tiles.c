#include "harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "video_vae_tiles.h"

static h3f_context *ctx;

static const h3f_video_vae_config release = {.spatial_factor = 16,
                                             .temporal_factor = 4,
                                             .clip_length = 17,
                                             .token_drop = 3,
                                             .tile = 256,
                                             .tile_overlap = 64};

/* ---- time ---- */

static h3f_clip_rules rules_of(const h3f_video_vae_config *config) {
    h3f_clip_rules rules;
    CHECK_OK(ctx, h3f_clip_rules_init(ctx, config, &rules));
    return rules;
}

static void test_rules_of_the_release(void) {
    const h3f_clip_rules rules = rules_of(&release);
    CHECK_INT(rules.stride, 5);
    CHECK_INT(rules.overlap, 2);
    CHECK_INT(rules.lead, 3);
    CHECK_INT(rules.overlap_frames, 5);
}

/* The reference's way: repeat the last latent until the count fits, decode, then cut for each repetition. */
static void test_frames_follow_the_reference_for_3_to_40_latents(void) {
    const h3f_clip_rules rules = rules_of(&release);
    for (int32_t latents = 3; latents <= 40; latents++) {
        const int32_t pad = (5 - (latents + 3) % 5) % 5;
        const int32_t clips = (latents + 3 + pad) / 5 - 1;
        int32_t frames = 17 * clips + 5;
        for (int32_t q = 0; q < pad; q++)
            frames -= (latents + q) % 5 == 0 ? 1 : 4;
        h3f_clip_plan plan;
        CHECK_OK(ctx, h3f_clip_plan_init(ctx, &rules, latents, &plan));
        CHECK_INT(plan.clips, clips);
        CHECK_INT(plan.frames, frames);
        int32_t sum = 0;
        for (int32_t clip = 0; clip < clips; clip++)
            sum += h3f_clip_frames(&rules, &plan, clip);
        CHECK_INT(sum, frames);
    }
}

static void test_known_lengths(void) {
    static const int32_t table[][3] = {/* latents, clips, frames */
                                       {3, 1, 9},   {4, 1, 13},  {7, 1, 22},   {9, 2, 30},
                                       {12, 2, 39}, {17, 3, 56}, {37, 7, 124}, {107, 21, 362}};
    const h3f_clip_rules rules = rules_of(&release);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        h3f_clip_plan plan;
        CHECK_OK(ctx, h3f_clip_plan_init(ctx, &rules, table[i][0], &plan));
        CHECK_INT(plan.clips, table[i][1]);
        CHECK_INT(plan.frames, table[i][2]);
    }
}

static void test_latents_too_short_are_refused(void) {
    const h3f_clip_rules rules = rules_of(&release);
    for (int32_t latents = -1; latents <= 2; latents++) {
        h3f_clip_plan plan;
        CHECK_INT(h3f_clip_plan_init(ctx, &rules, latents, &plan), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), "latent frames cannot be decoded; 3 (9 frames) is the least");
    }
}

static void test_clips_that_do_not_overlap_are_refused(void) {
    for (int32_t drop = 0; drop <= 5; drop += 5) {
        h3f_video_vae_config config = release;
        h3f_clip_rules rules;
        config.token_drop = drop;
        CHECK_INT(h3f_clip_rules_init(ctx, &config, &rules), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), "expected 1 to 4 with clip_length 17 and temporal_factor 4");
    }
}

/* ---- space ---- */

static void test_starts_of_the_release(void) {
    static const struct {
        int32_t length, count, starts[11];
    } table[] = {
        {16, 1, {0}},
        {256, 1, {0}},
        {288, 2, {0, 32}},
        {480, 3, {0, 112, 224}},
        {512, 3, {0, 128, 256}},
        {576, 3, {0, 160, 320}},
        {672, 4, {0, 128, 272, 416}},
        {768, 4, {0, 160, 336, 512}},
        {864, 5, {0, 144, 288, 448, 608}},
        {1024, 5, {0, 192, 384, 576, 768}},
        {1344, 7, {0, 176, 352, 528, 704, 896, 1088}},
        {1536, 8, {0, 176, 352, 528, 704, 896, 1088, 1280}},
        {2048, 11, {0, 176, 352, 528, 704, 880, 1056, 1232, 1408, 1600, 1792}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        h3f_axis axis;
        h3f_axis_init(&axis, table[i].length, 256, 64, 16);
        CHECK_INT(axis.count, table[i].count);
        for (int32_t tile = 0; tile < axis.count; tile++)
            CHECK_INT(h3f_axis_start(&axis, tile), table[i].starts[tile]);
    }
}

/* The reference's loops, overlaps in a list. */
static void check_axis(int32_t length, int32_t tile, int32_t least, int32_t unit) {
    h3f_axis axis;
    h3f_axis_init(&axis, length, tile, least, unit);
    if (tile >= length) {
        CHECK_INT(axis.count, 1);
        CHECK_INT(axis.size, length);
        return;
    }
    int32_t count = (length + tile - 1) / tile, overlaps[512], start = 0;
    while (tile * count - least * (count - 1) - length < 0)
        count++;
    CHECK(count < 512);
    for (int32_t i = 0; i < count - 1; i++)
        overlaps[i] = least;
    for (int32_t i = 0; i < (tile * count - least * (count - 1) - length) / unit; i++)
        overlaps[i % (count - 1)] += unit;
    CHECK_INT(axis.count, count);
    for (int32_t i = 0; i < count; i++) {
        CHECK_INT(h3f_axis_start(&axis, i), start);
        CHECK_INT(h3f_axis_overlap(&axis, i), i < count - 1 ? overlaps[i] : 0);
        start += i < count - 1 ? tile - overlaps[i] : tile;
    }
    CHECK_INT(start, length);
}

static void test_drawn_axes_follow_the_reference(void) {
    h_draw draw = {1};
    for (int i = 0; i < 2000; i++) {
        const int32_t unit = (int32_t)h_between(&draw, 1, 16);
        const int32_t tile = unit * (int32_t)h_between(&draw, 1, 16);
        const int32_t least = unit * (int32_t)h_between(&draw, 0, tile / unit - 1);
        check_axis(unit * (int32_t)h_between(&draw, 1, 200), tile, least, unit);
    }
}

static void test_tile_0_is_no_tiling(void) {
    h3f_axis axis;
    h3f_axis_init(&axis, 4096, 0, 0, 16);
    CHECK_INT(axis.count, 1);
    CHECK_INT(axis.size, 4096);
    CHECK_INT(h3f_axis_overlap(&axis, 0), 0);
}

/* ---- pixels ---- */

typedef struct picture {
    int32_t planes, height, width;
    float *values;
} picture;

static picture picture_of(int32_t planes, int32_t height, int32_t width) {
    const size_t count = (size_t)planes * (size_t)height * (size_t)width;
    return (picture){planes, height, width, calloc(count, sizeof(float))};
}

static float *at(const picture *p, int32_t plane, int32_t y, int32_t x) {
    return &p->values[((int64_t)plane * p->height + y) * p->width + x];
}

static float mixed(float before, float after, int32_t p, int32_t extent) {
    return before * (1.0F - (float)p / (float)extent) + after * ((float)p / (float)extent);
}

/* One clip: all raw tiles kept, each copied, blended, cut and placed, as the reference words it. */
typedef struct naive {
    h3f_axis y, x;
    int32_t planes;
    picture raw[64];
} naive;

static void naive_stitch(const naive *n, picture *out) {
    for (int32_t row = 0; row < n->y.count; row++)
        for (int32_t col = 0; col < n->x.count; col++) {
            const picture *tile = &n->raw[row * n->x.count + col];
            const int32_t up = h3f_axis_overlap(&n->y, row - 1), back = h3f_axis_overlap(&n->x, col - 1);
            for (int32_t p = 0; p < n->planes; p++)
                for (int32_t y = 0; y < n->y.size - h3f_axis_overlap(&n->y, row); y++)
                    for (int32_t x = 0; x < n->x.size - h3f_axis_overlap(&n->x, col); x++) {
                        float value = *at(tile, p, y, x);
                        if (y < up)
                            value = mixed(*at(tile - n->x.count, p, n->y.size - up + y, x), value, y, up);
                        if (x < back)
                            value = mixed(*at(tile - 1, p, y, n->x.size - back + x), value, x, back);
                        *at(out, p, h3f_axis_start(&n->y, row) + y, h3f_axis_start(&n->x, col) + x) = value;
                    }
        }
}

/* Pixels of all decoded frames -> the network's rows of tokens. */
static void to_tokens(const h3f_mosaic *m, const picture *tile, int32_t frames, float *tokens) {
    const int32_t down = m->y.size / m->patch, across = m->x.size / m->patch;
    for (int32_t t = 0; t < frames / m->factor; t++)
        for (int32_t h = 0; h < down; h++)
            for (int32_t w = 0; w < across; w++)
                for (int32_t c = 0; c < m->channels; c++)
                    for (int32_t f = 0; f < m->factor; f++)
                        for (int32_t y = 0; y < m->patch; y++)
                            for (int32_t x = 0; x < m->patch; x++)
                                *tokens++ = *at(tile, c * frames + t * m->factor + f, h * m->patch + y,
                                                w * m->patch + x);
}

typedef struct mosaic_case {
    int32_t height, width, tile, least, unit; /* pixels */
    int32_t overlap;                          /* frames blended from the clip before */
    bool last;
    int32_t frames; /* kept */
} mosaic_case;

/* Clips of 17 + 5 frames out of 28, as in the release. */
static void check_mosaic(const mosaic_case *c, uint64_t seed) {
    enum { CHANNELS = 3, DECODED = 28 };
    h_draw draw = {seed};
    h3f_mosaic m = {.channels = CHANNELS, .patch = c->unit, .factor = 4, .length = 17, .lead = 3};
    h3f_axis_init(&m.y, c->height, c->tile, c->least, c->unit);
    h3f_axis_init(&m.x, c->width, c->tile, c->least, c->unit);
    m.overlap = c->overlap;
    m.frames = c->frames;
    m.last = c->last;
    m.carry_frames = 5;
    const int32_t given = c->last ? c->frames : 17;
    picture pixels = picture_of(CHANNELS * given, c->height, c->width);
    picture carry = picture_of(CHANNELS * 5, c->height, c->width);
    picture before = picture_of(CHANNELS * 5, c->height, c->width);
    h_fill(&draw, carry.values, (int64_t)CHANNELS * 5 * c->height * c->width);
    memcpy(before.values, carry.values, (size_t)(CHANNELS * 5 * c->height * c->width) * sizeof(float));
    m.pixels = pixels.values;
    m.carry = carry.values;
    m.above = malloc(h3f_mosaic_above_bytes(&m) + 1);
    m.left = malloc(h3f_mosaic_left_bytes(&m) + 1);
    naive n = {.y = m.y, .x = m.x, .planes = CHANNELS * DECODED};
    CHECK(m.y.count * m.x.count <= 64);
    float *tokens = malloc((size_t)(CHANNELS * DECODED * m.y.size * m.x.size) * sizeof(float));
    for (int32_t i = 0; i < m.y.count * m.x.count; i++) {
        n.raw[i] = picture_of(n.planes, m.y.size, m.x.size);
        h_fill(&draw, n.raw[i].values, (int64_t)n.planes * m.y.size * m.x.size);
        to_tokens(&m, &n.raw[i], DECODED, tokens);
        CHECK_OK(ctx, h3f_mosaic_put(ctx, &m, i / m.x.count, i % m.x.count, tokens));
    }
    picture whole = picture_of(n.planes, c->height, c->width);
    naive_stitch(&n, &whole);
    for (int32_t channel = 0; channel < CHANNELS; channel++)
        for (int32_t k = 0; k < c->frames; k++)
            for (int32_t y = 0; y < c->height; y++)
                for (int32_t x = 0; x < c->width; x++) {
                    const int32_t source = k < 17 ? k + 3 : k + 6;
                    float wanted = *at(&whole, channel * DECODED + source, y, x);
                    if (k < c->overlap)
                        wanted = mixed(*at(&before, channel * 5 + k, y, x), wanted, k, c->overlap);
                    const float found = k < 17 || c->last ? *at(&pixels, channel * given + k, y, x)
                                                          : *at(&carry, channel * 5 + k - 17, y, x);
                    CHECK(h_difference(&found, &wanted, 1) < 1e-6);
                }
    for (int32_t i = 0; i < m.y.count * m.x.count; i++)
        free(n.raw[i].values);
    free(whole.values);
    free(before.values);
    free(carry.values);
    free(pixels.values);
    free(tokens);
    free(m.above);
    free(m.left);
}

static void test_tiles_are_joined_as_in_a_naive_model(void) {
    static const mosaic_case table[] = {
        {4, 6, 0, 0, 2, 0, true, 22},    {12, 14, 6, 2, 2, 0, false, 22}, {12, 14, 6, 2, 2, 5, false, 22},
        {12, 14, 6, 2, 2, 5, true, 22},  {10, 4, 8, 2, 2, 5, true, 22},   {4, 10, 8, 2, 2, 5, false, 22},
        {9, 9, 8, 2, 1, 5, true, 22},    {20, 20, 6, 0, 2, 5, false, 22}, {12, 14, 6, 2, 2, 5, true, 13},
        {12, 14, 6, 2, 2, 0, true, 9},   {7, 11, 4, 3, 1, 5, true, 18},   {2, 2, 8, 4, 2, 5, true, 5},
        {18, 16, 12, 10, 2, 5, true, 22},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_mosaic(&table[i], i);
}

static void test_drawn_mosaics(void) {
    h_draw draw = {7};
    for (uint64_t i = 0; i < 40; i++) {
        const int32_t unit = (int32_t)h_between(&draw, 1, 3);
        const int32_t tile = (int32_t)h_between(&draw, 1, 5);
        const mosaic_case c = {.height = unit * (int32_t)h_between(&draw, 1, 7),
                               .width = unit * (int32_t)h_between(&draw, 1, 7),
                               .tile = unit * tile,
                               .least = unit * (int32_t)h_between(&draw, 0, tile - 1),
                               .unit = unit,
                               .overlap = h_between(&draw, 0, 1) ? 5 : 0,
                               .last = false,
                               .frames = 22};
        check_mosaic(&c, 100 + i);
    }
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 2);
    RUN(test_rules_of_the_release);
    RUN(test_frames_follow_the_reference_for_3_to_40_latents);
    RUN(test_known_lengths);
    RUN(test_latents_too_short_are_refused);
    RUN(test_clips_that_do_not_overlap_are_refused);
    RUN(test_starts_of_the_release);
    RUN(test_drawn_axes_follow_the_reference);
    RUN(test_tile_0_is_no_tiling);
    RUN(test_tiles_are_joined_as_in_a_naive_model);
    RUN(test_drawn_mosaics);
    h3f_context_free(ctx);
    return H_END();
}
