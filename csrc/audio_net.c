#include "audio_net.h"

#include <stdio.h>

static int check_list(h3f_context *ctx, const char *name, const int32_t *values, int32_t count,
                      int32_t most_count, int32_t most) {
    if (count < 1 || count > most_count)
        return h3f_fail(ctx, H3F_EINVAL, "audio VAE: %d %s, expected 1 to %d", count, name,
                        most_count);
    for (int32_t i = 0; i < count; i++)
        if (values[i] < 1 || values[i] > most)
            return h3f_fail(ctx, H3F_EINVAL, "audio VAE: %s %d is %d, expected 1 to %d", name, i,
                            values[i], most);
    return H3F_OK;
}

static int check_config(h3f_context *ctx, const h3f_audio_vae_config *config) {
    if (config->latent_channels < 1)
        return h3f_fail(ctx, H3F_EINVAL, "audio VAE: latent_channels is %d, expected 1 or more",
                        config->latent_channels);
    H3F_TRY(check_list(ctx, "rates", config->rates, config->stages, H3F_AUDIO_MAX_STAGES, 1024));
    H3F_TRY(check_list(ctx, "kernel_sizes", config->kernel_sizes, config->kernels,
                       H3F_AUDIO_MAX_KERNELS, 1023));
    return check_list(ctx, "dilation_sizes", config->dilation_sizes, config->dilations,
                      H3F_AUDIO_MAX_DILATIONS, 1024);
}

static int set_hop(h3f_audio_vae *vae) {
    int64_t hop = 1;
    for (int32_t i = 0; i < vae->config.stages; i++) {
        hop *= vae->config.rates[i];
        if (hop > 1 << 20)
            return h3f_fail(vae->ctx, H3F_EINVAL, "audio VAE: the rates multiply to more than %d",
                            1 << 20);
    }
    vae->hop = (int32_t)hop;
    return H3F_OK;
}

static int find_conv(const h3f_checkpoint *checkpoint, h3f_conv *conv, h3f_conv wanted,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));

static int find_conv(const h3f_checkpoint *checkpoint, h3f_conv *conv, h3f_conv wanted,
                     const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    *conv = wanted;
    vsnprintf(conv->name, sizeof conv->name, format, arguments);
    va_end(arguments);
    return h3f_conv_find(checkpoint, conv);
}

static int find_block(const h3f_checkpoint *checkpoint, h3f_audio_vae *vae, int32_t block,
                      int32_t channels) {
    const h3f_audio_vae_config *config = &vae->config;
    h3f_conv wanted = {.in = channels,
                       .out = channels,
                       .kernel = config->kernel_sizes[block % config->kernels],
                       .biased = true};
    for (int32_t n = 0; n < 2 * config->dilations; n++) {
        const bool dilated = n % 2 == 0;
        wanted.dilation = dilated ? config->dilation_sizes[n / 2] : 1;
        H3F_TRY(find_conv(checkpoint, h3f_block_conv(vae, block, n), wanted,
                          "decoder.resblocks.%d.%s.%d", block, dilated ? "convs1" : "convs2",
                          n / 2));
        h3f_activation *activation = h3f_block_activation(vae, block, n);
        activation->channels = channels;
        snprintf(activation->name, sizeof activation->name, "decoder.resblocks.%d.activations.%d",
                 block, n);
    }
    return H3F_OK;
}

static int find_stage(const h3f_checkpoint *checkpoint, h3f_audio_vae *vae, int32_t stage,
                      int32_t *channels) {
    const h3f_audio_vae_config *config = &vae->config;
    h3f_conv *up = &vae->convs[H3F_FIRST_UP + stage];
    const h3f_conv wanted = {.in = *channels, .rate = config->rates[stage], .biased = true};
    H3F_TRY(find_conv(checkpoint, up, wanted, "decoder.ups.%d.0", stage));
    *channels = up->out;
    for (int32_t j = 0; j < config->kernels; j++)
        H3F_TRY(find_block(checkpoint, vae, stage * config->kernels + j, *channels));
    return H3F_OK;
}

/* A stage or a block more than the config has would be left out in silence. */
static int check_counts(const h3f_checkpoint *checkpoint, const h3f_audio_vae *vae) {
    char names[2][64];
    snprintf(names[0], sizeof names[0], "decoder.ups.%d.0.bias", vae->config.stages);
    snprintf(names[1], sizeof names[1], "decoder.resblocks.%d.convs1.0.bias",
             vae->config.stages * vae->config.kernels);
    for (int i = 0; i < 2; i++)
        if (h3f_checkpoint_has(checkpoint, names[i]))
            return h3f_fail(vae->ctx, H3F_ETENSOR,
                            "audio VAE: the config has %d stages of %d blocks, but the file also "
                            "holds '%s'",
                            vae->config.stages, vae->config.kernels, names[i]);
    return H3F_OK;
}

