#include "block_reference.h"
#include "tensor_file.h"

enum { HIDDEN = 20, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 10, FFN = 28, VOCAB = 31, LAYERS = 2 };

static const h3f_text_encoder_config small = {.hidden = HIDDEN,
                                              .heads = HEADS,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = HEAD_DIM,
                                              .ffn = FFN,
                                              .vocab = VOCAB,
                                              .layers = LAYERS,
                                              .rms_eps = 1e-6F,
                                              .rope_theta = 5000.0};

static h3f_context *ctx;
static t_file file;

/* ---- a checkpoint: one layer more than is run, as the release has them ---- */

static const char *layer_name(int32_t layer, const char *leaf) {
    static char name[96];
    snprintf(name, sizeof name, "model.language_model.layers.%d.%s", layer, leaf);
    return name;
}

static void add_matrix(int32_t layer, const char *leaf, int64_t rows, int64_t cols) {
    const float scale = 1.0F / sqrtf((float)cols);
    t_add(&file, scale, 0, layer_name(layer, leaf), 2, (const int64_t[]){rows, cols});
}

static void add_vector(int32_t layer, const char *leaf, int64_t count) {
    t_add(&file, 0.2F, 1, layer_name(layer, leaf), 1, &count);
}

static void make_file(void) {
    t_clear(&file);
    file.draw = (h_draw){9};
    t_add(&file, 1, 0, "model.language_model.embed_tokens.weight", 2,
          (const int64_t[]){VOCAB, HIDDEN});
    for (int32_t i = 0; i <= LAYERS; i++) {
        add_vector(i, "input_layernorm.weight", HIDDEN);
        add_vector(i, "post_attention_layernorm.weight", HIDDEN);
        add_vector(i, "self_attn.q_norm.weight", HEAD_DIM);
        add_vector(i, "self_attn.k_norm.weight", HEAD_DIM);
        add_matrix(i, "self_attn.q_proj.weight", HEADS * HEAD_DIM, HIDDEN);
        add_matrix(i, "self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN);
        add_matrix(i, "self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN);
        add_matrix(i, "self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM);
        add_matrix(i, "mlp.gate_proj.weight", FFN, HIDDEN);
        add_matrix(i, "mlp.up_proj.weight", FFN, HIDDEN);
        add_matrix(i, "mlp.down_proj.weight", HIDDEN, FFN);
    }
}

typedef struct opened {
    h3f_checkpoint *checkpoint;
    h3f_text_encoder *encoder;
} opened;

static opened open_on(h3f_context *on, int32_t dtype) {
    opened o = {.checkpoint = t_open(on, &file, dtype, H3F_TEXT_ENCODER, "text.safetensors")};
    CHECK_OK(on, h3f_text_encoder_open(on, o.checkpoint, &small, &o.encoder));
    return o;
}

static void close_all(opened *o) {
    h3f_text_encoder_close(o->encoder);
    h3f_checkpoint_close(o->checkpoint);
}

enum { COUNT = 19 };
static const int32_t ids[COUNT] = {3, 0, 30, 7, 7, 7, 12, 19, 1, 2, 28, 5, 6, 30, 11, 13, 17, 4, 9};

/* ---- what it computes ---- */

static const float *weights(int32_t layer, const char *leaf) {
    return t_find(&file, layer_name(layer, leaf))->values;
}

static r_block reference_layer(int32_t i) {
    return (r_block){.norm1 = weights(i, "input_layernorm.weight"),
                     .norm2 = weights(i, "post_attention_layernorm.weight"),
                     .q_norm = weights(i, "self_attn.q_norm.weight"),
                     .k_norm = weights(i, "self_attn.k_norm.weight"),
                     .q = weights(i, "self_attn.q_proj.weight"),
                     .k = weights(i, "self_attn.k_proj.weight"),
                     .v = weights(i, "self_attn.v_proj.weight"),
                     .out = weights(i, "self_attn.o_proj.weight"),
                     .gate = weights(i, "mlp.gate_proj.weight"),
                     .up = weights(i, "mlp.up_proj.weight"),
                     .down = weights(i, "mlp.down_proj.weight")};
}

static void encode_reference(const int32_t *tokens, int64_t count, double *x) {
    const h3f_block_shape shape = {.hidden = HIDDEN,
                                   .ffn = FFN,
                                   .heads = HEADS,
                                   .kv_heads = KV_HEADS,
                                   .head_dim = HEAD_DIM,
                                   .pairs = HEAD_DIM / 2,
                                   .causal = true,
                                   .norm_eps = 1e-6F,
                                   .qk_norm_eps = 1e-6F};
    const float *table = t_find(&file, "model.language_model.embed_tokens.weight")->values;
    double *angles = r_room(count * shape.pairs);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < shape.pairs; j++)
            angles[i * shape.pairs + j] = (double)i * pow(5000.0, -(double)j / (double)shape.pairs);
        for (int64_t c = 0; c < HIDDEN; c++)
            x[i * HIDDEN + c] = (double)table[tokens[i] * HIDDEN + c];
    }
    for (int32_t i = 0; i < LAYERS; i++) {
        const r_block layer = reference_layer(i);
        r_block_run(&shape, &layer, count, angles, NULL, x);
    }
    free(angles);
}

static void test_agrees_with_the_formulas_on_every_instruction_set(void) {
    double expected[COUNT * HIDDEN];
    float found[COUNT * HIDDEN];
    encode_reference(ids, COUNT, expected);
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *on = h_context(isa, 2);
        if (!on)
            continue;
        opened o = open_on(on, H3F_F32);
        CHECK_OK(on, h3f_text_encoder_encode(o.encoder, ids, COUNT, found));
        CHECK(r_difference(found, expected, COUNT * HIDDEN) < 2e-5);
        close_all(&o);
        h3f_context_free(on);
    }
}

