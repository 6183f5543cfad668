/* Checkpoints: names of every layout, views that hide the layouts, faults that name file and
 * tensor. */
#include "checkpoint.h"
#include "harness.h"
#include "names.h"
#include "tensor_file.h"

static h3f_context *ctx;

/* ---- names ---- */

static const struct {
    int32_t component;
    const char *name, *canonical; /* NULL: unknown */
} names[] = {
    {H3F_TRANSFORMER, "blocks.49.attn.qkv_proj.weight", "blocks.49.attn.qkv_proj.weight"},
    {H3F_TRANSFORMER, "model.diffusion_model.blocks.0.norm1.weight", "blocks.0.norm1.weight"},
    {H3F_TRANSFORMER, "diffusion_model.video_patch_proj.bias", "video_patch_proj.bias"},
    {H3F_TRANSFORMER, "transformer_blocks.12.attn.to_q.weight", "blocks.12.attn.to_q.weight"},
    {H3F_TRANSFORMER, "transformer_blocks.12.attn.norm_k.weight", "blocks.12.attn.k_norm.weight"},
    {H3F_TRANSFORMER, "transformer_blocks.1.attn.to_out.0.weight", "blocks.1.attn.out_proj.weight"},
    {H3F_TRANSFORMER, "transformer_blocks.1.ff.net.0.proj.weight", "blocks.1.mlp.fc1.weight"},
    {H3F_TRANSFORMER, "transformer_blocks.1.ff.net.2.weight", "blocks.1.mlp.fc2.weight"},
    {H3F_TRANSFORMER, "transformer_blocks.1.adaln_proj.linear.bias",
     "blocks.1.adaln_proj.linear.bias"},
    {H3F_TRANSFORMER, "token_refiner.refiner_blocks.0.norm2.weight",
     "token_refiner.blocks.0.norm2.weight"},
    {H3F_TRANSFORMER, "token_refiner.final_norm.weight", "token_refiner.final_norm.weight"},
    {H3F_TRANSFORMER, "proj_in.weight", "video_patch_proj.weight"},
    {H3F_TRANSFORMER, "audio_proj_in.weight", "audio_patch_proj.weight"},
    {H3F_TRANSFORMER, "context_embedder.bias", "condition_proj.bias"},
    {H3F_TRANSFORMER, "time_embedder.linear_1.weight", "time_embedder.proj_in.weight"},
    {H3F_TRANSFORMER, "time_embedder.linear_2.bias", "time_embedder.proj_out.bias"},
    {H3F_TRANSFORMER, "norm_out.norm.weight", "final_layer.norm.weight"},
    {H3F_TRANSFORMER, "norm_out.linear.weight", "final_layer.adaln_proj.linear.weight"},
    {H3F_TRANSFORMER, "proj_out.bias", "final_layer.video_out.bias"},
    {H3F_TRANSFORMER, "audio_proj_out.weight", "final_layer.audio_out.weight"},
    {H3F_TRANSFORMER, "rope.inv_freq", "rope.inv_freq"},
    {H3F_TRANSFORMER, "adaln_t_table", NULL},
    {H3F_TRANSFORMER, "blocks.0.attn.qkv_proj.weight_scale", NULL},
    {H3F_TRANSFORMER, "blocks.x.norm1.weight", NULL},
    {H3F_TRANSFORMER, "blocks.01.norm1.weight", NULL},
    {H3F_TRANSFORMER, "blocks.1234567.norm1.weight", NULL},
    {H3F_TRANSFORMER, "blocks..norm1.weight", NULL},
    {H3F_TRANSFORMER, "blocks.0.norm1.weight.", NULL},
    {H3F_TRANSFORMER, "blocks.0.norm1.weigh", NULL},
    {H3F_TRANSFORMER, "", NULL},
    {H3F_TEXT_ENCODER, "model.layers.7.mlp.up_proj.weight",
     "model.language_model.layers.7.mlp.up_proj.weight"},
    {H3F_TEXT_ENCODER, "model.language_model.layers.63.self_attn.q_norm.weight",
     "model.language_model.layers.63.self_attn.q_norm.weight"},
    {H3F_TEXT_ENCODER, "model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
    {H3F_TEXT_ENCODER, "model.norm.weight", "model.language_model.norm.weight"},
    {H3F_TEXT_ENCODER, "lm_head.weight", "lm_head.weight"},
    {H3F_TEXT_ENCODER, "visual.blocks.3.attn.qkv.bias", "model.visual.blocks.3.attn.qkv.bias"},
    {H3F_TEXT_ENCODER, "model.visual.pos_embed.weight", "model.visual.pos_embed.weight"},
    {H3F_TEXT_ENCODER, "model.layers.7.mlp.up_proj.bias", NULL},
    {H3F_TEXT_ENCODER, "blocks.0.norm1.weight", NULL},
    {H3F_VIDEO_VAE, "decoder.proj_in.weight", "decoder.x_embedder.weight"},
    {H3F_VIDEO_VAE, "decoder.transformer_blocks.3.attn.to_out.0.bias",
     "decoder.transformer_blocks.3.attn.to_out.bias"},
    {H3F_VIDEO_VAE, "decoder.transformer_blocks.3.attn.to_v.bias",
     "decoder.transformer_blocks.3.attn.to_v.bias"},
    {H3F_VIDEO_VAE, "decoder.transformer_blocks.3.ff.net.0.proj.bias",
     "decoder.transformer_blocks.3.ff.w1.bias"},
    {H3F_VIDEO_VAE, "decoder.transformer_blocks.3.ff.net.2.weight",
     "decoder.transformer_blocks.3.ff.w2.weight"},
    {H3F_VIDEO_VAE, "decoder.transformer_blocks.3.scale2", "decoder.transformer_blocks.3.scale2"},
    {H3F_VIDEO_VAE, "decoder.mask_token", "decoder.mask_token"},
    {H3F_VIDEO_VAE, "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
     "encoder.down.1.block.0.nin_shortcut.weight"},
    {H3F_VIDEO_VAE, "encoder.down_blocks.1.resnets.2.norm1.bias",
     "encoder.down.1.block.2.norm1.bias"},
    {H3F_VIDEO_VAE, "encoder.down_blocks.0.downsamplers.0.conv.bias",
     "encoder.down.0.downsample.conv.bias"},
    {H3F_VIDEO_VAE, "decoder.unheard_of.weight", NULL},
    {H3F_AUDIO_VAE, "decoder.conv_pre.parametrizations.weight.original0",
     "decoder.conv_pre.weight_g"},
    {H3F_AUDIO_VAE, "decoder.ups.6.0.parametrizations.weight.original1",
     "decoder.ups.6.0.weight_v"},
    {H3F_AUDIO_VAE, "decoder.ups.6.0.parametrizations.weight.original2", NULL},
    {H3F_AUDIO_VAE, "decoder.resblocks.20.activations.5.downsample.lowpass.filter",
     "decoder.resblocks.20.activations.5.downsample.lowpass.filter"},
    {H3F_AUDIO_VAE, "encoder.block.0.weight_g", "encoder.block.0.weight_g"},
    {H3F_AUDIO_VAE, "pre_block.attn.zero_k_bias", "pre_block.attn.zero_k_bias"},
    {H3F_AUDIO_VAE, "logs_proj.bias", "logs_proj.bias"},
    {H3F_AUDIO_VAE, "decoder.conv_pre.alpha", NULL},
};

static void test_every_spelling_has_one_canonical_name(void) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        h3f_name name;
        bool known = h3f_canonical_name(names[i].component, names[i].name, &name);
        if (known != (names[i].canonical != NULL) ||
            (known && strcmp(name.text, names[i].canonical) != 0))
            h_failed(__FILE__, __LINE__, "'%s' is %s%s, not %s", names[i].name,
                     known ? "" : "unknown, not ", known ? name.text : "known",
                     names[i].canonical ? names[i].canonical : "unknown");
        h3f_name again; /* what is spelt canonically stays (the parts of a split tensor are spelt by
                           nobody) */
        if (known && !strstr(name.text, ".attn.to_q")) {
            CHECK(h3f_canonical_name(names[i].component, name.text, &again));
            CHECK_TEXT(again.text, name.text);
        }
    }
}

