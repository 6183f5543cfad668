/* From frames to the posterior of their latent: clips along time, tiles in space.
 * Source: docs/model.md, "Video VAE encoder". */
#include <math.h>
#include <string.h>

#include "video_encoder_net.h"
#include "video_vae_tiles.h"

struct h3f_video_encoder {
    h3f_context *ctx;
    h3f_video_encoder_config config;
    h3f_video_encoder_net net;
    int32_t clip_latents; /* that a whole clip becomes */
};

/* ImageNet's channel statistics, as in pixels.c. */
static const float pixel_mean[3] = {0.485F, 0.456F, 0.406F};
static const float pixel_std[3] = {0.229F, 0.224F, 0.225F};

/* ---- open ---- */

static int check_level(h3f_context *ctx, const h3f_video_encoder_config *c, int32_t i) {
    const bool halves = c->spatial[i] == 2;
    if (c->channels[i] < 1 || c->channels[i] > 65536 || c->channels[i] % c->groups != 0)
        return h3f_fail(ctx, H3F_EINVAL,
                        "video VAE: encoder level %d has %d channels, expected a multiple of the "
                        "%d norm groups",
                        i, c->channels[i], c->groups);
    if ((!halves && c->spatial[i] != 1) || c->temporal[i] < 1 || c->temporal[i] > 64 ||
        (!halves && c->temporal[i] > 1))
        return h3f_fail(ctx, H3F_EINVAL,
                        "video VAE: encoder level %d divides the sides by %d and the frames by %d, "
                        "expected 1 and 1, or 2 and 1 to 64",
                        i, c->spatial[i], c->temporal[i]);
    return H3F_OK;
}

static int check_config(h3f_context *ctx, const h3f_video_encoder_config *c) {
    const h3f_field fields[] = {
        {"latent_channels", c->latent_channels, 1, 65536},
        {"encoder levels", c->levels, 1, H3F_VIDEO_MAX_LEVELS},
        {"encoder blocks of a level", c->resnets, 1, 64},
        {"norm groups", c->groups, 1, 65536},
        {"clip_length", c->clip_length, 1, 65536},
        {"token_drop", c->token_drop, 0, 65536},
        {"tile", c->tile, 0, 1 << 20},
        {"tile_overlap", c->tile_overlap, 0, 1 << 20},
    };
    H3F_TRY(h3f_check_fields(ctx, "video VAE", fields, sizeof fields / sizeof *fields));
    if (!(c->norm_eps >= 0))
        return h3f_fail(ctx, H3F_EINVAL, "video VAE: norm_eps is %g, expected a positive number",
                        (double)c->norm_eps);
    for (int32_t i = 0; i < c->levels; i++)
        H3F_TRY(check_level(ctx, c, i));
    return H3F_OK;
}

static int check_tiles(const h3f_video_encoder *encoder) {
    const h3f_video_encoder_config *c = &encoder->config;
    const int32_t unit = encoder->net.factor;
    if (c->tile != 0 && (c->tile % unit != 0 || c->tile_overlap % unit != 0 ||
                         c->tile_overlap >= c->tile))
        return h3f_fail(encoder->ctx, H3F_EINVAL,
                        "video VAE: tile %d and tile_overlap %d, expected multiples of %d, the "
                        "second the smaller one",
                        c->tile, c->tile_overlap, unit);
    if (c->token_drop >= encoder->clip_latents)
        return h3f_fail(encoder->ctx, H3F_EINVAL,
                        "video VAE: token_drop is %d, expected less than the %d latents of a clip",
                        c->token_drop, encoder->clip_latents);
    return H3F_OK;
}

static int open_net(const h3f_checkpoint *checkpoint, h3f_video_encoder *encoder) {
    const h3f_video_encoder_config *c = &encoder->config;
    H3F_TRY(h3f_video_encoder_net_open(encoder->ctx, checkpoint, c, &encoder->net));
    encoder->clip_latents = c->clip_length;
    for (int32_t i = 0; i < c->levels; i++)
        encoder->clip_latents = (encoder->clip_latents - 1) / c->temporal[i] + 1;
    return check_tiles(encoder);
}