static void test_a_long_prompt_agrees_with_the_formulas(void) {
    enum { LONG = 1024 + 9 }; /* more than one chunk of rows */
    static int32_t tokens[LONG];
    static double expected[LONG * HIDDEN];
    static float found[LONG * HIDDEN];
    for (int i = 0; i < LONG; i++)
        tokens[i] = ids[i % COUNT];
    encode_reference(tokens, LONG, expected);
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, tokens, LONG, found));
    CHECK(r_difference(found, expected, LONG * HIDDEN) < 5e-4); /* angles in float32 */
    close_all(&o);
}

static void test_half_precision_weights_are_the_numbers_they_round_to(void) {
    for (int32_t dtype = H3F_F16; dtype <= H3F_BF16; dtype++) {
        float half[COUNT * HIDDEN], full[COUNT * HIDDEN];
        make_file();
        t_round(&file, dtype);
        opened o = open_on(ctx, dtype);
        CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, COUNT, half));
        close_all(&o);
        o = open_on(ctx, H3F_F32);
        CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, COUNT, full));
        close_all(&o);
        CHECK(memcmp(half, full, sizeof half) == 0);
    }
    make_file();
}

static void test_results_do_not_depend_on_the_number_of_threads(void) {
    float first[COUNT * HIDDEN], found[COUNT * HIDDEN];
    for (int32_t threads = 1; threads <= 3; threads++) {
        h3f_context *on = h_context(H3F_ISA_BEST, threads);
        opened o = open_on(on, H3F_F32);
        CHECK_OK(on, h3f_text_encoder_encode(o.encoder, ids, COUNT, threads == 1 ? first : found));
        CHECK(threads == 1 || memcmp(first, found, sizeof first) == 0);
        close_all(&o);
        h3f_context_free(on);
    }
}

/* A prompt's first tokens do not know how it goes on. */
static void test_a_prefix_encodes_to_the_same_bits(void) {
    float whole[COUNT * HIDDEN], prefix[COUNT * HIDDEN];
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, COUNT, whole));
    for (int64_t count = 1; count < COUNT; count++) {
        CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, count, prefix));
        CHECK(memcmp(whole, prefix, (size_t)(count * HIDDEN) * sizeof(float)) == 0);
    }
    close_all(&o);
}

static void test_no_tokens_are_no_rows(void) {
    float hidden[1] = {7};
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, NULL, 0, hidden));
    CHECK(hidden[0] == 7);
    close_all(&o);
}

/* ---- what is refused ---- */

static void check_refused(const char *sentence, int expected) {
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_TEXT_ENCODER, "bad.safetensors");
    h3f_text_encoder *encoder = NULL;
    const int64_t before = h3f_memory_now(ctx);
    CHECK_INT(h3f_text_encoder_open(ctx, checkpoint, &small, &encoder), expected);
    CHECK_HAS(h3f_error(ctx), sentence);
    CHECK_HAS(h3f_error(ctx), "bad.safetensors");
    CHECK(!encoder);
    CHECK_INT(h3f_memory_now(ctx), before);
    h3f_checkpoint_close(checkpoint);
    make_file();
}

