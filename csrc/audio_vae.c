#include <math.h>
#include <stdio.h>
#include <string.h>

#include "audio_net.h"
#include "pool.h"

enum {
    MOST_LATENTS = 1 << 20, /* seven hours */
    ADD_VALUES = 1 << 14    /* of an item when signals are added */
};

/* ---- memory of a decode ---- */

/* One stereo channel is decoded at a time, whole: 6400 values a latent in each of the signals. */
typedef struct decode_run {
    const h3f_audio_vae *vae;
    float *input; /* of a stage; then the sum of its blocks */
    float *upsampled;
    float *state; /* of a block */
    float *activated, *convolved;
    float *channel; /* a row of a tap; when there is one */
    void *scratch;
    int64_t latents;
    bool tapped;         /* the first channel is */
    int64_t done, total; /* progress */
} decode_run;

typedef struct sizes {
    int64_t values; /* of a signal */
    size_t scratch;
} sizes;

static void widen(sizes *most, const h3f_conv *conv, int64_t length) {
    const int64_t room = h3f_conv_room(conv, length), in = length * conv->in;
    const size_t scratch = h3f_conv_scratch(conv, length);
    if (room > most->values)
        most->values = room;
    if (in > most->values)
        most->values = in;
    if (scratch > most->scratch)
        most->scratch = scratch;
}

static sizes sizes_for(const h3f_audio_vae *vae, int64_t latents) {
    const h3f_audio_vae_config *config = &vae->config;
    const int32_t in_stage = config->kernels * config->dilations * 2;
    sizes most = {0};
    int64_t length = latents;
    widen(&most, &vae->convs[H3F_DEC_IN_PROJ], length);
    widen(&most, &vae->convs[H3F_CONV_PRE], length);
    for (int32_t stage = 0; stage < config->stages; stage++) {
        widen(&most, &vae->convs[H3F_FIRST_UP + stage], length);
        length *= config->rates[stage];
        for (int32_t n = 0; n < in_stage; n++)
            widen(&most, h3f_block_conv(vae, stage * config->kernels, n), length);
    }
    widen(&most, &vae->convs[H3F_CONV_POST], length);
    return most;
}

static void layout(h3f_arena *arena, decode_run *run) {
    const sizes most = sizes_for(run->vae, run->latents);
    const size_t bytes = (size_t)most.values * sizeof(float);
    float **signals[] = {&run->input, &run->upsampled, &run->state, &run->activated,
                         &run->convolved};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        *signals[i] = h3f_arena_take(arena, bytes);
    const int64_t samples = run->vae->ctx->tap ? run->latents * run->vae->hop : 0;
    run->channel = h3f_arena_take(arena, (size_t)samples * sizeof(float));
    run->scratch = h3f_arena_take(arena, most.scratch);
}

/* ---- decode ---- */

/* The golden tensors are [channels, length]. */
static void tap(const decode_run *run, const char *name, int64_t channels, int64_t length,
                const float *x) {
    for (int64_t c = 0; c < channels && run->tapped; c++) {
        for (int64_t i = 0; i < length; i++)
            run->channel[i] = x[i * channels + c];
        h3f_tap(run->vae->ctx, name, c, 1, channels, length, run->channel);
    }
}

static void tap_numbered(const decode_run *run, const char *name, int32_t number, int64_t channels,
                         int64_t length, const float *x) {
    char numbered[32];
    snprintf(numbered, sizeof numbered, "%s.%d", name, number);
    tap(run, numbered, channels, length, x);
}

static void step(decode_run *run) {
    h3f_progress(run->vae->ctx, "audio_vae", ++run->done, run->total);
}

static int conv(const decode_run *run, const h3f_conv *weights, const float *x, int64_t length,
                float *y, float **result) {
    return h3f_conv_run(run->vae->ctx, weights, x, length, run->scratch, y, result);
}

typedef struct add_job {
    const float *a, *b;
    float *out;
    int64_t count;
    float divisor;
} add_job;

static void add_values(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    const add_job *job = argument;
    const int64_t first = item * ADD_VALUES, left = job->count - first;
    const int64_t end = first + (left < ADD_VALUES ? left : ADD_VALUES);
    for (int64_t i = first; i < end; i++)
        job->out[i] = (job->a[i] + job->b[i]) / job->divisor;
}

