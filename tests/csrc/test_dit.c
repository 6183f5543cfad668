#include "dit_file.h"

/* Odd sizes throughout: three heads of ten channels, six of them rotated; video rows wider than the
 * model. */
static const h3f_dit_config small = {.hidden = 20,
                                     .layers = 2,
                                     .refiner_layers = 2,
                                     .heads = 3,
                                     .head_dim = 10,
                                     .ffn = 26,
                                     .video_dim = 44,
                                     .audio_dim = 5,
                                     .text_dim = 33,
                                     .freq_dim = 6,
                                     .time_hidden = 11,
                                     .time_dim = 9,
                                     .rope_freqs = 1,
                                     .rope_theta = 10000.0,
                                     .norm_eps = 1e-5F,
                                     .qk_norm_eps = 1e-5F,
                                     .final_norm_eps = 1e-5F};

static h3f_context *ctx;
static t_file file;

/* ---- requests ---- */

enum { TIMES = 3, ALL_TAGS = 7, VIDEO_AND_TEXT = 3, AUDIO_ONLY = 4 };

/* Rows of drawn values in a drawn order. Time 0 is for everything, 1 for video and text, 2 for
 * audio. */
typedef struct request {
    h3f_sequence sequence;
    h3f_time times[TIMES];
    double *positions;
    int32_t *tags, *indices; /* indices: the three lists, one behind the other */
    int32_t *row_times;
    float *text, *video, *audio;
    float *video_velocity, *audio_velocity; /* results */
} request;

static float *draw_rows(h_draw *draw, int64_t rows, int64_t cols) {
    float *values = calloc((size_t)(rows * cols) + 1, sizeof *values);
    h_fill(draw, values, rows * cols);
    return values;
}

static void shuffle(h_draw *draw, int32_t *values, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other = h_between(draw, 0, i);
        const int32_t value = values[i];
        values[i] = values[other];
        values[other] = value;
    }
}

static void tag_rows(request *r, h_draw *draw) {
    const h3f_sequence *s = &r->sequence;
    for (int64_t i = 0; i < s->rows; i++) {
        const int32_t row = r->indices[i];
        const bool text = i < s->text_rows, video = !text && i < s->text_rows + s->video_rows;
        r->tags[row] = text ? H3F_TAG_TEXT : video ? H3F_TAG_VIDEO : H3F_TAG_AUDIO;
        r->row_times[row] = h_between(draw, 0, 3) == 0 ? 0 : text || video ? 1 : 2;
        for (int axis = 0; axis < 3; axis++)
            r->positions[3 * row + axis] = (double)h_between(draw, 0, 400) / 12;
    }
}

static request draw_request(int64_t text, int64_t video, int64_t audio, uint64_t seed) {
    const int64_t rows = text + video + audio;
    h_draw draw = {seed};
    request r = {.times = {{0.125F, ALL_TAGS}, {0.5F, VIDEO_AND_TEXT}, {0.75F, AUDIO_ONLY}}};
    r.positions = malloc((size_t)(3 * rows) * sizeof *r.positions);
    r.tags = malloc((size_t)rows * sizeof *r.tags);
    r.indices = malloc((size_t)rows * sizeof *r.indices);
    r.row_times = malloc((size_t)rows * sizeof *r.row_times);
    for (int32_t i = 0; i < rows; i++)
        r.indices[i] = i;
    shuffle(&draw, r.indices, rows);
    r.sequence = (h3f_sequence){.rows = rows,
                                .text_rows = text,
                                .video_rows = video,
                                .audio_rows = audio,
                                .positions = r.positions,
                                .tags = r.tags,
                                .text_indices = text ? r.indices : NULL,
                                .video_indices = video ? r.indices + text : NULL,
                                .audio_indices = audio ? r.indices + text + video : NULL};
    tag_rows(&r, &draw);
    r.text = draw_rows(&draw, text, small.text_dim);
    r.video = draw_rows(&draw, video, small.video_dim);
    r.audio = draw_rows(&draw, audio, small.audio_dim);
    r.video_velocity = draw_rows(&draw, video, small.video_dim);
    r.audio_velocity = draw_rows(&draw, audio, small.audio_dim);
    return r;
}

static void drop(request *r) {
    free(r->positions);
    free(r->tags);
    free(r->indices);
    free(r->row_times);
    free(r->text);
    free(r->video);
    free(r->audio);
    free(r->video_velocity);
    free(r->audio_velocity);
}

