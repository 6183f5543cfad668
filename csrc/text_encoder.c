/* Qwen3-VL's language model up to the hidden state that conditions the transformer.
 * Source: docs/model.md, "Prompt to embedding"; tolerances in tests/golden/README.md. */
#include "block.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MODEL "model.language_model."
#define LAYER MODEL "layers.%d."

struct h3f_text_encoder {
    h3f_context *ctx;
    h3f_text_encoder_config config;
    h3f_block_shape shape;
    h3f_mat embedding; /* [vocab, hidden] */
    h3f_block *layers;
    h3f_arena vectors;
};

/* ---- weights ---- */

static void layout_vectors(h3f_arena *arena, h3f_text_encoder *encoder) {
    h3f_block uncounted;
    h3f_block *layers = h3f_arena_take(arena, (size_t)encoder->config.layers * sizeof *layers);
    for (int32_t i = 0; i < encoder->config.layers; i++)
        h3f_block_layout(arena, &encoder->shape, layers ? &layers[i] : &uncounted);
    encoder->layers = layers;
}

static int read_attention(const h3f_checkpoint *checkpoint, const h3f_text_encoder *encoder,
                          int32_t i) {
    const h3f_block_shape *shape = &encoder->shape;
    const int64_t hidden = shape->hidden;
    const int64_t inner = (int64_t)shape->heads * shape->head_dim;
    const int64_t kv_inner = (int64_t)shape->kv_heads * shape->head_dim;
    h3f_block *layer = &encoder->layers[i];
    H3F_TRY(h3f_find_matrix(checkpoint, inner, hidden, &layer->q.w, LAYER "self_attn.q_proj.weight",
                            i));
    H3F_TRY(h3f_find_matrix(checkpoint, kv_inner, hidden, &layer->k.w,
                            LAYER "self_attn.k_proj.weight", i));
    H3F_TRY(h3f_find_matrix(checkpoint, kv_inner, hidden, &layer->v.w,
                            LAYER "self_attn.v_proj.weight", i));
    H3F_TRY(h3f_find_matrix(checkpoint, hidden, inner, &layer->out.w,
                            LAYER "self_attn.o_proj.weight", i));
    H3F_TRY(h3f_read_vector(checkpoint, shape->head_dim, layer->q_norm,
                            LAYER "self_attn.q_norm.weight", i));
    return h3f_read_vector(checkpoint, shape->head_dim, layer->k_norm,
                           LAYER "self_attn.k_norm.weight", i);
}

static int read_layer(const h3f_checkpoint *checkpoint, const h3f_text_encoder *encoder,
                      int32_t i) {
    const int64_t hidden = encoder->shape.hidden, ffn = encoder->shape.ffn;
    h3f_block *layer = &encoder->layers[i];
    H3F_TRY(read_attention(checkpoint, encoder, i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->norm1, LAYER "input_layernorm.weight", i));
    H3F_TRY(h3f_read_vector(checkpoint, hidden, layer->norm2,
                            LAYER "post_attention_layernorm.weight", i));
    H3F_TRY(
        h3f_find_matrix(checkpoint, ffn, hidden, &layer->gate.w, LAYER "mlp.gate_proj.weight", i));
    H3F_TRY(h3f_find_matrix(checkpoint, ffn, hidden, &layer->up.w, LAYER "mlp.up_proj.weight", i));
    return h3f_find_matrix(checkpoint, hidden, ffn, &layer->down.w, LAYER "mlp.down_proj.weight",
                           i);
}