static void test_endless_names_are_unknown(void) {
    static char name[3000];
    h3f_name canonical;
    for (size_t length = 200; length < sizeof name; length += 17) {
        memset(name, 'a', length);
        memcpy(name, "encoder.", 8);
        name[length] = '\0';
        for (int32_t component = H3F_TEXT_ENCODER; component <= H3F_AUDIO_VAE; component++)
            CHECK(!h3f_canonical_name(component, name, &canonical) ||
                  strlen(canonical.text) < H3F_MAX_NAME);
    }
}

/* ---- views ---- */

enum { HEADS = 3, HEAD_DIM = 2, COLS = 5, FFN = 4, INNER = HEADS * HEAD_DIM };

static t_tensor *add(t_file *file, const char *name, int64_t rows, int64_t cols) {
    const int64_t shape[2] = {rows, cols};
    return t_add(file, 1, 0, name, cols > 0 ? 2 : 1, shape);
}

/* A q, k or v row of the fused tensor is another row of the three. */
static void copy_qkv(t_tensor *fused, t_tensor *const parts[3], int64_t cols) {
    for (int64_t part = 0; part < 3; part++)
        for (int64_t head = 0; head < HEADS; head++)
            memcpy(fused->values + (head * 3 + part) * HEAD_DIM * cols,
                   parts[part]->values + head * HEAD_DIM * cols,
                   (size_t)(HEAD_DIM * cols) * sizeof(float));
}