static int begin(h3f_dit *dit, const request *r, h3f_dit_run **run) {
    return h3f_dit_begin(dit, &r->sequence, r->text, r->times, TIMES, run);
}

static int step(h3f_dit_run *run, const request *r) {
    return h3f_dit_step(run, r->row_times, r->video, r->audio, r->video_velocity,
                        r->audio_velocity);
}

static int begin_and_step(h3f_dit *dit, const request *r) {
    h3f_dit_run *run = NULL;
    int code = begin(dit, r, &run);
    if (code == H3F_OK)
        code = step(run, r);
    h3f_dit_end(run);
    return code;
}

/* The velocities of a request, kept for comparison. */
typedef struct result {
    size_t video_bytes, audio_bytes;
    float *video, *audio;
} result;

static result keep(const request *r) {
    result kept = {
        .video_bytes = (size_t)(r->sequence.video_rows * small.video_dim) * sizeof(float),
        .audio_bytes = (size_t)(r->sequence.audio_rows * small.audio_dim) * sizeof(float)};
    kept.video = malloc(kept.video_bytes + 1);
    kept.audio = malloc(kept.audio_bytes + 1);
    memcpy(kept.video, r->video_velocity, kept.video_bytes);
    memcpy(kept.audio, r->audio_velocity, kept.audio_bytes);
    return kept;
}

static bool same(const request *r, const result *kept) {
    return memcmp(kept->video, r->video_velocity, kept->video_bytes) == 0 &&
           memcmp(kept->audio, r->audio_velocity, kept->audio_bytes) == 0;
}

static void forget(result *kept) {
    free(kept->video);
    free(kept->audio);
}

static void blank(request *r) {
    memset(r->video_velocity, 0,
           (size_t)(r->sequence.video_rows * small.video_dim) * sizeof(float));
    memset(r->audio_velocity, 0,
           (size_t)(r->sequence.audio_rows * small.audio_dim) * sizeof(float));
}

typedef struct opened {
    h3f_checkpoint *checkpoint;
    h3f_dit *dit;
} opened;

static opened open_on(h3f_context *on, int32_t dtype) {
    opened o = {.checkpoint = t_open(on, &file, dtype, H3F_TRANSFORMER, "dit.safetensors")};
    CHECK_OK(on, h3f_dit_open(on, o.checkpoint, &small, &o.dit));
    return o;
}

static void close_all(opened *o) {
    h3f_dit_close(o->dit);
    h3f_checkpoint_close(o->checkpoint);
}

static void make_file(void) {
    d_make(&file, &small);
}

/* ---- what it computes ---- */

/* The file must be the official one. */
static void check_against_formulas(h3f_context *on, request *r, double bound) {
    const float times[TIMES] = {r->times[0].t, r->times[1].t, r->times[2].t};
    const d_request reference = {.sequence = &r->sequence,
                                 .times = times,
                                 .row_times = r->row_times,
                                 .text = r->text,
                                 .video = r->video,
                                 .audio = r->audio};
    double *video, *audio;
    d_step(&file, &small, &reference, TIMES, &video, &audio);
    opened o = open_on(on, H3F_F32);
    CHECK_OK(on, begin_and_step(o.dit, r));
    CHECK(r_difference(r->video_velocity, video, r->sequence.video_rows * small.video_dim) < bound);
    CHECK(r_difference(r->audio_velocity, audio, r->sequence.audio_rows * small.audio_dim) < bound);
    close_all(&o);
    free(video);
    free(audio);
}

static void test_agrees_with_the_formulas_on_every_instruction_set(void) {
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *on = h_context(isa, 2);
        if (!on)
            continue;
        request r = draw_request(7, 31, 12, 1);
        check_against_formulas(on, &r, 5e-5);
        drop(&r);
        h3f_context_free(on);
    }
}