/* out = (a + b) / divisor; out may be one of them. */
static int add(const decode_run *run, int64_t count, const float *a, const float *b, float divisor,
               float *out) {
    add_job job = {.a = a, .b = b, .out = out, .count = count, .divisor = divisor};
    return h3f_pool_run(run->vae->ctx, (count + ADD_VALUES - 1) / ADD_VALUES, 0, add_values, &job);
}

/* x: the stage's upsampled signal, which is kept for the next block; state: the result. */
static int run_block(const decode_run *run, int32_t block, const float *x, int64_t length,
                     float *state) {
    h3f_context *ctx = run->vae->ctx;
    const int64_t count = length * h3f_block_conv(run->vae, block, 0)->out;
    float *convolved;
    for (int32_t n = 0; n < 2 * run->vae->config.dilations; n += 2, x = state) {
        H3F_TRY(h3f_activation_run(ctx, h3f_block_activation(run->vae, block, n), x, length,
                                   run->activated));
        H3F_TRY(conv(run, h3f_block_conv(run->vae, block, n), run->activated, length,
                     run->convolved, &convolved));
        H3F_TRY(h3f_activation_run(ctx, h3f_block_activation(run->vae, block, n + 1), convolved,
                                   length, run->activated));
        H3F_TRY(conv(run, h3f_block_conv(run->vae, block, n + 1), run->activated, length,
                     run->convolved, &convolved));
        H3F_TRY(add(run, count, x, convolved, 1.0F, state));
    }
    return H3F_OK;
}

/* The mean of the stage's blocks, into run->input: the first block's state is the sum's beginning.
 */
static int run_blocks(decode_run *run, int32_t stage, const float *x, int64_t length) {
    const int32_t kernels = run->vae->config.kernels;
    const int64_t channels = run->vae->convs[H3F_FIRST_UP + stage].out;
    for (int32_t j = 0; j < kernels; j++) {
        const int32_t block = stage * kernels + j;
        const float divisor = j == kernels - 1 ? (float)kernels : 1.0F;
        float *state = j == 0 ? run->input : run->state;
        H3F_TRY(run_block(run, block, x, length, state));
        tap_numbered(run, "resblock", block, channels, length, state);
        if (j > 0)
            H3F_TRY(add(run, length * channels, run->input, state, divisor, run->input));
        step(run);
    }
    return H3F_OK;
}

static int run_stage(decode_run *run, int32_t stage, int64_t *length) {
    const h3f_conv *up = &run->vae->convs[H3F_FIRST_UP + stage];
    float *x;
    H3F_TRY(conv(run, up, run->input, *length, run->upsampled, &x));
    *length *= up->rate;
    tap_numbered(run, "ups", stage, up->out, *length, x);
    step(run);
    H3F_TRY(run_blocks(run, stage, x, *length));
    if (!h3f_all_finite(run->input, *length * up->out))
        return h3f_fail(run->vae->ctx, H3F_ENUMERIC, "audio VAE: NaN or infinity after stage %d",
                        stage);
    return H3F_OK;
}

/* latent [channels, latents] -> run->input [latents, decoder channels]. */
static int run_head(decode_run *run, const float *latent) {
    const h3f_conv *in = &run->vae->convs[H3F_DEC_IN_PROJ], *pre = &run->vae->convs[H3F_CONV_PRE];
    const int64_t length = run->latents;
    float *x;
    for (int64_t i = 0; i < length; i++)
        for (int64_t c = 0; c < in->in; c++)
            run->state[i * in->in + c] = latent[c * length + i];
    H3F_TRY(conv(run, in, run->state, length, run->upsampled, &x));
    tap(run, "dec_in_proj", in->out, length, x);
    H3F_TRY(conv(run, pre, x, length, run->input, &x));
    tap(run, "conv_pre", pre->out, length, x);
    step(run);
    return H3F_OK;
}

static int run_tail(decode_run *run, int64_t length, float *wave) {
    const h3f_activation *post = &run->vae->activations[H3F_ACTIVATION_POST];
    float *x;
    H3F_TRY(h3f_activation_run(run->vae->ctx, post, run->input, length, run->activated));
    tap(run, "activation_post", post->channels, length, run->activated);
    H3F_TRY(conv(run, &run->vae->convs[H3F_CONV_POST], run->activated, length, run->convolved, &x));
    tap(run, "conv_post", 1, length, x);
    if (!h3f_all_finite(x, length))
        return h3f_fail(run->vae->ctx, H3F_ENUMERIC, "audio VAE: NaN or infinity in the waveform");
    for (int64_t i = 0; i < length; i++)
        wave[i] = fminf(fmaxf(x[i], -1.0F), 1.0F);
    tap(run, "waveform", 1, length, wave);
    step(run);
    return H3F_OK;
}