/* Tensors of layers that are not run are nobody's business. */
static bool used(const char *name) {
    return !strstr(name, ".layers.2.");
}

static void test_every_tensor_of_a_wrong_shape_is_named(void) {
    for (int32_t i = 0; i < file.count; i++) {
        t_tensor *tensor = &file.tensors[i];
        char name[96];
        snprintf(name, sizeof name, "%s", tensor->name);
        if (!used(name))
            continue;
        tensor->shape[0]++;
        tensor->values = realloc(tensor->values, (size_t)t_count(tensor) * sizeof(float));
        memset(tensor->values, 0, (size_t)t_count(tensor) * sizeof(float));
        check_refused(name, H3F_ETENSOR);
    }
}

static void test_every_missing_tensor_is_named(void) {
    for (int32_t i = 0; i < file.count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s", file.tensors[i].name);
        if (!used(name))
            continue;
        t_drop(&file, name);
        check_refused(name, H3F_ETENSOR);
    }
}

static void test_impossible_configs_are_refused(void) {
    static const struct {
        size_t field;
        int32_t value;
        const char *sentence;
    } table[] = {
        {offsetof(h3f_text_encoder_config, hidden), 0, "hidden is 0, expected 1 to 1048576"},
        {offsetof(h3f_text_encoder_config, heads), -1, "heads is -1, expected 1 to 65536"},
        {offsetof(h3f_text_encoder_config, heads), 5,
         "5 heads cannot share 2 key/value heads evenly"},
        {offsetof(h3f_text_encoder_config, kv_heads), 0, "kv_heads is 0, expected 1 to 65536"},
        {offsetof(h3f_text_encoder_config, head_dim), 9,
         "head size 9 is odd, rotation needs pairs"},
        {offsetof(h3f_text_encoder_config, ffn), INT32_MAX,
         "ffn is 2147483647, expected 1 to 16777216"},
        {offsetof(h3f_text_encoder_config, vocab), 0, "vocab is 0, expected 1 to 16777216"},
        {offsetof(h3f_text_encoder_config, layers), -1, "layers is -1, expected 0 to 65536"},
    };
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_F32, H3F_TEXT_ENCODER, "text.safetensors");
    h3f_text_encoder *encoder = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        h3f_text_encoder_config config = small;
        memcpy((char *)&config + table[i].field, &table[i].value, sizeof table[i].value);
        CHECK_INT(h3f_text_encoder_open(ctx, checkpoint, &config, &encoder), H3F_EINVAL);
        CHECK_HAS(h3f_error(ctx), table[i].sentence);
    }
    h3f_text_encoder_config config = small;
    config.rope_theta = 0;
    CHECK_INT(h3f_text_encoder_open(ctx, checkpoint, &config, &encoder), H3F_EINVAL);
    CHECK_HAS(h3f_error(ctx), "rope_theta is 0 and rms_eps 1e-06, expected positive numbers");
    CHECK(!encoder);
    h3f_checkpoint_close(checkpoint);
}

static void test_ids_out_of_the_vocabulary_are_refused(void) {
    opened o = open_on(ctx, H3F_F32);
    float hidden[2 * HIDDEN] = {7};
    CHECK_INT(h3f_text_encoder_encode(o.encoder, (const int32_t[]){3, VOCAB}, 2, hidden),
              H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), "text encoder: token 1 is id 31, allowed are 0 to 30");
    CHECK_INT(h3f_text_encoder_encode(o.encoder, (const int32_t[]){-1, 3}, 2, hidden), H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), "text encoder: token 0 is id -1, allowed are 0 to 30");
    CHECK_INT(h3f_text_encoder_encode(o.encoder, ids, -2, hidden), H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), "text encoder: -2 tokens");
    CHECK(hidden[0] == 7);
    close_all(&o);
}

static void test_what_is_not_finite_is_found_at_its_layer(void) {
    float hidden[COUNT * HIDDEN];
    t_find(&file, layer_name(1, "mlp.down_proj.weight"))->values[5] = NAN;
    opened o = open_on(ctx, H3F_F32);
    CHECK_INT(h3f_text_encoder_encode(o.encoder, ids, COUNT, hidden), H3F_ENUMERIC);
    CHECK_TEXT(h3f_error(ctx), "NaN or infinity after text encoder layer 1");
    close_all(&o);
    make_file();
}

/* ---- faults ---- */

