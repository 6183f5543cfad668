#include "names.h"

#include <string.h>

/* Patterns: '#' is a number, '@' is "weight" or "bias", '*' is all the rest; what they matched goes
 * into the canonical name in the same order. Without a canonical pattern the name is canonical
 * already. The tables are docs of their own: spellings of the official release, of diffusers and of
 * Comfy-Org's files. */
typedef struct rule {
    const char *pattern, *canonical;
    h3f_spelling spelling;
    bool up_first;
} rule;

#define BLOCK_RULES(official, diffusers)                                                           \
    {.pattern = official ".norm1.weight", .spelling = H3F_SPELT_OFFICIAL},                         \
        {.pattern = official ".norm2.weight", .spelling = H3F_SPELT_OFFICIAL},                     \
        {.pattern = official ".attn.qkv_proj.weight", .spelling = H3F_SPELT_OFFICIAL},             \
        {.pattern = official ".attn.q_norm.weight", .spelling = H3F_SPELT_OFFICIAL},               \
        {.pattern = official ".attn.k_norm.weight", .spelling = H3F_SPELT_OFFICIAL},               \
        {.pattern = official ".attn.out_proj.weight", .spelling = H3F_SPELT_OFFICIAL},             \
        {.pattern = official ".mlp.fc1.weight", .spelling = H3F_SPELT_OFFICIAL},                   \
        {.pattern = official ".mlp.fc2.weight", .spelling = H3F_SPELT_OFFICIAL},                   \
        {diffusers ".norm1.weight", official ".norm1.weight", H3F_SPELT_DIFFUSERS, false},         \
        {diffusers ".norm2.weight", official ".norm2.weight", H3F_SPELT_DIFFUSERS, false},         \
        {diffusers ".attn.to_q.weight", official ".attn.to_q.weight", H3F_SPELT_DIFFUSERS, false}, \
        {diffusers ".attn.to_k.weight", official ".attn.to_k.weight", H3F_SPELT_DIFFUSERS, false}, \
        {diffusers ".attn.to_v.weight", official ".attn.to_v.weight", H3F_SPELT_DIFFUSERS, false}, \
        {diffusers ".attn.norm_q.weight", official ".attn.q_norm.weight", H3F_SPELT_DIFFUSERS,     \
         false},                                                                                   \
        {diffusers ".attn.norm_k.weight", official ".attn.k_norm.weight", H3F_SPELT_DIFFUSERS,     \
         false},                                                                                   \
        {diffusers ".attn.to_out.0.weight", official ".attn.out_proj.weight", H3F_SPELT_DIFFUSERS, \
         false},                                                                                   \
        {diffusers ".ff.net.0.proj.weight", official ".mlp.fc1.weight", H3F_SPELT_DIFFUSERS,       \
         true},                                                                                    \
    {                                                                                              \
        diffusers ".ff.net.2.weight", official ".mlp.fc2.weight", H3F_SPELT_DIFFUSERS, false       \
    }

static const rule transformer_rules[] = {
    BLOCK_RULES("blocks.#", "transformer_blocks.#"),
    BLOCK_RULES("token_refiner.blocks.#", "token_refiner.refiner_blocks.#"),
    {.pattern = "blocks.#.adaln_proj.linear.@", .spelling = H3F_SPELT_OFFICIAL},
    {"transformer_blocks.#.adaln_proj.linear.@", "blocks.#.adaln_proj.linear.@",
     H3F_SPELT_DIFFUSERS, false},
    {.pattern = "token_refiner.final_norm.weight"},
    {.pattern = "video_patch_proj.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "audio_patch_proj.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "condition_proj.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "time_embedder.proj_in.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "time_embedder.proj_out.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "final_layer.norm.weight", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "final_layer.adaln_proj.linear.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "final_layer.video_out.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "final_layer.audio_out.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "rope.inv_freq", .spelling = H3F_SPELT_OFFICIAL}, /* computed instead */
    {"proj_in.@", "video_patch_proj.@", H3F_SPELT_DIFFUSERS, false},
    {"audio_proj_in.@", "audio_patch_proj.@", H3F_SPELT_DIFFUSERS, false},
    {"context_embedder.@", "condition_proj.@", H3F_SPELT_DIFFUSERS, false},
    {"time_embedder.linear_1.@", "time_embedder.proj_in.@", H3F_SPELT_DIFFUSERS, false},
    {"time_embedder.linear_2.@", "time_embedder.proj_out.@", H3F_SPELT_DIFFUSERS, false},
    {"norm_out.norm.weight", "final_layer.norm.weight", H3F_SPELT_DIFFUSERS, false},
    {"norm_out.linear.@", "final_layer.adaln_proj.linear.@", H3F_SPELT_DIFFUSERS, false},
    {"proj_out.@", "final_layer.video_out.@", H3F_SPELT_DIFFUSERS, false},
    {"audio_proj_out.@", "final_layer.audio_out.@", H3F_SPELT_DIFFUSERS, false},
    {0},
};