static int check_config(h3f_context *ctx, const h3f_text_encoder_config *c) {
    const h3f_field fields[] = {
        {"hidden", c->hidden, 1, 1 << 20},   {"heads", c->heads, 1, 65536},
        {"kv_heads", c->kv_heads, 1, 65536}, {"head_dim", c->head_dim, 1, 65536},
        {"ffn", c->ffn, 1, 1 << 24},         {"vocab", c->vocab, 1, 1 << 24},
        {"layers", c->layers, 0, 65536},
    };
    H3F_TRY(h3f_check_fields(ctx, "text encoder", fields, sizeof fields / sizeof *fields));
    if (c->heads % c->kv_heads != 0)
        return h3f_fail(ctx, H3F_EINVAL,
                        "text encoder: %d heads cannot share %d key/value heads evenly", c->heads,
                        c->kv_heads);
    if (c->head_dim % 2 != 0)
        return h3f_fail(ctx, H3F_EINVAL, "text encoder: head size %d is odd, rotation needs pairs",
                        c->head_dim);
    if (!(c->rope_theta > 0) || !(c->rms_eps >= 0))
        return h3f_fail(ctx, H3F_EINVAL,
                        "text encoder: rope_theta is %g and rms_eps %g, expected positive numbers",
                        c->rope_theta, (double)c->rms_eps);
    return H3F_OK;
}

static int open_weights(const h3f_checkpoint *checkpoint, h3f_text_encoder *encoder) {
    h3f_context *ctx = encoder->ctx;
    layout_vectors(&encoder->vectors, encoder);
    H3F_TRY(h3f_arena_reserve(ctx, &encoder->vectors, "the text encoder's vectors"));
    layout_vectors(&encoder->vectors, encoder);
    H3F_TRY(h3f_find_matrix(checkpoint, encoder->config.vocab, encoder->config.hidden,
                            &encoder->embedding, MODEL "embed_tokens.weight"));
    for (int32_t i = 0; i < encoder->config.layers; i++)
        H3F_TRY(read_layer(checkpoint, encoder, i));
    return H3F_OK;
}

int h3f_text_encoder_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                          const h3f_text_encoder_config *config, h3f_text_encoder **encoder) {
    H3F_TRY(check_config(ctx, config));
    h3f_text_encoder *opened = h3f_alloc(ctx, sizeof *opened, "the text encoder");
    if (!opened)
        return H3F_ENOMEM;
    opened->ctx = ctx;
    opened->config = *config;
    opened->shape = (h3f_block_shape){.hidden = config->hidden,
                                      .ffn = config->ffn,
                                      .heads = config->heads,
                                      .kv_heads = config->kv_heads,
                                      .head_dim = config->head_dim,
                                      .pairs = config->head_dim / 2,
                                      .causal = true,
                                      .norm_eps = config->rms_eps,
                                      .qk_norm_eps = config->rms_eps};
    const int code = open_weights(checkpoint, opened);
    if (code != H3F_OK) {
        h3f_text_encoder_close(opened);
        return code;
    }
    *encoder = opened;
    return H3F_OK;
}

void h3f_text_encoder_close(h3f_text_encoder *encoder) {
    if (!encoder)
        return;
    h3f_arena_release(encoder->ctx, &encoder->vectors);
    h3f_free(encoder->ctx, encoder);
}

/* ---- forward ---- */

typedef struct encode_buffers {
    h3f_arena arena;
    float *cosine, *sine, *both; /* [count, pairs]; both halves of one row, for the tap */
    h3f_block_buffers block;
} encode_buffers;

static void layout_buffers(const h3f_text_encoder *encoder, int64_t count, encode_buffers *b) {
    const int64_t pairs = encoder->shape.pairs;
    b->cosine = h3f_take_floats(&b->arena, count, pairs);
    b->sine = h3f_take_floats(&b->arena, count, pairs);
    b->both = h3f_take_floats(&b->arena, 2, pairs);
    h3f_block_buffers_layout(&b->arena, &encoder->shape, count, &b->block);
}