/* Every channel count but the latent's comes from the file. */
static int find_all(const h3f_checkpoint *checkpoint, h3f_audio_vae *vae) {
    h3f_conv *convs = vae->convs;
    const h3f_conv in = {
        .in = vae->config.latent_channels, .kernel = 1, .dilation = 1, .biased = true};
    H3F_TRY(check_counts(checkpoint, vae));
    H3F_TRY(find_conv(checkpoint, &convs[H3F_DEC_IN_PROJ], in, "dec_in_proj"));
    const h3f_conv pre = {.in = convs[H3F_DEC_IN_PROJ].out, .dilation = 1, .biased = true};
    H3F_TRY(find_conv(checkpoint, &convs[H3F_CONV_PRE], pre, "decoder.conv_pre"));
    int32_t channels = convs[H3F_CONV_PRE].out;
    for (int32_t stage = 0; stage < vae->config.stages; stage++)
        H3F_TRY(find_stage(checkpoint, vae, stage, &channels));
    h3f_activation *post = &vae->activations[H3F_ACTIVATION_POST];
    post->channels = channels;
    snprintf(post->name, sizeof post->name, "decoder.activation_post");
    const h3f_conv last = {.in = channels, .out = 1, .dilation = 1};
    return find_conv(checkpoint, &convs[H3F_CONV_POST], last, "decoder.conv_post");
}

static void layout_weights(h3f_audio_vae *vae) {
    for (int32_t i = 0; i < vae->conv_count; i++)
        h3f_conv_layout(&vae->weights, &vae->convs[i]);
    for (int32_t i = 0; i < vae->activation_count; i++)
        h3f_activation_layout(&vae->weights, &vae->activations[i]);
}

static int load_all(const h3f_checkpoint *checkpoint, h3f_audio_vae *vae) {
    layout_weights(vae);
    H3F_TRY(h3f_arena_reserve(vae->ctx, &vae->weights, "the audio VAE's weights"));
    layout_weights(vae);
    for (int32_t i = 0; i < vae->conv_count; i++)
        H3F_TRY(h3f_conv_load(checkpoint, &vae->convs[i]));
    for (int32_t i = 0; i < vae->activation_count; i++)
        H3F_TRY(h3f_activation_load(checkpoint, &vae->activations[i]));
    return H3F_OK;
}

static int open_vae(h3f_audio_vae *vae, const h3f_checkpoint *checkpoint) {
    const h3f_audio_vae_config *config = &vae->config;
    const int32_t in_blocks = config->stages * config->kernels * config->dilations * 2;
    H3F_TRY(set_hop(vae));
    vae->conv_count = H3F_FIRST_UP + config->stages + in_blocks;
    vae->activation_count = H3F_FIRST_ACTIVATION + in_blocks;
    vae->convs = h3f_alloc(vae->ctx, (size_t)vae->conv_count * sizeof *vae->convs, "the audio VAE");
    if (!vae->convs)
        return H3F_ENOMEM;
    vae->activations = h3f_alloc(vae->ctx, (size_t)vae->activation_count * sizeof *vae->activations,
                                 "the audio VAE");
    if (!vae->activations)
        return H3F_ENOMEM;
    H3F_TRY(find_all(checkpoint, vae));
    return load_all(checkpoint, vae);
}

int h3f_audio_vae_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                       const h3f_audio_vae_config *config, h3f_audio_vae **result) {
    H3F_TRY(check_config(ctx, config));
    h3f_audio_vae *vae = h3f_alloc(ctx, sizeof *vae, "the audio VAE");
    if (!vae)
        return H3F_ENOMEM;
    vae->ctx = ctx;
    vae->config = *config;
    const int code = open_vae(vae, checkpoint);
    if (code != H3F_OK) {
        h3f_audio_vae_close(vae);
        return code;
    }
    *result = vae;
    return H3F_OK;
}

void h3f_audio_vae_close(h3f_audio_vae *vae) {
    if (!vae)
        return;
    h3f_arena_release(vae->ctx, &vae->weights);
    h3f_free(vae->ctx, vae->activations);
    h3f_free(vae->ctx, vae->convs);
    h3f_free(vae->ctx, vae);
}

int32_t h3f_audio_vae_hop(const h3f_audio_vae *vae) {
    return vae->hop;
}