#define LAYER_RULES(leaf)                                                                     \
    {.pattern = "model.language_model.layers.#." leaf}, {                                     \
        .pattern = "model.layers.#." leaf, .canonical = "model.language_model.layers.#." leaf \
    }

static const rule text_encoder_rules[] = {
    {.pattern = "model.language_model.embed_tokens.weight"},
    {.pattern = "model.embed_tokens.weight",
     .canonical = "model.language_model.embed_tokens.weight"},
    LAYER_RULES("input_layernorm.weight"),
    LAYER_RULES("post_attention_layernorm.weight"),
    LAYER_RULES("self_attn.q_proj.weight"),
    LAYER_RULES("self_attn.k_proj.weight"),
    LAYER_RULES("self_attn.v_proj.weight"),
    LAYER_RULES("self_attn.o_proj.weight"),
    LAYER_RULES("self_attn.q_norm.weight"),
    LAYER_RULES("self_attn.k_norm.weight"),
    LAYER_RULES("mlp.gate_proj.weight"),
    LAYER_RULES("mlp.up_proj.weight"),
    LAYER_RULES("mlp.down_proj.weight"),
    /* Not used for text: head, final norm, vision tower. */
    {.pattern = "lm_head.weight"},
    {.pattern = "model.language_model.norm.weight"},
    {.pattern = "model.norm.weight", .canonical = "model.language_model.norm.weight"},
    {.pattern = "model.visual.*"},
    {.pattern = "visual.*", .canonical = "model.visual.*"},
    {0},
};

#define DECODER "decoder.transformer_blocks.#"