int h3f_video_encoder_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                           const h3f_video_encoder_config *config, h3f_video_encoder **encoder) {
    H3F_TRY(check_config(ctx, config));
    h3f_video_encoder *opened = h3f_alloc(ctx, sizeof *opened, "the video encoder");
    if (!opened)
        return H3F_ENOMEM;
    opened->ctx = ctx;
    opened->config = *config;
    const int code = open_net(checkpoint, opened);
    if (code != H3F_OK) {
        h3f_video_encoder_close(opened);
        return code;
    }
    *encoder = opened;
    return H3F_OK;
}

void h3f_video_encoder_close(h3f_video_encoder *encoder) {
    if (!encoder)
        return;
    h3f_video_encoder_net_close(&encoder->net);
    h3f_free(encoder->ctx, encoder);
}

/* ---- encode ---- */

static int32_t clips_of(const h3f_video_encoder *encoder, int32_t frames) {
    return frames == 1 ? 1 : (frames - 1) / encoder->config.clip_length + 1;
}

int32_t h3f_video_encoder_latents(const h3f_video_encoder *encoder, int32_t frames) {
    if (frames <= 1)
        return frames;
    return clips_of(encoder, frames) * encoder->clip_latents - encoder->config.token_drop;
}

/* One call under way. */
typedef struct encode_run {
    h3f_video_encoder *encoder;
    const h3f_rgb *rgb;
    h3f_mosaic mosaic; /* of a clip's moments, in latents */
    h3f_video_encoding encoding;
    int32_t clips, latents; /* latents: of the result */
    float *mean, *logvar;
    int64_t done, total; /* progress, in levels */
    h3f_arena arena;
} encode_run;

static void layout(encode_run *run) {
    h3f_mosaic *mosaic = &run->mosaic;
    const int64_t area = (int64_t)(run->rgb->height / run->encoder->net.factor) *
                         (run->rgb->width / run->encoder->net.factor);
    h3f_video_encoding_layout(&run->encoder->net, &run->arena, &run->encoding);
    mosaic->pixels = h3f_take_floats(&run->arena, (int64_t)mosaic->channels * mosaic->frames, area);
    mosaic->above = h3f_arena_take(&run->arena, h3f_mosaic_above_bytes(mosaic));
    mosaic->left = h3f_arena_take(&run->arena, h3f_mosaic_left_bytes(mosaic));
}

/* The pixels of the tile at (row, col) of a clip; frames beyond the end repeat the last. */
static void gather_tile(const encode_run *run, int32_t clip, int32_t row, int32_t col) {
    const h3f_rgb *rgb = run->rgb;
    const h3f_volume size = run->encoding.pixels;
    const int64_t top = (int64_t)h3f_axis_start(&run->mosaic.y, row) * run->encoder->net.factor;
    const int64_t start = (int64_t)h3f_axis_start(&run->mosaic.x, col) * run->encoder->net.factor;
    float *out = run->encoding.rgb;
    for (int32_t t = 0; t < size.frames; t++) {
        const int64_t wanted = (int64_t)clip * run->encoder->config.clip_length + t;
        const int64_t frame = h3f_min(wanted, rgb->frames - 1);
        for (int64_t y = top; y < top + size.height; y++) {
            const uint8_t *from = rgb->data + ((frame * rgb->height + y) * rgb->width + start) * 3;
            for (int64_t i = 0; i < (int64_t)size.width * 3; i++)
                *out++ = ((float)from[i] / 255.0F - pixel_mean[i % 3]) / pixel_std[i % 3];
        }
    }
}

