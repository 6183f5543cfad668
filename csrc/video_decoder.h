/* video_decoder: the video VAE's transformer, which turns the latent of one tile into pixels.
 *
 * Full attention over all tokens of a tile; rotary positions are relative to the tile. */
#ifndef H3F_VIDEO_DECODER_H
#define H3F_VIDEO_DECODER_H

#include "arena.h"
#include "checkpoint.h"

typedef struct h3f_video_layer {
    h3f_linear qkv[3], attention_out, gate_up[2], feed_forward_out;
    float *norm1, *norm2;     /* [hidden] */
    float *scale1, *scale2;   /* [hidden], of the branches */
    float *qkv_bias;          /* [3, hidden] */
    float *attention_bias;    /* [hidden] */
    float *gate_up_bias;      /* [2, ffn] */
    float *feed_forward_bias; /* [hidden] */
} h3f_video_layer;

typedef struct h3f_video_decoder {
    h3f_context *ctx;
    h3f_video_vae_config config;
    int64_t hidden, pixels; /* pixels: values of a token's patch of the picture */
    h3f_linear post_quant, proj_in, proj_out;
    float *post_quant_bias, *proj_in_bias, *proj_out_bias;
    float *registers; /* [registers, hidden] */
    float *norm_out, *norm_out_bias;
    h3f_video_layer *layers;
    h3f_arena vectors; /* everything above that is not in the mapping */
} h3f_video_decoder;

/* Fills a zeroed `decoder`; after a failure it must be closed as well. */
int h3f_video_decoder_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                           const h3f_video_vae_config *config, h3f_video_decoder *decoder);
void h3f_video_decoder_close(h3f_video_decoder *decoder);

/* The memory of one tile of `frames` x `height` x `width` latents. */
typedef struct h3f_video_tile {
    int32_t frames, height, width;
    int64_t tokens;       /* of the data; registers and the zero token follow */
    int64_t rows;         /* all tokens */
    int64_t chunk;        /* rows of the feed-forward at a time */
    float *latent;        /* [tokens, latent_channels]: the input, written by the caller */
    float *pixels;        /* [tokens, pixels]: the result, in `work` */
    float *x, *branch;    /* [rows, hidden] */
    float *work;          /* q, k, v; or gate, up; or the pixels */
    float *cosine, *sine; /* [rows, rope_dim / 2] */
    const float **scales; /* [rows]: what h3f_add_gated wants */
    void *scratch;
} h3f_video_tile;

/* H3F_EINVAL when the tile is beyond what memory can address. */
int h3f_video_tile_init(const h3f_video_decoder *decoder, int32_t frames, int32_t height,
                        int32_t width, h3f_video_tile *tile);
void h3f_video_tile_layout(const h3f_video_decoder *decoder, h3f_arena *arena,
                           h3f_video_tile *tile);
/* The rotary tables, which depend on the shape alone; once the tile has its memory. */
int h3f_video_tile_prepare(const h3f_video_decoder *decoder, h3f_video_tile *tile);

/* tile->latent -> tile->pixels. Reports one step of progress a layer: done + 1 .. done + layers. */
int h3f_video_decoder_run(const h3f_video_decoder *decoder, const h3f_video_tile *tile,
                          int64_t done, int64_t total);

#endif