static void copy_halves(t_tensor *gate_first, const t_tensor *up_first, int64_t cols) {
    size_t half = (size_t)(FFN * cols) * sizeof(float);
    memcpy(gate_first->values, up_first->values + FFN * cols, half);
    memcpy(gate_first->values + FFN * cols, up_first->values, half);
}

/* The same attention and feed-forward weights of a video VAE's block, in both layouts. */
static void make_vae_block(t_file *official, t_file *diffusers) {
    t_tensor *weights[3], *biases[3];
    static const char *const leaves[3][2] = {{"decoder.transformer_blocks.0.attn.to_q.weight",
                                              "decoder.transformer_blocks.0.attn.to_q.bias"},
                                             {"decoder.transformer_blocks.0.attn.to_k.weight",
                                              "decoder.transformer_blocks.0.attn.to_k.bias"},
                                             {"decoder.transformer_blocks.0.attn.to_v.weight",
                                              "decoder.transformer_blocks.0.attn.to_v.bias"}};
    for (int i = 0; i < 3; i++) {
        weights[i] = add(diffusers, leaves[i][0], INNER, COLS);
        biases[i] = add(diffusers, leaves[i][1], INNER, 0);
    }
    copy_qkv(add(official, "decoder.transformer_blocks.0.attn.to_qkv.weight", 3 * INNER, COLS),
             weights, COLS);
    copy_qkv(add(official, "decoder.transformer_blocks.0.attn.to_qkv.bias", 3 * INNER, 0), biases,
             1);
    copy_halves(add(official, "decoder.transformer_blocks.0.ff.w1.weight", 2 * FFN, COLS),
                add(diffusers, "decoder.transformer_blocks.0.ff.net.0.proj.weight", 2 * FFN, COLS),
                COLS);
    copy_halves(add(official, "decoder.transformer_blocks.0.ff.w1.bias", 2 * FFN, 0),
                add(diffusers, "decoder.transformer_blocks.0.ff.net.0.proj.bias", 2 * FFN, 0), 1);
}

static void read_matrix(const h3f_mat *matrix, float *out) {
    for (int64_t row = 0; row < matrix->rows; row++) {
        int64_t place =
            (row / matrix->group * matrix->group_stride + row % matrix->group) * matrix->cols;
        h3f_widen(matrix->dtype,
                  (const unsigned char *)matrix->data +
                      (size_t)place * h3f_dtype_size(matrix->dtype),
                  matrix->cols, out + row * matrix->cols);
    }
}

static void test_both_layouts_give_the_same_parts(void) {
    static t_file official = {.draw = {41}}, diffusers = {.draw = {42}};
    make_vae_block(&official, &diffusers);
    t_tensor *gate_up = t_find(&official, "decoder.transformer_blocks.0.ff.w1.weight");
    t_tensor *q = t_find(&diffusers, "decoder.transformer_blocks.0.attn.to_q.weight");
    static float seen[2][3 * INNER * COLS + 3 * INNER + 2 * FFN * COLS + 2 * FFN];
    for (int i = 0; i < 2; i++) {
        h3f_checkpoint *checkpoint =
            t_open(ctx, i ? &diffusers : &official, H3F_F32, H3F_VIDEO_VAE, "vae");
        CHECK_INT(h3f_checkpoint_layout(checkpoint),
                  i ? H3F_LAYOUT_DIFFUSERS : H3F_LAYOUT_OFFICIAL);
        h3f_mat parts[3], halves[2];
        float *out = seen[i];
        CHECK_OK(ctx, h3f_find_qkv(checkpoint, HEADS, HEAD_DIM, COLS, parts, out,
                                   "decoder.transformer_blocks.%d.attn", 0));
        out += 3 * INNER;
        for (int part = 0; part < 3; part++, out += INNER * COLS)
            read_matrix(&parts[part], out);
        CHECK_OK(ctx, h3f_find_gate_up(checkpoint, FFN, COLS, halves, out,
                                       "decoder.transformer_blocks.%d.ff.w1", 0));
        out += 2 * FFN;
        for (int half = 0; half < 2; half++, out += FFN * COLS)
            read_matrix(&halves[half], out);
        h3f_checkpoint_close(checkpoint);
    }
    CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) == 0);
    CHECK(memcmp(seen[0] + 3 * INNER, q->values, INNER * COLS * sizeof(float)) == 0);
    CHECK(memcmp(seen[0] + 3 * INNER + 3 * INNER * COLS + 2 * FFN, gate_up->values,
                 2 * FFN * COLS * sizeof(float)) == 0);
    t_clear(&official);
    t_clear(&diffusers);
}

