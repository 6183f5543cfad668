/* video_encoder_net: the video VAE's encoder, which turns the pixels of one tile into the moments
 * of its latent. Levels of residual blocks of causal convolutions, most of them halving the sides
 * of what they hand on. */
#ifndef H3F_VIDEO_ENCODER_NET_H
#define H3F_VIDEO_ENCODER_NET_H

#include "video_conv.h"

typedef struct h3f_video_residual {
    h3f_group_norm norm1, norm2;
    h3f_conv3d conv1, conv2;
    h3f_linear shortcut; /* no rows: the input itself */
    float *shortcut_bias;
} h3f_video_residual;

typedef struct h3f_video_level {
    int32_t in, out;
    bool shrinks;
    h3f_video_residual *residuals; /* [config.resnets] */
    h3f_conv3d down;
} h3f_video_level;

typedef struct h3f_video_encoder_net {
    h3f_context *ctx;
    h3f_video_encoder_config config;
    int32_t factor, time_factor; /* pixels and frames a latent stands for */
    int32_t moments;             /* values of a latent position: means, then log variances */
    h3f_conv3d conv_in, conv_out;
    h3f_group_norm norm_out;
    h3f_linear quant;
    float *quant_bias;
    h3f_video_level *levels;
    h3f_arena vectors;
} h3f_video_encoder_net;

/* Fills a zeroed `net`; after a failure it must be closed as well. */
int h3f_video_encoder_net_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                               const h3f_video_encoder_config *config, h3f_video_encoder_net *net);
void h3f_video_encoder_net_close(h3f_video_encoder_net *net);

/* The memory of tiles of one size. */
typedef struct h3f_video_encoding {
    h3f_volume pixels, latent;
    float *rgb;     /* [frames, height, width, 3], normalised: written by the caller */
    float *moments; /* [frames, height, width, net->moments] of the latent: the result */
    float *x, *branch, *other;
    void *scratch;
} h3f_video_encoding;

/* Sets the sizes. H3F_EINVAL when the sides do not divide evenly down to two latents or more, or
 * the tile is beyond what memory can address. */
int h3f_video_encoding_init(const h3f_video_encoder_net *net, h3f_volume pixels,
                            h3f_video_encoding *encoding);
void h3f_video_encoding_layout(h3f_video_encoder_net *net, h3f_arena *arena,
                               h3f_video_encoding *encoding);
/* Once the arena is there, before the first tile. */
int h3f_video_encoding_prepare(const h3f_video_encoder_net *net);

/* encoding->rgb -> encoding->moments. Reports one step of progress a level: done + 1 ... */
int h3f_video_encoder_net_run(const h3f_video_encoder_net *net, const h3f_video_encoding *encoding,
                              int64_t done, int64_t total);

#endif
