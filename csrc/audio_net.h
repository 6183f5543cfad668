/* audio_net: the modules of the vocoder, as opened from a checkpoint. */
#ifndef H3F_AUDIO_NET_H
#define H3F_AUDIO_NET_H

#include "audio_activation.h"
#include "audio_conv.h"

/* The convolutions of a vae, in the order of the list; then the upsamplers and the blocks'. */
enum { H3F_DEC_IN_PROJ, H3F_CONV_PRE, H3F_CONV_POST, H3F_FIRST_UP };
/* Its activations; then the blocks'. */
enum { H3F_ACTIVATION_POST, H3F_FIRST_ACTIVATION };

struct h3f_audio_vae {
    h3f_context *ctx;
    h3f_audio_vae_config config;
    int32_t hop;
    int32_t conv_count, activation_count;
    h3f_conv *convs;
    h3f_activation *activations;
    h3f_arena weights; /* folded */
};

/* Of block `block` (counted through all stages): its dilation m has the convolutions 2m (dilated)
 * and 2m + 1, and an activation before each. */
static inline h3f_conv *h3f_block_conv(const h3f_audio_vae *vae, int32_t block, int32_t n) {
    return &vae->convs[H3F_FIRST_UP + vae->config.stages + block * 2 * vae->config.dilations + n];
}

static inline h3f_activation *h3f_block_activation(const h3f_audio_vae *vae, int32_t block,
                                                   int32_t n) {
    return &vae->activations[H3F_FIRST_ACTIVATION + block * 2 * vae->config.dilations + n];
}

#endif