static void test_vectors_are_widened_and_axes_of_one_ignored(void) {
    static t_file file = {.draw = {43}};
    static const int64_t shape[4] = {1, 6, 1, 1};
    t_add(&file, 1, 0, "blocks.0.norm1.weight", 4, shape);
    t_add(&file, 1, 0, "blocks.0.attn.out_proj.weight", 4, (const int64_t[]){6, 1, 1, 1});
    t_round(&file, H3F_BF16);
    h3f_checkpoint *checkpoint = t_open(ctx, &file, H3F_BF16, H3F_TRANSFORMER, "vectors");
    float out[6];
    h3f_mat matrix;
    CHECK_OK(ctx, h3f_read_vector(checkpoint, 6, out, "blocks.%d.norm1.weight", 0));
    CHECK(memcmp(out, file.tensors[0].values, sizeof out) == 0);
    CHECK_OK(ctx, h3f_find_matrix(checkpoint, 6, 1, &matrix, "blocks.0.attn.out_proj.weight"));
    CHECK(matrix.rows == 6 && matrix.cols == 1 && matrix.group == 6 && matrix.dtype == H3F_BF16);
    h3f_checkpoint_close(checkpoint);
    t_clear(&file);
}

/* ---- faults ---- */

/* One file with a matrix [4, 5] and a vector [4], opened as a transformer. */
static h3f_checkpoint *open_small(int32_t dtype) {
    static t_file file;
    file = (t_file){.draw = {44}};
    add(&file, "blocks.0.attn.out_proj.weight", 4, 5);
    add(&file, "blocks.0.norm1.weight", 4, 0);
    h3f_checkpoint *checkpoint = t_open(ctx, &file, dtype, H3F_TRANSFORMER, "small");
    t_clear(&file);
    return checkpoint;
}

static const char *sentence(const char *format_after_path) {
    static char text[1200];
    snprintf(text, sizeof text, "%s: %s", h_path("small"), format_after_path);
    return text;
}