static int run_channel(decode_run *run, const float *latent, float *wave) {
    int64_t length = run->latents;
    H3F_TRY(run_head(run, latent));
    for (int32_t stage = 0; stage < run->vae->config.stages; stage++)
        H3F_TRY(run_stage(run, stage, &length));
    return run_tail(run, length, wave);
}

static int run_channels(decode_run *run, const float *latent, int32_t channels, float *wave) {
    const h3f_audio_vae_config *config = &run->vae->config;
    const int64_t in = config->latent_channels * run->latents, out = run->latents * run->vae->hop;
    run->total = (int64_t)channels * (2 + config->stages * (1 + config->kernels));
    for (int32_t c = 0; c < channels; c++) {
        run->tapped = c == 0 && run->vae->ctx->tap;
        H3F_TRY(run_channel(run, latent + c * in, wave + c * out));
    }
    return H3F_OK;
}

int h3f_audio_vae_decode(h3f_audio_vae *vae, const float *latent, int32_t channels, int32_t latents,
                         float *wave) {
    if (channels < 1 || latents < 1 || latents > MOST_LATENTS)
        return h3f_fail(vae->ctx, H3F_EINVAL,
                        "audio VAE: %d channels of %d latents cannot be decoded", channels,
                        latents);
    decode_run run = {.vae = vae, .latents = latents};
    h3f_arena arena = {0};
    layout(&arena, &run);
    int code = h3f_arena_reserve(vae->ctx, &arena, "decoding sound");
    if (code == H3F_OK) {
        layout(&arena, &run);
        code = run_channels(&run, latent, channels, wave);
    }
    h3f_arena_release(vae->ctx, &arena);
    return code;
}

/* ---- one activation ---- */

static void transpose(int64_t rows, int64_t cols, const float *in, float *out) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[j * rows + i] = in[i * cols + j];
}

static const h3f_activation *find_activation(const h3f_audio_vae *vae, const char *name) {
    for (int32_t i = 0; i < vae->activation_count; i++)
        if (strcmp(vae->activations[i].name, name) == 0)
            return &vae->activations[i];
    return NULL;
}

/* memory: five signals of 2 * length * channels values. */
static int trace(const h3f_audio_vae *vae, const h3f_activation *activation, const float *signal,
                 int64_t length, float *memory, float *out) {
    const int64_t channels = activation->channels, room = 2 * length * channels;
    float *x = memory, *up = x + room, *active = up + room, *y = active + room, *turned = y + room;
    transpose(channels, length, signal, x);
    H3F_TRY(h3f_activation_trace(vae->ctx, activation, x, length, up, active, y));
    transpose(length, channels, y, out);
    transpose(2 * length, channels, up, turned);
    h3f_tap(vae->ctx, "upsampled", 0, channels, channels, 2 * length, turned);
    transpose(2 * length, channels, active, turned);
    h3f_tap(vae->ctx, "activated", 0, channels, channels, 2 * length, turned);
    h3f_tap(vae->ctx, "filter", 0, 1, 1, H3F_FILTER_TAPS, activation->filter_up);
    return H3F_OK;
}

int h3f_audio_vae_activation(h3f_audio_vae *vae, const char *name, const float *signal,
                             int64_t length, float *out) {
    const h3f_activation *activation = find_activation(vae, name);
    if (!activation)
        return h3f_fail(vae->ctx, H3F_EINVAL, "audio VAE: there is no activation '%s'", name);
    if (length < 1 || length > (int64_t)MOST_LATENTS * vae->hop)
        return h3f_fail(vae->ctx, H3F_EINVAL,
                        "audio VAE: a signal of %lld samples, expected 1 or more",
                        (long long)length);
    const size_t values = (size_t)(2 * length * activation->channels);
    float *memory = h3f_alloc(vae->ctx, 5 * values * sizeof *memory, "an activation");
    if (!memory)
        return H3F_ENOMEM;
    const int code = trace(vae, activation, signal, length, memory, out);
    h3f_free(vae->ctx, memory);
    return code;
}