static const rule video_vae_rules[] = {
    {.pattern = DECODER ".norm1.weight"},
    {.pattern = DECODER ".norm2.weight"},
    {.pattern = DECODER ".scale1"},
    {.pattern = DECODER ".scale2"},
    {.pattern = DECODER ".attn.to_qkv.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = DECODER ".attn.to_out.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = DECODER ".ff.w1.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = DECODER ".ff.w2.@", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = DECODER ".attn.to_q.@", .spelling = H3F_SPELT_DIFFUSERS},
    {.pattern = DECODER ".attn.to_k.@", .spelling = H3F_SPELT_DIFFUSERS},
    {.pattern = DECODER ".attn.to_v.@", .spelling = H3F_SPELT_DIFFUSERS},
    {DECODER ".attn.to_out.0.@", DECODER ".attn.to_out.@", H3F_SPELT_DIFFUSERS, false},
    {DECODER ".ff.net.0.proj.@", DECODER ".ff.w1.@", H3F_SPELT_DIFFUSERS, true},
    {DECODER ".ff.net.2.@", DECODER ".ff.w2.@", H3F_SPELT_DIFFUSERS, false},
    {.pattern = "decoder.x_embedder.@", .spelling = H3F_SPELT_OFFICIAL},
    {"decoder.proj_in.@", "decoder.x_embedder.@", H3F_SPELT_DIFFUSERS, false},
    {.pattern = "decoder.register_tokens"},
    {.pattern = "decoder.norm_out.@"},
    {.pattern = "decoder.proj_out.@"},
    {.pattern = "post_quant_conv.@"},
    /* Not used to decode. */
    {.pattern = "decoder.mask_token"},
    {.pattern = "quant_conv.@"},
    {.pattern = "encoder.conv_in.@"},
    {.pattern = "encoder.conv_out.@"},
    {.pattern = "encoder.norm_out.@"},
    {.pattern = "encoder.down.#.block.#.*", .spelling = H3F_SPELT_OFFICIAL},
    {.pattern = "encoder.down.#.downsample.conv.@", .spelling = H3F_SPELT_OFFICIAL},
    {"encoder.down_blocks.#.resnets.#.conv_shortcut.@", "encoder.down.#.block.#.nin_shortcut.@",
     H3F_SPELT_DIFFUSERS, false},
    {"encoder.down_blocks.#.resnets.#.*", "encoder.down.#.block.#.*", H3F_SPELT_DIFFUSERS, false},
    {"encoder.down_blocks.#.downsamplers.0.conv.@", "encoder.down.#.downsample.conv.@",
     H3F_SPELT_DIFFUSERS, false},
    {0},
};

#define CONVOLUTION_RULES(module)                                \
    {.pattern = module ".@"}, {.pattern = module ".weight_g"}, { \
        .pattern = module ".weight_v"                            \
    }
#define ACTIVATION_RULES(module)                                       \
    {.pattern = module ".act.alpha"}, {.pattern = module ".act.beta"}, \
        {.pattern = module ".upsample.filter"}, {                      \
        .pattern = module ".downsample.lowpass.filter"                 \
    }

static const rule audio_vae_rules[] = {
    {.pattern = "dec_in_proj.@"},
    CONVOLUTION_RULES("decoder.conv_pre"),
    CONVOLUTION_RULES("decoder.conv_post"),
    CONVOLUTION_RULES("decoder.ups.#.#"),
    CONVOLUTION_RULES("decoder.resblocks.#.convs1.#"),
    CONVOLUTION_RULES("decoder.resblocks.#.convs2.#"),
    ACTIVATION_RULES("decoder.resblocks.#.activations.#"),
    ACTIVATION_RULES("decoder.activation_post"),
    /* Not used to decode. */
    {.pattern = "encoder.*"},
    {.pattern = "pre_block.*"},
    {.pattern = "mean_proj.@"},
    {.pattern = "logs_proj.@"},
    {0},
};

/* ---- matching ---- */

/* How much of `name` the wildcard covers; 0: it does not match. */
static size_t match_wildcard(char wildcard, const char *name) {
    if (wildcard == '*')
        return strlen(name);
    if (wildcard == '#') {
        size_t digits = strspn(name, "0123456789");
        return digits > 6 || (digits > 1 && name[0] == '0') ? 0 : digits;
    }
    return strcmp(name, "weight") == 0 ? 6 : strcmp(name, "bias") == 0 ? 4 : 0;
}

static bool is_wildcard(char c) {
    return c == '#' || c == '@' || c == '*';
}

enum { MAX_PARTS = 4 };
typedef struct part {
    const char *text;
    size_t length;
} part;

static bool match(const char *pattern, const char *name, part parts[MAX_PARTS]) {
    int count = 0;
    for (; *pattern; pattern++) {
        if (!is_wildcard(*pattern)) {
            if (*name++ != *pattern)
                return false;
            continue;
        }
        size_t length = match_wildcard(*pattern, name);
        if (length == 0)
            return false;
        parts[count++] = (part){name, length};
        name += length;
    }
    return *name == '\0';
}

static bool append(h3f_name *name, size_t *used, const char *text, size_t length) {
    if (length >= sizeof name->text - *used)
        return false;
    memcpy(name->text + *used, text, length);
    *used += length;
    name->text[*used] = '\0';
    return true;
}

static bool build(const char *canonical, const part *parts, h3f_name *name) {
    size_t used = 0;
    for (; *canonical; canonical++) {
        bool wild = is_wildcard(*canonical);
        if (!append(name, &used, wild ? parts->text : canonical, wild ? parts->length : 1))
            return false;
        parts += wild;
    }
    return true;
}

/* ---- spellings that concern every tensor of a component ---- */

static const char *without_prefix(const char *name) {
    static const char *const prefixes[] = {"model.diffusion_model.", "diffusion_model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

/* Newer torch's names for the two factors of a weight-normed convolution. */
static bool with_plain_weight_norm(const char *name, char plain[H3F_MAX_NAME]) {
    static const char newer[] = ".parametrizations.weight.original";
    size_t length = strlen(name), tail = sizeof newer; /* the digit in place of the NUL */
    if (length >= H3F_MAX_NAME)
        return false;
    memcpy(plain, name, length + 1);
    if (length > tail && memcmp(name + length - tail, newer, tail - 1) == 0 &&
        (name[length - 1] == '0' || name[length - 1] == '1'))
        strcpy(plain + length - tail, name[length - 1] == '0' ? ".weight_g" : ".weight_v");
    return true;
}

bool h3f_canonical_name(int32_t component, const char *name, h3f_name *canonical) {
    static const rule *const tables[] = {
        [H3F_TEXT_ENCODER] = text_encoder_rules,
        [H3F_TRANSFORMER] = transformer_rules,
        [H3F_VIDEO_VAE] = video_vae_rules,
        [H3F_AUDIO_VAE] = audio_vae_rules,
    };
    char plain[H3F_MAX_NAME];
    memset(canonical, 0, sizeof *canonical);
    if (component == H3F_TRANSFORMER)
        name = without_prefix(name);
    if (component == H3F_AUDIO_VAE) {
        if (!with_plain_weight_norm(name, plain))
            return false;
        name = plain;
    }
    for (const rule *r = tables[component]; r->pattern; r++) {
        part parts[MAX_PARTS];
        if (match(r->pattern, name, parts)) {
            canonical->spelling = (int32_t)r->spelling;
            canonical->up_first = r->up_first;
            return build(r->canonical ? r->canonical : r->pattern, parts, canonical);
        }
    }
    return false;
}