static int check_ids(const h3f_text_encoder *encoder, const int32_t *ids, int64_t count) {
    if (count < 0)
        return h3f_fail(encoder->ctx, H3F_EINVAL, "text encoder: %lld tokens", (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= encoder->config.vocab)
            return h3f_fail(encoder->ctx, H3F_EINVAL,
                            "text encoder: token %lld is id %d, allowed are 0 to %d", (long long)i,
                            ids[i], encoder->config.vocab - 1);
    return H3F_OK;
}

static void embed(const h3f_text_encoder *encoder, const int32_t *ids, int64_t count, float *x) {
    const int64_t hidden = encoder->config.hidden;
    const size_t row = (size_t)hidden * h3f_dtype_size(encoder->embedding.dtype);
    const unsigned char *table = encoder->embedding.data;
    for (int64_t i = 0; i < count; i++)
        h3f_widen(encoder->embedding.dtype, table + (size_t)ids[i] * row, hidden, x + i * hidden);
}

static void fill_rotary(const h3f_text_encoder *encoder, int64_t count, encode_buffers *b) {
    const int32_t pairs = encoder->shape.pairs;
    for (int32_t j = 0; j < pairs; j++) {
        const float inverse = (float)(1.0 / pow(encoder->config.rope_theta, (double)j / pairs));
        for (int64_t i = 0; i < count; i++) {
            const float angle = (float)i * inverse; /* in float32, as the reference forms it */
            b->cosine[i * pairs + j] = cosf(angle);
            b->sine[i * pairs + j] = sinf(angle);
        }
    }
}

/* The reference's table holds every angle twice, once for each half of a head. */
static void tap_rotary(const h3f_text_encoder *encoder, int64_t count, const encode_buffers *b,
                       const char *name, const float *table) {
    const int32_t pairs = encoder->shape.pairs;
    for (int64_t i = 0; i < count && encoder->ctx->tap; i++) {
        for (int half = 0; half < 2; half++)
            memcpy(b->both + half * pairs, table + i * pairs, (size_t)pairs * sizeof(float));
        h3f_tap(encoder->ctx, name, i, 1, count, 2 * pairs, b->both);
    }
}

static void tap_state(const h3f_text_encoder *encoder, int32_t layers, int64_t count,
                      const float *x) {
    char name[40];
    if (!encoder->ctx->tap)
        return;
    snprintf(name, sizeof name, "hidden_states.%d", layers);
    h3f_tap(encoder->ctx, name, 0, count, count, encoder->config.hidden, x);
}

static int run_layers(const h3f_text_encoder *encoder, int64_t count, const encode_buffers *b,
                      float *x) {
    for (int32_t i = 0; i < encoder->config.layers; i++) {
        char what[40];
        snprintf(what, sizeof what, "text encoder layer %d", i);
        const h3f_block_pass pass = {.shape = &encoder->shape,
                                     .block = &encoder->layers[i],
                                     .buffers = &b->block,
                                     .cosine = b->cosine,
                                     .sine = b->sine,
                                     .what = what};
        H3F_TRY(h3f_block_run(encoder->ctx, &pass, x));
        tap_state(encoder, i + 1, count, x);
        h3f_progress(encoder->ctx, "text_encoder", i + 1, encoder->config.layers);
    }
    return H3F_OK;
}

int h3f_text_encoder_encode(h3f_text_encoder *encoder, const int32_t *ids, int64_t count,
                            float *hidden) {
    encode_buffers b = {0};
    H3F_TRY(check_ids(encoder, ids, count));
    H3F_TRY(h3f_poll(encoder->ctx));
    if (count == 0)
        return H3F_OK;
    layout_buffers(encoder, count, &b);
    H3F_TRY(h3f_arena_reserve(encoder->ctx, &b.arena, "encoding the prompt"));
    layout_buffers(encoder, count, &b);
    fill_rotary(encoder, count, &b);
    tap_rotary(encoder, count, &b, "rope_cos", b.cosine);
    tap_rotary(encoder, count, &b, "rope_sin", b.sine);
    embed(encoder, ids, count, hidden);
    tap_state(encoder, 0, count, hidden);
    const int code = run_layers(encoder, count, &b, hidden);
    h3f_arena_release(encoder->ctx, &b.arena);
    return code;
}
