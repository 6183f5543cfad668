#include "video_decoder.h"
#include "video_vae_tiles.h"

struct h3f_video_vae {
    h3f_context *ctx;
    h3f_video_vae_config config;
    h3f_clip_rules rules;
    h3f_video_decoder decoder;
};

/* ---- open ---- */

static int check_tiles(h3f_context *ctx, const h3f_video_vae_config *config) {
    const int32_t unit = config->spatial_factor, tile = config->tile,
                  overlap = config->tile_overlap;
    if (tile == 0)
        return H3F_OK;
    if (tile < 0 || tile % unit != 0)
        return h3f_fail(ctx, H3F_EINVAL, "video VAE: tile is %d, expected 0 or a multiple of %d",
                        tile, unit);
    if (overlap < 0 || overlap >= tile || overlap % unit != 0)
        return h3f_fail(
            ctx, H3F_EINVAL,
            "video VAE: tile_overlap is %d, expected a multiple of %d below the tile's %d", overlap,
            unit, tile);
    return H3F_OK;
}

static int check_config(h3f_context *ctx, const h3f_video_vae_config *config) {
    const h3f_field fields[] = {
        {"latent_channels", config->latent_channels, 1, 65536},
        {"layers", config->layers, 1, 65536},
        {"heads", config->heads, 1, 65536},
        {"head_dim", config->head_dim, 1, 65536},
        {"ffn", config->ffn, 1, 1 << 24},
        {"registers", config->registers, 0, 65536},
        {"spatial_factor", config->spatial_factor, 1, 4096},
        {"temporal_factor", config->temporal_factor, 1, 4096},
    };
    H3F_TRY(h3f_check_fields(ctx, "video VAE", fields, sizeof fields / sizeof *fields));
    if (config->rope_dim < 0 || config->rope_dim % 6 != 0 || config->rope_dim > config->head_dim)
        return h3f_fail(ctx, H3F_EINVAL,
                        "video VAE: rope_dim is %d, expected a multiple of 6 up to head_dim %d",
                        config->rope_dim, config->head_dim);
    if (!(config->rope_theta > 0) || !(config->norm_eps >= 0))
        return h3f_fail(ctx, H3F_EINVAL,
                        "video VAE: rope_theta is %g and norm_eps %g, expected positive numbers",
                        config->rope_theta, (double)config->norm_eps);
    return check_tiles(ctx, config);
}

int h3f_video_vae_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                       const h3f_video_vae_config *config, h3f_video_vae **result) {
    H3F_TRY(check_config(ctx, config));
    h3f_video_vae *vae = h3f_alloc(ctx, sizeof *vae, "the video VAE");
    if (!vae)
        return H3F_ENOMEM;
    vae->ctx = ctx;
    vae->config = *config;
    int code = h3f_clip_rules_init(ctx, config, &vae->rules);
    if (code == H3F_OK)
        code = h3f_video_decoder_open(ctx, checkpoint, config, &vae->decoder);
    if (code != H3F_OK)
        goto fail;
    *result = vae;
    return H3F_OK;
fail:
    h3f_video_vae_close(vae);
    return code;
}

void h3f_video_vae_close(h3f_video_vae *vae) {
    if (!vae)
        return;
    if (vae->decoder.ctx)
        h3f_video_decoder_close(&vae->decoder);
    h3f_free(vae->ctx, vae);
}

/* ---- plan ---- */

int h3f_video_vae_plan(const h3f_video_vae *vae, int32_t latent_frames, int32_t *clips,
                       int32_t *frames, int32_t *max_clip_frames) {
    h3f_clip_plan plan;
    H3F_TRY(h3f_clip_plan_init(vae->ctx, &vae->rules, latent_frames, &plan));
    *clips = plan.clips;
    *frames = plan.frames;
    *max_clip_frames = plan.last_frames;
    if (plan.clips > 1 && plan.last_frames < vae->rules.length)
        *max_clip_frames = vae->rules.length;
    return H3F_OK;
}

int32_t h3f_video_vae_overlap(const h3f_video_vae *vae) {
    return vae->rules.overlap_frames;
}

/* ---- decode ---- */

/* One clip under way: which latents, and where they go. */
typedef struct clip_run {
    const h3f_video_vae *vae;
    const h3f_latent *latent;
    int32_t first; /* latent frame; those beyond the end repeat the last */
    h3f_video_tile tile;
    h3f_mosaic mosaic;
    int64_t done, total; /* progress, in layers */
} clip_run;

static int check_latent(const h3f_video_vae *vae, const h3f_latent *latent) {
    const int32_t most = INT32_MAX / vae->config.spatial_factor;
    if (latent->frames < 1 || latent->height < 1 || latent->width < 1 || latent->height > most ||
        latent->width > most)
        return h3f_fail(vae->ctx, H3F_EINVAL,
                        "video VAE: a latent of %d frames of %d x %d cannot be decoded",
                        latent->frames, latent->height, latent->width);
    return H3F_OK;
}

static void layout(h3f_arena *arena, clip_run *run) {
    h3f_video_tile_layout(&run->vae->decoder, arena, &run->tile);
    run->mosaic.above = h3f_arena_take(arena, h3f_mosaic_above_bytes(&run->mosaic));
    run->mosaic.left = h3f_arena_take(arena, h3f_mosaic_left_bytes(&run->mosaic));
}