static void test_a_part_of_the_sequence_may_be_empty(void) {
    static const int64_t rows[][3] = {{0, 9, 4}, {5, 0, 4}, {5, 9, 0}, {0, 1, 0}, {3, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        request r = draw_request(rows[i][0], rows[i][1], rows[i][2], i);
        check_against_formulas(ctx, &r, 5e-5);
        drop(&r);
    }
}

/* 362 frames on a canvas of 64 x 64: 107 latents of 2 x 2 patches, and 603 audio latents a channel;
 * more rows than a chunk has. */
static void test_a_long_video_agrees_with_the_formulas(void) {
    request r = draw_request(30, 107 * 4, 2 * 603, 2);
    check_against_formulas(ctx, &r, 2e-4);
    drop(&r);
}

static void test_both_layouts_give_the_same_bits(void) {
    request r = draw_request(7, 31, 12, 1);
    opened o = open_on(ctx, H3F_F32);
    CHECK_INT(h3f_checkpoint_layout(o.checkpoint), H3F_LAYOUT_OFFICIAL);
    CHECK_OK(ctx, begin_and_step(o.dit, &r));
    close_all(&o);
    result official = keep(&r);
    blank(&r);
    d_to_diffusers(&file, &small);
    o = open_on(ctx, H3F_F32);
    CHECK_INT(h3f_checkpoint_layout(o.checkpoint), H3F_LAYOUT_DIFFUSERS);
    CHECK_OK(ctx, begin_and_step(o.dit, &r));
    close_all(&o);
    CHECK(same(&r, &official));
    forget(&official);
    drop(&r);
    make_file();
}

static void test_half_precision_weights_are_the_numbers_they_round_to(void) {
    request r = draw_request(7, 31, 12, 1);
    for (int32_t dtype = H3F_F16; dtype <= H3F_BF16; dtype++) {
        make_file();
        t_round(&file, dtype);
        opened o = open_on(ctx, dtype);
        CHECK_OK(ctx, begin_and_step(o.dit, &r));
        close_all(&o);
        result half = keep(&r);
        blank(&r);
        o = open_on(ctx, H3F_F32);
        CHECK_OK(ctx, begin_and_step(o.dit, &r));
        close_all(&o);
        CHECK(same(&r, &half));
        forget(&half);
    }
    drop(&r);
    make_file();
}

static void test_results_do_not_depend_on_the_number_of_threads(void) {
    request r = draw_request(7, 31, 12, 1);
    result first = {0};
    for (int32_t threads = 1; threads <= 3; threads++) {
        h3f_context *on = h_context(H3F_ISA_BEST, threads);
        opened o = open_on(on, H3F_F32);
        blank(&r);
        CHECK_OK(on, begin_and_step(o.dit, &r));
        close_all(&o);
        h3f_context_free(on);
        if (threads == 1)
            first = keep(&r);
        CHECK(same(&r, &first));
    }
    forget(&first);
    drop(&r);
}

/* Two requests of other lengths, step by step in turn. */
static void test_two_runs_on_one_transformer_do_not_disturb_each_other(void) {
    request a = draw_request(7, 31, 12, 1), b = draw_request(2, 50, 3, 2);
    h3f_dit_run *run_a = NULL, *run_b = NULL;
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, begin_and_step(o.dit, &a));
    CHECK_OK(ctx, begin_and_step(o.dit, &b));
    result alone_a = keep(&a), alone_b = keep(&b);
    CHECK_OK(ctx, begin(o.dit, &a, &run_a));
    CHECK_OK(ctx, begin(o.dit, &b, &run_b));
    for (int i = 0; i < 2; i++) {
        blank(&a);
        blank(&b);
        CHECK_OK(ctx, step(run_a, &a));
        CHECK_OK(ctx, step(run_b, &b));
        CHECK(same(&a, &alone_a));
        CHECK(same(&b, &alone_b));
    }
    h3f_dit_end(run_a);
    h3f_dit_end(run_b);
    forget(&alone_a);
    forget(&alone_b);
    drop(&a);
    drop(&b);
    close_all(&o);
}

/* The caller may reuse its arrays once begin returns. */
static void test_the_sequence_is_copied(void) {
    request r = draw_request(7, 31, 12, 1);
    h3f_dit_run *run = NULL;
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, begin_and_step(o.dit, &r));
    result kept = keep(&r);
    blank(&r);
    CHECK_OK(ctx, begin(o.dit, &r, &run));
    memset(r.positions, 0, (size_t)(3 * r.sequence.rows) * sizeof *r.positions);
    memset(r.tags, 0, (size_t)r.sequence.rows * sizeof *r.tags);
    memset(r.indices, 0, (size_t)r.sequence.rows * sizeof *r.indices);
    memset(r.text, 0, (size_t)(r.sequence.text_rows * small.text_dim) * sizeof *r.text);
    CHECK_OK(ctx, step(run, &r));
    CHECK(same(&r, &kept));
    h3f_dit_end(run);
    forget(&kept);
    drop(&r);
    close_all(&o);
}