static void test_missing_tensors_and_wrong_shapes_are_said_in_words(void) {
    h3f_checkpoint *checkpoint = open_small(H3F_F32);
    h3f_mat matrix, parts[3];
    h3f_tensor tensor;
    float out[20];
    CHECK_INT(h3f_find_matrix(checkpoint, 5, 4, &matrix, "blocks.%d.attn.out_proj.weight", 0),
              H3F_ETENSOR);
    CHECK_TEXT(
        h3f_error(ctx),
        sentence("tensor 'blocks.0.attn.out_proj.weight' has shape [4, 5], expected [5, 4]"));
    CHECK_INT(h3f_find_matrix(checkpoint, 4, 1, &matrix, "blocks.0.attn.out_proj.weight"),
              H3F_ETENSOR);
    CHECK_INT(h3f_read_vector(checkpoint, 20, out, "blocks.0.attn.out_proj.weight"), H3F_ETENSOR);
    CHECK_TEXT(h3f_error(ctx),
               sentence("tensor 'blocks.0.attn.out_proj.weight' has shape [4, 5], expected [20]"));
    CHECK_INT(h3f_read_vector(checkpoint, 3, out, "blocks.0.norm1.weight"), H3F_ETENSOR);
    CHECK_TEXT(h3f_error(ctx),
               sentence("tensor 'blocks.0.norm1.weight' has shape [4], expected [3]"));
    CHECK_INT(h3f_read_vector(checkpoint, 4, out, "blocks.1.norm1.weight"), H3F_ETENSOR);
    CHECK_TEXT(h3f_error(ctx), sentence("tensor 'blocks.1.norm1.weight' is missing"));
    CHECK_INT(h3f_find_qkv(checkpoint, 1, 2, 3, parts, NULL, "blocks.0.attn"), H3F_ETENSOR);
    CHECK_TEXT(h3f_error(ctx), sentence("tensor 'blocks.0.attn.qkv_proj.weight' is missing"));
    CHECK_INT(h3f_find_gate_up(checkpoint, 2, 3, parts, NULL, "blocks.0.mlp.fc1"), H3F_ETENSOR);
    CHECK_TEXT(h3f_error(ctx), sentence("tensor 'blocks.0.mlp.fc1.weight' is missing"));
    CHECK_INT(h3f_checkpoint_find(checkpoint, "x", &tensor), H3F_ETENSOR);
    CHECK_TEXT(h3f_error(ctx), sentence("tensor 'x' is missing"));
    CHECK_INT(h3f_checkpoint_tensor(checkpoint, 2, &tensor), H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), "tensor 2 of a checkpoint of 2");
    CHECK_INT(h3f_checkpoint_tensor(checkpoint, -1, &tensor), H3F_EINVAL);
    CHECK_OK(ctx, h3f_checkpoint_tensor(checkpoint, 1, &tensor));
    CHECK_TEXT(tensor.name, "blocks.0.norm1.weight");
    CHECK(h3f_checkpoint_has(checkpoint, "blocks.0.norm1.weight") &&
          !h3f_checkpoint_has(checkpoint, "blocks.0"));
    CHECK_INT(h3f_checkpoint_bytes(checkpoint), 24 * 4);
    h3f_checkpoint_close(checkpoint);
}

static void write_one(const char *path, const char *name, const char *dtype, int bytes) {
    unsigned char file[400] = {0};
    int length = snprintf((char *)file + 8, sizeof file - 8,
                          "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
                          name, dtype, bytes, bytes);
    file[0] = (unsigned char)length;
    h_write(path, file, (size_t)(8 + length + bytes));
}

static void test_types_that_are_not_computed_with_are_refused(void) {
    char path[1024];
    snprintf(path, sizeof path, "%s", h_path("small"));
    write_one(path, "blocks.0.norm1.weight", "F8_E4M3", 4);
    const char *const paths[] = {path};
    h3f_checkpoint *checkpoint = NULL;
    float out[4];
    CHECK_OK(ctx, h3f_checkpoint_open(ctx, H3F_TRANSFORMER, paths, 1, &checkpoint));
    CHECK_INT(h3f_read_vector(checkpoint, 4, out, "blocks.0.norm1.weight"), H3F_EDTYPE);
    CHECK_TEXT(h3f_error(ctx),
               sentence("tensor 'blocks.0.norm1.weight' is stored as F8_E4M3, this engine computes "
                        "with F32, F16 and BF16"));
    h3f_checkpoint_close(checkpoint);
}

/* Two files of one tensor each, opened together. */
static int open_two(int32_t component, const char *first, const char *second, char paths[2][1024]) {
    snprintf(paths[0], 1024, "%s", h_path("one.safetensors"));
    snprintf(paths[1], 1024, "%s", h_path("two.safetensors"));
    write_one(paths[0], first, "U8", 1);
    write_one(paths[1], second, "U8", 1);
    const char *const both[] = {paths[0], paths[1]};
    h3f_checkpoint *checkpoint = NULL;
    int64_t before = h3f_memory_now(ctx);
    int status = h3f_checkpoint_open(ctx, component, both, 2, &checkpoint);
    CHECK((status == H3F_OK) == (checkpoint != NULL));
    h3f_checkpoint_close(checkpoint);
    CHECK_INT(h3f_memory_now(ctx), before);
    return status;
}