/* The tokens of the tile at (row, col), one row of channels each. */
static void gather_tile(const clip_run *run, int32_t row, int32_t col) {
    const h3f_latent *latent = run->latent;
    const h3f_video_tile *tile = &run->tile;
    const int32_t unit = run->vae->config.spatial_factor;
    const int32_t channels = run->vae->config.latent_channels;
    const int32_t top = h3f_axis_start(&run->mosaic.y, row) / unit;
    const int32_t start = h3f_axis_start(&run->mosaic.x, col) / unit;
    const int64_t plane = (int64_t)latent->height * latent->width;
    float *out = tile->latent;
    for (int32_t t = 0; t < tile->frames; t++) {
        const int64_t wanted = (int64_t)run->first + t;
        const int64_t frame = wanted < latent->frames ? wanted : latent->frames - 1;
        for (int32_t y = 0; y < tile->height; y++)
            for (int32_t x = 0; x < tile->width; x++)
                for (int32_t c = 0; c < channels; c++)
                    *out++ = latent->data[(c * (int64_t)latent->frames + frame) * plane +
                                          (int64_t)(top + y) * latent->width + start + x];
    }
}

static int run_tiles(clip_run *run) {
    const h3f_mosaic *mosaic = &run->mosaic;
    H3F_TRY(h3f_video_tile_prepare(&run->vae->decoder, &run->tile));
    for (int32_t row = 0; row < mosaic->y.count; row++)
        for (int32_t col = 0; col < mosaic->x.count; col++) {
            gather_tile(run, row, col);
            H3F_TRY(h3f_video_decoder_run(&run->vae->decoder, &run->tile, run->done, run->total));
            H3F_TRY(h3f_mosaic_put(run->vae->ctx, mosaic, row, col, run->tile.pixels));
            run->done += run->vae->config.layers;
        }
    return H3F_OK;
}

static int run_clip(clip_run *run, int32_t frames) {
    h3f_context *ctx = run->vae->ctx;
    const int32_t unit = run->vae->config.spatial_factor;
    H3F_TRY(h3f_video_tile_init(&run->vae->decoder, frames, run->mosaic.y.size / unit,
                                run->mosaic.x.size / unit, &run->tile));
    h3f_arena arena = {0};
    layout(&arena, run);
    int code = h3f_arena_reserve(ctx, &arena, "decoding a video clip");
    if (code == H3F_OK) {
        layout(&arena, run);
        code = run_tiles(run);
    }
    h3f_arena_release(ctx, &arena);
    return code;
}

static h3f_mosaic mosaic_of(const h3f_video_vae *vae, const h3f_latent *latent, int32_t tile) {
    const h3f_video_vae_config *config = &vae->config;
    const int32_t unit = config->spatial_factor;
    h3f_mosaic mosaic = {.channels = 3, .patch = unit, .factor = config->temporal_factor};
    h3f_axis_init(&mosaic.y, latent->height * unit, tile, config->tile_overlap, unit);
    h3f_axis_init(&mosaic.x, latent->width * unit, tile, config->tile_overlap, unit);
    return mosaic;
}

int h3f_video_vae_decode_clip(h3f_video_vae *vae, const h3f_latent *latent, int32_t clip,
                              float *carry, float *pixels, int32_t *frames) {
    const h3f_clip_rules *rules = &vae->rules;
    h3f_clip_plan plan;
    H3F_TRY(check_latent(vae, latent));
    H3F_TRY(h3f_clip_plan_init(vae->ctx, rules, latent->frames, &plan));
    if (clip < 0 || clip >= plan.clips)
        return h3f_fail(vae->ctx, H3F_EINVAL, "video VAE: clip %d is not one of the %d clips", clip,
                        plan.clips);
    clip_run run = {.vae = vae,
                    .latent = latent,
                    .first = clip * rules->stride,
                    .mosaic = mosaic_of(vae, latent, vae->config.tile)};
    h3f_mosaic *mosaic = &run.mosaic;
    mosaic->last = clip == plan.clips - 1;
    mosaic->length = rules->length;
    mosaic->lead = rules->lead;
    mosaic->overlap = clip > 0 ? rules->overlap_frames : 0;
    mosaic->frames = mosaic->last ? plan.last_frames : rules->length + rules->overlap_frames;
    mosaic->pixels = pixels;
    mosaic->carry = carry;
    mosaic->carry_frames = rules->overlap_frames;
    const int64_t layers = (int64_t)mosaic->y.count * mosaic->x.count * vae->config.layers;
    run.done = clip * layers;
    run.total = plan.clips * layers;
    H3F_TRY(run_clip(&run, rules->stride + rules->overlap));
    *frames = h3f_clip_frames(rules, &plan, clip);
    return H3F_OK;
}

int h3f_video_vae_decode_raw(h3f_video_vae *vae, const h3f_latent *latent, float *pixels) {
    H3F_TRY(check_latent(vae, latent));
    if (latent->frames > INT32_MAX / vae->config.temporal_factor)
        return h3f_fail(vae->ctx, H3F_EINVAL, "video VAE: %d latent frames are too many",
                        latent->frames);
    clip_run run = {.vae = vae, .latent = latent, .mosaic = mosaic_of(vae, latent, 0)};
    run.mosaic.last = true;
    run.mosaic.length = run.mosaic.frames = latent->frames * vae->config.temporal_factor;
    run.mosaic.pixels = pixels;
    run.total = vae->config.layers;
    return run_clip(&run, latent->frames);
}