/* ---- what is refused ---- */

static void check_refused(const char *sentence, int expected) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_TRANSFORMER, "bad.safetensors");
    h3f_dit *dit = NULL;
    const int64_t before = h3f_memory_now(ctx);
    CHECK_INT(h3f_dit_open(ctx, checkpoint, &small, &dit), expected);
    CHECK_HAS(h3f_error(ctx), sentence);
    CHECK(!dit);
    CHECK_INT(h3f_memory_now(ctx), before);
    h3f_checkpoint_close(checkpoint);
}

static void make_in(bool diffusers) {
    make_file();
    if (diffusers)
        d_to_diffusers(&file, &small);
}

/* What messages call a tensor: the official name, as far as there is one. */
static const char *official_part(const char *name, bool diffusers) {
    return diffusers ? "bad.safetensors: tensor '" : name;
}

/* Each tensor in turn, in both layouts, with one row more than it should have; then without it. */
static void test_every_tensor_of_a_wrong_shape_is_named(void) {
    for (int diffusers = 0; diffusers < 2; diffusers++) {
        make_in(diffusers);
        for (int32_t i = 0; i < file.count; i++) {
            t_tensor *tensor = &file.tensors[i];
            char name[96];
            snprintf(name, sizeof name, "%s", tensor->name);
            tensor->shape[0]++;
            tensor->values = realloc(tensor->values, (size_t)t_count(tensor) * sizeof(float));
            memset(tensor->values, 0, (size_t)t_count(tensor) * sizeof(float));
            check_refused(official_part(name, diffusers), H3F_ETENSOR);
            CHECK_HAS(h3f_error(ctx), ", expected [");
            make_in(diffusers);
        }
    }
    make_file();
}

static void test_every_missing_tensor_is_named(void) {
    for (int diffusers = 0; diffusers < 2; diffusers++) {
        make_in(diffusers);
        const int32_t count = file.count;
        for (int32_t i = 0; i < count; i++) {
            char name[96];
            snprintf(name, sizeof name, "%s", file.tensors[i].name);
            t_drop(&file, name);
            check_refused(official_part(name, diffusers), H3F_ETENSOR);
            CHECK_HAS(h3f_error(ctx), "is missing");
            make_in(diffusers);
        }
    }
    make_file();
}

static void test_more_blocks_than_the_config_says_are_refused(void) {
    d_add_block(&file, &small, D_BLOCKS, small.layers);
    check_refused("bad.safetensors: the config has 2 of 'blocks', the file also holds "
                  "'blocks.2.norm1.weight'",
                  H3F_ETENSOR);
    make_file();
    d_add_block(&file, &small, D_REFINER, small.refiner_layers);
    check_refused("bad.safetensors: the config has 2 of 'token_refiner.blocks', the file also "
                  "holds 'token_refiner.blocks.2.norm1.weight'",
                  H3F_ETENSOR);
    make_file();
}