static int open_and_encode(h3f_context *on, const h3f_checkpoint *checkpoint, float *hidden) {
    h3f_text_encoder *encoder = NULL;
    int code = h3f_text_encoder_open(on, checkpoint, &small, &encoder);
    if (code == H3F_OK)
        code = h3f_text_encoder_encode(encoder, ids, COUNT, hidden);
    h3f_text_encoder_close(encoder);
    return code;
}

/* A context of its own for each n: the threads' scratch memory is asked for once. */
static void test_every_failing_allocation_leaves_nothing_behind(void) {
    float hidden[COUNT * HIDDEN];
    int64_t left = -1;
    int code = H3F_ENOMEM, n = 0;
    for (; code != H3F_OK; n++) {
        h3f_context *on = h_context(H3F_ISA_BEST, 2);
        h3f_checkpoint *checkpoint =
            t_open(on, &file, H3F_F32, H3F_TEXT_ENCODER, "text.safetensors");
        atomic_store(&on->fail_allocation, n);
        code = open_and_encode(on, checkpoint, hidden);
        atomic_store(&on->fail_allocation, -1);
        CHECK(code == H3F_OK || code == H3F_ENOMEM);
        CHECK(code == H3F_OK || strstr(h3f_error(on), "not enough memory for "));
        CHECK_OK(on, open_and_encode(on, checkpoint, hidden));
        CHECK(left < 0 || h3f_memory_now(on) == left);
        left = h3f_memory_now(on);
        h3f_checkpoint_close(checkpoint);
        h3f_context_free(on);
    }
    CHECK(n > 3);
}

typedef struct stop {
    int64_t after, calls;
    bool wrong;
} stop;

static void on_progress(void *user, const char *stage, int64_t done, int64_t total) {
    stop *s = user;
    s->wrong |= strcmp(stage, "text_encoder") != 0 || done != s->calls + 1 || total != LAYERS;
    if (s->calls++ == s->after)
        h3f_cancel(ctx);
}

static void test_progress_counts_layers(void) {
    float hidden[COUNT * HIDDEN];
    opened o = open_on(ctx, H3F_F32);
    stop s = {.after = -1};
    h3f_on_progress(ctx, on_progress, &s);
    CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, COUNT, hidden));
    h3f_on_progress(ctx, NULL, NULL);
    CHECK_INT(s.calls, LAYERS);
    CHECK(!s.wrong);
    close_all(&o);
}

static void test_cancelled_and_run_again_gives_the_same_bits(void) {
    float wanted[COUNT * HIDDEN], found[COUNT * HIDDEN];
    opened o = open_on(ctx, H3F_F32);
    CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, COUNT, wanted));
    const int64_t before = h3f_memory_now(ctx);
    stop s = {.after = 0};
    h3f_on_progress(ctx, on_progress, &s);
    CHECK_INT(h3f_text_encoder_encode(o.encoder, ids, COUNT, found), H3F_ECANCELLED);
    CHECK_INT(s.calls, 1);
    CHECK_INT(h3f_text_encoder_encode(o.encoder, ids, COUNT, found), H3F_ECANCELLED); /* sticky */
    h3f_on_progress(ctx, NULL, NULL);
    h3f_cancel_clear(ctx);
    CHECK_INT(h3f_memory_now(ctx), before);
    CHECK_OK(ctx, h3f_text_encoder_encode(o.encoder, ids, COUNT, found));
    CHECK(memcmp(found, wanted, sizeof found) == 0);
    close_all(&o);
}

int main(void) {
    ctx = h_context(H3F_ISA_BEST, 2);
    make_file();
    RUN(test_agrees_with_the_formulas_on_every_instruction_set);
    RUN(test_a_long_prompt_agrees_with_the_formulas);
    RUN(test_half_precision_weights_are_the_numbers_they_round_to);
    RUN(test_results_do_not_depend_on_the_number_of_threads);
    RUN(test_a_prefix_encodes_to_the_same_bits);
    RUN(test_no_tokens_are_no_rows);
    RUN(test_every_tensor_of_a_wrong_shape_is_named);
    RUN(test_every_missing_tensor_is_named);
    RUN(test_impossible_configs_are_refused);
    RUN(test_ids_out_of_the_vocabulary_are_refused);
    RUN(test_what_is_not_finite_is_found_at_its_layer);
    RUN(test_every_failing_allocation_leaves_nothing_behind);
    RUN(test_progress_counts_layers);
    RUN(test_cancelled_and_run_again_gives_the_same_bits);
    t_clear(&file);
    h3f_context_free(ctx);
    return H_END();
}