/* A clip's moments, [moments, frames, h, w], into their place in mean and logvar. */
static void put_clip(const encode_run *run, int32_t clip) {
    const h3f_mosaic *mosaic = &run->mosaic;
    const int64_t area = (int64_t)(run->rgb->height / run->encoder->net.factor) *
                         (run->rgb->width / run->encoder->net.factor);
    const int64_t first = (int64_t)clip * mosaic->frames;
    const int64_t kept = h3f_min(mosaic->frames, run->latents - first);
    const int32_t channels = run->encoder->config.latent_channels;
    for (int32_t c = 0; c < channels && kept > 0; c++) {
        const float *from = mosaic->pixels + (int64_t)c * mosaic->frames * area;
        const float *logvar = from + (int64_t)channels * mosaic->frames * area;
        const int64_t place = ((int64_t)c * run->latents + first) * area;
        memcpy(run->mean + place, from, (size_t)(kept * area) * sizeof(float));
        for (int64_t i = 0; i < kept * area; i++)
            run->logvar[place + i] = fminf(fmaxf(logvar[i], -30.0F), 20.0F);
    }
}

static int run_clips(encode_run *run) {
    const h3f_mosaic *mosaic = &run->mosaic;
    const h3f_video_encoder_net *net = &run->encoder->net;
    H3F_TRY(h3f_video_encoding_prepare(net));
    for (int32_t clip = 0; clip < run->clips; clip++) {
        for (int32_t row = 0; row < mosaic->y.count; row++)
            for (int32_t col = 0; col < mosaic->x.count; col++) {
                gather_tile(run, clip, row, col);
                H3F_TRY(h3f_video_encoder_net_run(net, &run->encoding, run->done, run->total));
                H3F_TRY(
                    h3f_mosaic_put(run->encoder->ctx, mosaic, row, col, run->encoding.moments));
                run->done += net->config.levels;
            }
        put_clip(run, clip);
    }
    return H3F_OK;
}

static int check_rgb(const h3f_video_encoder *encoder, const h3f_rgb *rgb) {
    const int32_t unit = encoder->net.factor;
    if (rgb->frames < 1 || rgb->frames > 1 << 20 || rgb->height < 1 || rgb->width < 1 ||
        rgb->height % unit != 0 || rgb->width % unit != 0)
        return h3f_fail(encoder->ctx, H3F_EINVAL,
                        "video VAE: %d frames of %d x %d pixels cannot be encoded, the sides must "
                        "be multiples of %d",
                        rgb->frames, rgb->width, rgb->height, unit);
    return H3F_OK;
}

static int begin(encode_run *run) {
    h3f_video_encoder *encoder = run->encoder;
    const h3f_video_encoder_config *c = &encoder->config;
    const int32_t unit = encoder->net.factor;
    h3f_mosaic *mosaic = &run->mosaic;
    *mosaic = (h3f_mosaic){
        .channels = encoder->net.moments, .patch = 1, .factor = 1, .last = true};
    h3f_axis_init(&mosaic->y, run->rgb->height / unit, c->tile / unit, c->tile_overlap / unit, 1);
    h3f_axis_init(&mosaic->x, run->rgb->width / unit, c->tile / unit, c->tile_overlap / unit, 1);
    const h3f_volume tile = {.frames = run->rgb->frames == 1 ? 1 : c->clip_length,
                             .height = mosaic->y.size * unit,
                             .width = mosaic->x.size * unit};
    H3F_TRY(h3f_video_encoding_init(&encoder->net, tile, &run->encoding));
    mosaic->length = mosaic->frames = run->encoding.latent.frames;
    run->clips = clips_of(encoder, run->rgb->frames);
    run->latents = h3f_video_encoder_latents(encoder, run->rgb->frames);
    run->total = (int64_t)run->clips * mosaic->y.count * mosaic->x.count * c->levels;
    layout(run);
    H3F_TRY(h3f_arena_reserve(encoder->ctx, &run->arena, "encoding a picture"));
    layout(run);
    return H3F_OK;
}

int h3f_video_encoder_encode(h3f_video_encoder *encoder, const h3f_rgb *rgb, float *mean,
                             float *logvar) {
    H3F_TRY(check_rgb(encoder, rgb));
    H3F_TRY(h3f_poll(encoder->ctx));
    encode_run run = {.encoder = encoder, .rgb = rgb, .mean = mean, .logvar = logvar};
    int code = begin(&run);
    if (code == H3F_OK)
        code = run_clips(&run);
    h3f_arena_release(encoder->ctx, &run.arena);
    return code;
}