static void test_impossible_configs_are_refused(void) {
    static const struct {
        size_t field;
        int32_t value;
        const char *sentence;
    } table[] = {
        {offsetof(h3f_dit_config, hidden), 0, "hidden is 0, expected 1 to 1048576"},
        {offsetof(h3f_dit_config, layers), -1, "layers is -1, expected 0 to 65536"},
        {offsetof(h3f_dit_config, refiner_layers), -1, "refiner_layers is -1, expected 0 to 65536"},
        {offsetof(h3f_dit_config, heads), INT32_MAX, "heads is 2147483647, expected 1 to 65536"},
        {offsetof(h3f_dit_config, head_dim), 0, "head_dim is 0, expected 1 to 65536"},
        {offsetof(h3f_dit_config, ffn), -5, "ffn is -5, expected 1 to 16777216"},
        {offsetof(h3f_dit_config, video_dim), 0, "video_dim is 0, expected 1 to 1048576"},
        {offsetof(h3f_dit_config, audio_dim), 0, "audio_dim is 0, expected 1 to 1048576"},
        {offsetof(h3f_dit_config, text_dim), 0, "text_dim is 0, expected 1 to 1048576"},
        {offsetof(h3f_dit_config, freq_dim), 1, "freq_dim is 1, expected 2 to 1048576"},
        {offsetof(h3f_dit_config, freq_dim), 7, "freq_dim is 7, expected an even number"},
        {offsetof(h3f_dit_config, time_hidden), 0, "time_hidden is 0, expected 1 to 1048576"},
        {offsetof(h3f_dit_config, time_dim), 0, "time_dim is 0, expected 1 to 1048576"},
        {offsetof(h3f_dit_config, rope_freqs), 2,
         "2 rotary frequencies an axis do not fit a head of 10"},
        {offsetof(h3f_dit_config, rope_freqs), 0,
         "0 rotary frequencies an axis do not fit a head of 10"},
    };
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_TRANSFORMER, "dit.safetensors");
    h3f_dit *dit = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        h3f_dit_config config = small;
        memcpy((char *)&config + table[i].field, &table[i].value, sizeof table[i].value);
        CHECK_INT(h3f_dit_open(ctx, checkpoint, &config, &dit), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), table[i].sentence);
    }
    h3f_dit_config config = small;
    config.rope_theta = -1;
    CHECK_INT(h3f_dit_open(ctx, checkpoint, &config, &dit), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "rope_theta is -1");
    CHECK(!dit);
    h3f_checkpoint_close(checkpoint);
}

static void check_begin_refused(h3f_dit *dit, const request *r, const char *sentence) {
    h3f_dit_run *run = NULL;
    const int64_t before = h3f_memory_now(ctx);
    CHECK_INT(begin(dit, r, &run), H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), sentence);
    CHECK(!run);
    CHECK_INT(h3f_memory_now(ctx), before);
}

static void test_sequences_that_do_not_name_every_row_once_are_refused(void) {
    request r = draw_request(2, 3, 1, 1);
    opened o = open_on(ctx, H3F_F32);
    const int32_t last = r.indices[5], first_video = r.indices[2];
    char sentence[80];
    r.indices[5] = 6;
    check_begin_refused(o.dit, &r, "audio index 0 is 6, allowed are 0 to 5");
    r.indices[5] = last;
    r.indices[2] = -1;
    check_begin_refused(o.dit, &r, "video index 0 is -1, allowed are 0 to 5");
    r.indices[2] = first_video;
    r.indices[5] = r.indices[0];
    snprintf(sentence, sizeof sentence, "row %d of the sequence is named twice", r.indices[0]);
    check_begin_refused(o.dit, &r, sentence);
    r.indices[5] = last;
    r.tags[4] = 3;
    check_begin_refused(o.dit, &r, "tag of row 4 is 3, allowed are 0 to 2");
    drop(&r);
    close_all(&o);
}

static void test_sequences_whose_parts_do_not_add_up_are_refused(void) {
    static const struct {
        int64_t rows, text, video, audio;
        const char *sentence;
    } table[] = {
        {0, 0, 0, 0, "a sequence of 0 rows cannot be 0 of text, 0 of video and 0 of audio"},
        {6, 2, 3, 2, "a sequence of 6 rows cannot be 2 of text, 3 of video and 2 of audio"},
        {6, 8, -1, -1, "a sequence of 6 rows cannot be 8 of text, -1 of video and -1 of audio"},
        {6, INT64_MAX, INT64_MAX, 8,
         "a sequence of 6 rows cannot be 9223372036854775807 of text, 9223372036854775807 of video "
         "and 8 of audio"},
        {1LL << 31, 1LL << 31, 0, 0,
         "a sequence of 2147483648 rows cannot be 2147483648 of text, 0 of video and 0 of audio"},
    };
    opened o = open_on(ctx, H3F_F32);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        request r = draw_request(2, 3, 1, 1);
        r.sequence.rows = table[i].rows;
        r.sequence.text_rows = table[i].text;
        r.sequence.video_rows = table[i].video;
        r.sequence.audio_rows = table[i].audio;
        check_begin_refused(o.dit, &r, table[i].sentence);
        drop(&r);
    }
    close_all(&o);
}

