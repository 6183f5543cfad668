/* video_vae_tiles: how a video is cut into clips and tiles, and how their pixels are joined again.
 *
 * The cuts are part of the result (rotary positions are relative to the tile), so the rules are the
 * reference's to the frame and the pixel. Pure arithmetic and copying: no weights here. */
#ifndef H3F_VIDEO_VAE_TILES_H
#define H3F_VIDEO_VAE_TILES_H

#include "context.h"

/* ---- time ---- */

/* What a config means along time; the release's values in brackets. */
typedef struct h3f_clip_rules {
    int32_t factor;         /* [4] frames a latent frame stands for */
    int32_t length;         /* [17] frames a clip yields */
    int32_t stride;         /* [5] latent frames from one clip to the next */
    int32_t overlap;        /* [2] latent frames a clip sees of its successor */
    int32_t lead;           /* [3] frames dropped at the front of both parts of a decoded clip */
    int32_t overlap_frames; /* [5] frames blended into the next clip */
} h3f_clip_rules;

/* H3F_EINVAL, naming the fields, when clips would not overlap. */
int h3f_clip_rules_init(h3f_context *ctx, const h3f_video_vae_config *config,
                        h3f_clip_rules *rules);

typedef struct h3f_clip_plan {
    int32_t clips;
    int32_t frames;      /* of the whole video */
    int32_t last_frames; /* the last clip yields: its own, the blended tail, less the padding */
} h3f_clip_plan;

/* H3F_EINVAL when the latent is too short for one clip. */
int h3f_clip_plan_init(h3f_context *ctx, const h3f_clip_rules *rules, int32_t latent_frames,
                       h3f_clip_plan *plan);
int32_t h3f_clip_frames(const h3f_clip_rules *rules, const h3f_clip_plan *plan, int32_t clip);

/* ---- space ---- */

/* The tiles along one axis, in pixels: `count` of `size`, each `least` or more over its neighbour.
 * What they have too much goes to the overlaps, `unit` at a time, from the first on and round
 * again. */
typedef struct h3f_axis {
    int32_t count, size, least, unit;
    int32_t each, extra; /* units added to every overlap, and one more to the first `extra` */
} h3f_axis;

/* tile 0, or at least `length`: one tile of that length. All are multiples of `unit`. */
void h3f_axis_init(h3f_axis *axis, int32_t length, int32_t tile, int32_t least, int32_t unit);
int32_t h3f_axis_start(const h3f_axis *axis, int32_t tile);
/* Between `tile` and the next one; 0 before the first and after the last. */
int32_t h3f_axis_overlap(const h3f_axis *axis, int32_t tile);
int32_t h3f_axis_widest(const h3f_axis *axis); /* overlap */

/* ---- pixels ---- */

/* Joins the tiles of one clip, row by row from the top left, straight into the caller's frames.
 *
 * The rule: a tile is blended with the raw (unblended) tile above, then with the raw tile on its
 * left, then cut where the next begins; so the raw edges are all that is kept of a tile. */
typedef struct h3f_mosaic {
    h3f_axis y, x;
    int32_t channels;      /* [3] */
    int32_t patch, factor; /* a token is `factor` frames of `patch` x `patch` pixels */
    int32_t length, lead;  /* see h3f_clip_rules; a clip that is not cut: all its frames, 0 */
    int32_t overlap;       /* frames blended from `carry` into the front; 0: none */
    int32_t frames;        /* decoded frames kept: `length`, then those of the tail */
    bool last;             /* the tail goes to `pixels`; else to `carry` */
    float *pixels;         /* [channels, last ? frames : length, H, W] */
    float *carry;          /* [channels, overlap frames, H, W] */
    int32_t carry_frames;
    float *above; /* [x.count, channels, frames, widest overlap of y, x.size] */
    float *left;  /* [channels, frames, y.size, widest overlap of x] */
} h3f_mosaic;

size_t h3f_mosaic_above_bytes(const h3f_mosaic *mosaic);
size_t h3f_mosaic_left_bytes(const h3f_mosaic *mosaic);

/* Puts the tile at (row, col) in place. tokens: [t, y.size / patch, x.size / patch] rows of
 * [channels, factor, patch, patch], as the network gives them. Tiles come in row-major order. */
int h3f_mosaic_put(h3f_context *ctx, const h3f_mosaic *mosaic, int32_t row, int32_t col,
                   const float *tokens);

#endif