static void test_files_that_do_not_go_together_are_refused(void) {
    char paths[2][1024], expected[3000];
    CHECK_OK(ctx, open_two(H3F_ANY, "a", "b", paths));
    CHECK_INT(open_two(H3F_ANY, "a", "a", paths), H3F_ETENSOR);
    CHECK_HAS(h3f_error(ctx), "tensor 'a' is also in ");
    CHECK_HAS(h3f_error(ctx), paths[0]);
    CHECK_HAS(h3f_error(ctx), paths[1]);
    CHECK_INT(
        open_two(H3F_TEXT_ENCODER, "model.norm.weight", "model.language_model.norm.weight", paths),
        H3F_ETENSOR);
    CHECK_HAS(h3f_error(ctx), "tensor 'model.language_model.norm.weight' is also in ");
    CHECK_INT(open_two(H3F_TRANSFORMER, "proj_in.bias", "blocks.0.norm1.weight", paths),
              H3F_ETENSOR);
    snprintf(expected, sizeof expected,
             "%s: tensor 'proj_in.bias' is named in diffusers' way, but 'blocks.0.norm1.weight' in "
             "%s in the "
             "official one",
             paths[0], paths[1]);
    CHECK_TEXT(h3f_error(ctx), expected);
    CHECK_INT(open_two(H3F_AUDIO_VAE, "dec_in_proj.bias", "proj_in.bias", paths), H3F_ETENSOR);
    snprintf(expected, sizeof expected, "%s: tensor 'proj_in.bias' is not one of the audio VAE's",
             paths[1]);
    CHECK_TEXT(h3f_error(ctx), expected);
}

static void test_what_is_missing_from_several_files_names_their_range(void) {
    char paths[2][1024], expected[3000];
    CHECK_OK(ctx, open_two(H3F_ANY, "a", "b", paths));
    const char *const both[] = {paths[0], paths[1]};
    h3f_checkpoint *checkpoint = NULL;
    h3f_tensor tensor;
    CHECK_OK(ctx, h3f_checkpoint_open(ctx, H3F_ANY, both, 2, &checkpoint));
    CHECK_INT(h3f_checkpoint_find(checkpoint, "c", &tensor), H3F_ETENSOR);
    snprintf(expected, sizeof expected, "tensor 'c' is in none of the 2 files from %s to %s",
             paths[0], paths[1]);
    CHECK_TEXT(h3f_error(ctx), expected);
    CHECK_OK(ctx, h3f_checkpoint_find(checkpoint, "b", &tensor));
    CHECK_TEXT(tensor.file, paths[1]);
    h3f_checkpoint_close(checkpoint);
}

static void test_arguments_out_of_range_are_refused(void) {
    h3f_checkpoint *checkpoint = NULL;
    const char *const paths[] = {"nowhere"};
    CHECK_INT(h3f_checkpoint_open(ctx, 5, paths, 1, &checkpoint), H3F_EINVAL);
    CHECK_TEXT(h3f_error(ctx), "component is 5, allowed are 0 to 4");
    CHECK_INT(h3f_checkpoint_open(ctx, -1, paths, 1, &checkpoint), H3F_EINVAL);
    CHECK_INT(h3f_checkpoint_open(ctx, 0, paths, 0, &checkpoint), H3F_EINVAL);
    CHECK_INT(h3f_checkpoint_open(ctx, 0, paths, 1, &checkpoint), H3F_EIO);
    CHECK_TEXT(h3f_error(ctx), "nowhere: no such file");
    h3f_checkpoint_close(NULL);
}

static void test_any_allocation_may_fail(void) {
    char paths[2][1024];
    CHECK_OK(ctx, open_two(H3F_TRANSFORMER, "rope.inv_freq", "blocks.0.norm1.weight", paths));
    const char *const both[] = {paths[0], paths[1]};
    int64_t before = h3f_memory_now(ctx);
    int status = H3F_ENOMEM, failures = 0;
    for (int64_t n = 0; status != H3F_OK; n++) {
        h3f_checkpoint *checkpoint = NULL;
        atomic_store(&ctx->fail_allocation, n);
        status = h3f_checkpoint_open(ctx, H3F_TRANSFORMER, both, 2, &checkpoint);
        atomic_store(&ctx->fail_allocation, -1);
        CHECK(status == H3F_OK || (status == H3F_ENOMEM && !checkpoint));
        failures += status != H3F_OK;
        h3f_checkpoint_close(checkpoint);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    CHECK(failures >= 10);
}

int main(void) {
    ctx = h_context(H3F_ISA_SCALAR, 1);
    RUN(test_every_spelling_has_one_canonical_name);
    RUN(test_endless_names_are_unknown);
    RUN(test_both_layouts_give_the_same_parts);
    RUN(test_vectors_are_widened_and_axes_of_one_ignored);
    RUN(test_missing_tensors_and_wrong_shapes_are_said_in_words);
    RUN(test_types_that_are_not_computed_with_are_refused);
    RUN(test_files_that_do_not_go_together_are_refused);
    RUN(test_what_is_missing_from_several_files_names_their_range);
    RUN(test_arguments_out_of_range_are_refused);
    RUN(test_any_allocation_may_fail);
    h3f_context_free(ctx);
    return H_END();
}