static void test_impossible_timesteps_are_refused(void) {
    request r = draw_request(2, 3, 1, 1);
    h3f_dit_run *run = NULL;
    opened o = open_on(ctx, H3F_F32);
    for (int32_t count = 0; count <= 65537; count += 65537) {
        CHECK_INT(h3f_dit_begin(o.dit, &r.sequence, r.text, r.times, count, &run), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), "timesteps, allowed are 1 to 65536");
    }
    r.times[1].t = 1.5F;
    check_begin_refused(o.dit, &r, "timestep 1 is 1.5 with tags 3: allowed are 0 to 1, and 0 to 7");
    r.times[1] = (h3f_time){0.5F, 8};
    check_begin_refused(o.dit, &r, "timestep 1 is 0.5 with tags 8: allowed are 0 to 1, and 0 to 7");
    r.times[1] = (h3f_time){NAN, 7};
    CHECK_INT(begin(o.dit, &r, &run), H3F_EINVAL);
    CHECK(!run);
    drop(&r);
    close_all(&o);
}

static void test_row_times_that_begin_was_not_told_of_are_refused(void) {
    request r = draw_request(2, 3, 1, 1);
    h3f_dit_run *run = NULL;
    opened o = open_on(ctx, H3F_F32);
    char sentence[96];
    const int32_t audio_row = r.indices[5], text_row = r.indices[0];
    CHECK_OK(ctx, begin(o.dit, &r, &run));
    CHECK_OK(ctx, step(run, &r));
    result kept = keep(&r);
    for (int32_t time = -1; time <= TIMES; time += TIMES + 1) {
        const int32_t before = r.row_times[3];
        r.row_times[3] = time;
        snprintf(sentence, sizeof sentence, "timestep index of row 3 is %d, allowed are 0 to 2",
                 time);
        CHECK_INT(step(run, &r), H3F_EINVAL);
        CHECK_TEXT(h3f_error(ctx), sentence);
        r.row_times[3] = before;
    }
    r.row_times[audio_row] = 1;
    snprintf(sentence, sizeof sentence,
             "row %d has tag 2 and timestep 1, a pair that begin was not told of", audio_row);
    CHECK_INT(step(run, &r), H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), sentence);
    r.row_times[audio_row] = 0;
    r.row_times[text_row] = 2;
    CHECK_INT(step(run, &r), H3F_EINVAL);
    CHECK(same(&r, &kept)); /* untouched */
    h3f_dit_end(run);
    forget(&kept);
    drop(&r);
    close_all(&o);
}

static void test_what_is_not_finite_is_found_at_its_block(void) {
    static const struct {
        const char *tensor, *sentence;
    } table[] = {
        {"token_refiner.blocks.1.mlp.fc2.weight", "NaN or infinity after token refiner block 1"},
        {"condition_proj.bias", "NaN or infinity after token refiner block 0"},
        {"blocks.0.attn.out_proj.weight", "NaN or infinity after transformer block 0"},
        {"blocks.1.mlp.fc2.weight", "NaN or infinity after transformer block 1"},
        {"blocks.1.adaln_proj.linear.bias", "NaN or infinity after transformer block 1"},
        {"final_layer.video_out.weight", "NaN or infinity in the predicted velocity"},
        {"final_layer.audio_out.bias", "NaN or infinity in the predicted velocity"},
    };
    request r = draw_request(7, 31, 12, 1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        t_find(&file, table[i].tensor)->values[2] = NAN;
        opened o = open_on(ctx, H3F_F32);
        CHECK_INT(begin_and_step(o.dit, &r), H3F_ENUMERIC);
        CHECK_TEXT(h3f_error(ctx), table[i].sentence);
        close_all(&o);
        make_file();
    }
    drop(&r);
}

/* ---- faults ---- */

static int open_and_run(h3f_context *on, const h3f_checkpoint *checkpoint, const request *r) {
    h3f_dit *dit = NULL;
    int code = h3f_dit_open(on, checkpoint, &small, &dit);
    if (code == H3F_OK)
        code = begin_and_step(dit, r);
    h3f_dit_close(dit);
    return code;
}

/* A context of its own for each n: the threads' scratch memory is asked for once. */
static void test_every_failing_allocation_leaves_nothing_behind(void) {
    request r = draw_request(7, 31, 12, 1);
    int64_t left = -1;
    int code = H3F_ENOMEM, n = 0;
    for (; code != H3F_OK; n++) {
        h3f_context *on = h_context(H3F_ISA_BEST, 2);
        h3f_checkpoint *checkpoint = t_open(on, &file, H3F_F32, H3F_TRANSFORMER, "dit.safetensors");
        atomic_store(&on->fail_allocation, n);
        code = open_and_run(on, checkpoint, &r);
        atomic_store(&on->fail_allocation, -1);
        CHECK(code == H3F_OK || code == H3F_ENOMEM);
        CHECK(code == H3F_OK || strstr(h3f_error(on), "not enough memory for "));
        CHECK_OK(on, open_and_run(on, checkpoint, &r));
        CHECK(left < 0 || h3f_memory_now(on) == left);
        left = h3f_memory_now(on);
        h3f_checkpoint_close(checkpoint);
        h3f_context_free(on);
    }
    CHECK(n > 6);
    drop(&r);
}

typedef struct stop {
    const char *stage;
    int64_t after, calls;
    bool wrong;
} stop;

static void on_progress(void *user, const char *stage, int64_t done, int64_t total) {
    stop *s = user;
    if (strcmp(stage, s->stage) != 0)
        return;
    s->wrong |= done != s->calls + 1 || total != small.layers;
    if (s->calls++ == s->after)
        h3f_cancel(ctx);
}

static void test_progress_counts_blocks(void) {
    static const char *const stages[] = {"adaln", "denoise"};
    request r = draw_request(7, 31, 12, 1);
    opened o = open_on(ctx, H3F_F32);
    for (int i = 0; i < 2; i++) {
        stop s = {.stage = stages[i], .after = -1};
        h3f_on_progress(ctx, on_progress, &s);
        CHECK_OK(ctx, begin_and_step(o.dit, &r));
        h3f_on_progress(ctx, NULL, NULL);
        CHECK_INT(s.calls, small.layers);
        CHECK(!s.wrong);
    }
    drop(&r);
    close_all(&o);
}

static void test_cancelled_anywhere_in_a_step_and_run_again_gives_the_same_bits(void) {
    request r = draw_request(7, 31, 12, 1);
    h3f_dit_run *run = NULL;
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, begin(o.dit, &r, &run));
    CHECK_OK(ctx, step(run, &r));
    result wanted = keep(&r);
    const int64_t before = h3f_memory_now(ctx);
    for (int64_t after = 0; after < small.layers; after++) {
        stop s = {.stage = "denoise", .after = after};
        h3f_on_progress(ctx, on_progress, &s);
        CHECK_INT(step(run, &r), H3F_ECANCELLED);
        CHECK_INT(s.calls, after + 1); /* not one block more */
        CHECK_INT(step(run, &r), H3F_ECANCELLED);
        h3f_on_progress(ctx, NULL, NULL);
        h3f_cancel_clear(ctx);
        CHECK_INT(h3f_memory_now(ctx), before);
        blank(&r);
        CHECK_OK(ctx, step(run, &r));
        CHECK(same(&r, &wanted));
    }
    h3f_dit_end(run);
    forget(&wanted);
    drop(&r);
    close_all(&o);
}

static void test_a_cancelled_begin_leaves_nothing_behind(void) {
    request r = draw_request(7, 31, 12, 1);
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, begin_and_step(o.dit, &r));
    result wanted = keep(&r);
    const int64_t before = h3f_memory_now(ctx);
    for (int64_t after = 0; after < small.layers; after++) {
        h3f_dit_run *run = NULL;
        stop s = {.stage = "adaln", .after = after};
        h3f_on_progress(ctx, on_progress, &s);
        CHECK_INT(begin(o.dit, &r, &run), H3F_ECANCELLED);
        CHECK(!run);
        CHECK_INT(h3f_memory_now(ctx), before);
        h3f_on_progress(ctx, NULL, NULL);
        h3f_cancel_clear(ctx);
        CHECK_OK(ctx, begin_and_step(o.dit, &r));
        CHECK(same(&r, &wanted));
    }
    forget(&wanted);
    drop(&r);
    close_all(&o);
}

/* ---- memory ---- */

/* Wide feed-forward, narrow model: what must not exist for all rows at once would show. */
static const h3f_dit_config wide = {.hidden = 8,
                                    .layers = 1,
                                    .refiner_layers = 1,
                                    .heads = 1,
                                    .head_dim = 6,
                                    .ffn = 96,
                                    .video_dim = 44,
                                    .audio_dim = 5,
                                    .text_dim = 33,
                                    .freq_dim = 6,
                                    .time_hidden = 11,
                                    .time_dim = 9,
                                    .rope_freqs = 1,
                                    .rope_theta = 10000.0,
                                    .norm_eps = 1e-5F,
                                    .qk_norm_eps = 1e-5F,
                                    .final_norm_eps = 1e-5F};

static int64_t peak_of(h3f_dit *dit, int64_t video_rows) {
    request r = draw_request(20, video_rows, 40, 1);
    h3f_memory_peak_reset(ctx);
    const int64_t before = h3f_memory_now(ctx);
    CHECK_OK(ctx, begin_and_step(dit, &r));
    const int64_t peak = h3f_memory_peak(ctx) - before;
    CHECK_INT(h3f_memory_now(ctx), before);
    drop(&r);
    return peak;
}

/* docs/model.md, "How it fits in memory". Of each row: the residual, its key and value, its
 * rotation, its place in the packed sequence and a pointer to its modulation; but no feed-forward
 * and no scores. */
static int64_t bytes_of_rows(int64_t rows) {
    const int64_t inner = (int64_t)wide.heads * wide.head_dim, pairs = 3 * wide.rope_freqs;
    const int64_t floats = wide.hidden + 2 * inner + 2 * pairs;
    return rows * (floats * 4 + 2 * (int64_t)sizeof(int32_t) + (int64_t)sizeof(float *));
}

/* Of a chunk: its norm, gate and up, the copies that two products of them need, and six pointers a
 * row. */
static int64_t bytes_of_chunk(void) {
    const int64_t floats = wide.hidden + 2 * wide.ffn + wide.ffn + wide.video_dim;
    return 1024 * (floats * 4 + 6 * (int64_t)sizeof(float *));
}

static int64_t bytes_of_tables(void) {
    const int64_t entries = 3 + 2 + 1;
    return 4 * wide.hidden * (entries * H3F_MODULATIONS * wide.layers + 2 * TIMES + 20);
}

static void test_memory_is_what_the_model_page_says(void) {
    enum { FEW = 2000, MANY = 5000, TEXT_AND_AUDIO = 60, ROUNDING = 4096 };
    d_make(&file, &wide);
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_TRANSFORMER, "wide.safetensors");
    h3f_dit *dit = NULL;
    CHECK_OK(ctx, h3f_dit_open(ctx, checkpoint, &wide, &dit));
    peak_of(dit, FEW); /* from here on the threads have their scratch memory */
    const int64_t few = peak_of(dit, FEW), many = peak_of(dit, MANY);
    CHECK(many <=
          bytes_of_rows(MANY + TEXT_AND_AUDIO) + bytes_of_chunk() + bytes_of_tables() + ROUNDING);
    CHECK(many - few <= bytes_of_rows(MANY - FEW) + ROUNDING);
    h3f_dit_close(dit);
    h3f_checkpoint_close(checkpoint);
    make_file();
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 2);
    make_file();
    RUN(test_agrees_with_the_formulas_on_every_instruction_set);
    RUN(test_a_part_of_the_sequence_may_be_empty);
    RUN(test_a_long_video_agrees_with_the_formulas);
    RUN(test_both_layouts_give_the_same_bits);
    RUN(test_half_precision_weights_are_the_numbers_they_round_to);
    RUN(test_results_do_not_depend_on_the_number_of_threads);
    RUN(test_two_runs_on_one_transformer_do_not_disturb_each_other);
    RUN(test_the_sequence_is_copied);
    RUN(test_every_tensor_of_a_wrong_shape_is_named);
    RUN(test_every_missing_tensor_is_named);
    RUN(test_more_blocks_than_the_config_says_are_refused);
    RUN(test_impossible_configs_are_refused);
    RUN(test_sequences_that_do_not_name_every_row_once_are_refused);
    RUN(test_sequences_whose_parts_do_not_add_up_are_refused);
    RUN(test_impossible_timesteps_are_refused);
    RUN(test_row_times_that_begin_was_not_told_of_are_refused);
    RUN(test_what_is_not_finite_is_found_at_its_block);
    RUN(test_every_failing_allocation_leaves_nothing_behind);
    RUN(test_progress_counts_blocks);
    RUN(test_cancelled_anywhere_in_a_step_and_run_again_gives_the_same_bits);
    RUN(test_a_cancelled_begin_leaves_nothing_behind);
    RUN(test_memory_is_what_the_model_page_says);
    t_clear(&file);
    h3f_context_free(ctx);
    return H_END();
}
