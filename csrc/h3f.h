/* h3f: the MiniMax-H3 inference engine.
 *
 * The one public header; cffi reads it too, so it holds declarations only (the preprocessor lines and
 * H3F_API are stripped there). Everything private is in the other headers of this folder.
 *
 * Conventions
 *   - Functions that can fail return H3F_OK or a negative h3f_status; the reason in words is
 *     h3f_error(ctx). Results go through the last pointers, which are untouched on failure unless the
 *     function says otherwise.
 *   - Arrays are contiguous, row-major, native-endian; a shape is written [outermost, ..., innermost].
 *     "Rows" are tokens. All arrays are the caller's and are only read or written during the call.
 *   - A context and the objects opened on it are used by one thread at a time; h3f_cancel alone may be
 *     called from anywhere, at any time. Two contexts are independent and give the same numbers.
 *   - H3F_ECANCELLED leaves outputs undefined and the object ready for the next call.
 *   - An object keeps its context and its checkpoint in use: free in reverse order of opening.
 */
#ifndef H3F_H
#define H3F_H

#include <stddef.h>
#include <stdint.h>

#ifndef H3F_API
#define H3F_API __attribute__((visibility("default")))
#endif

typedef enum h3f_status {
    H3F_OK = 0,
    H3F_ECANCELLED = -1, /* h3f_cancel was called */
    H3F_ENOMEM = -2,     /* an allocation failed; the message says how much was wanted */
    H3F_EINVAL = -3,     /* an argument is out of range */
    H3F_EIO = -10,       /* a file cannot be opened or mapped */
    H3F_EFORMAT = -11,   /* a file is not a well-formed safetensors file */
    H3F_ETENSOR = -12,   /* a tensor is missing, unknown or has the wrong shape */
    H3F_EDTYPE = -13,    /* a tensor has a type this engine does not compute with */
    H3F_ENUMERIC = -20   /* NaN or infinity appeared; the message names block and stage */
} h3f_status;

/* ---- context ------------------------------------------------------------------------------- */

typedef struct h3f_context h3f_context;

typedef enum h3f_isa {
    H3F_ISA_BEST = 0, /* the widest this processor has */
    H3F_ISA_SCALAR = 1,
    H3F_ISA_AVX2 = 2,
    H3F_ISA_AVX512 = 3,
    H3F_ISA_NEON = 4
} h3f_isa;

typedef struct h3f_options {
    int32_t threads; /* 0: one per performance core */
    int32_t isa;     /* h3f_isa; one this processor lacks is refused with H3F_EINVAL */
} h3f_options;

H3F_API void h3f_options_default(h3f_options *options);

/* options may be NULL. On failure the message is h3f_error(NULL), kept per thread. */
H3F_API int h3f_context_new(const h3f_options *options, h3f_context **ctx);
H3F_API void h3f_context_free(h3f_context *ctx); /* NULL is allowed */

/* The reason of the last failure on ctx; "" before any. Valid until the next call on ctx. */
H3F_API const char *h3f_error(const h3f_context *ctx);

/* Ask the call that runs on ctx to stop: seen between two tiles of work. Sticky until cleared, so a
 * cancel that comes between two calls is not lost. Async-signal-safe. */
H3F_API void h3f_cancel(h3f_context *ctx);
H3F_API void h3f_cancel_clear(h3f_context *ctx);
H3F_API int32_t h3f_cancelled(const h3f_context *ctx);

/* `stage` is a static string ("text_encoder", "vision", "adaln", "denoise", "video_vae",
 * "video_encoder", "audio_vae"); done counts
 * layers, blocks or tiles of the running call up to total. Called on the calling thread. */
typedef void (*h3f_progress_fn)(void *user, const char *stage, int64_t done, int64_t total);
H3F_API void h3f_on_progress(h3f_context *ctx, h3f_progress_fn fn, void *user); /* fn may be NULL */

/* Intermediate tensors, for tests: rows row .. row+rows-1 of the [total_rows, cols] tensor `name`.
 * A tensor computed in chunks arrives in several calls. Names are those of tests/golden. */
typedef void (*h3f_tap_fn)(void *user, const char *name, int64_t row, int64_t rows,
                           int64_t total_rows, int64_t cols, const float *data);
H3F_API void h3f_on_tap(h3f_context *ctx, h3f_tap_fn fn, void *user); /* fn may be NULL */

/* Bytes allocated by the engine (arenas, vectors, buffers; not the mapped weights). */
H3F_API int64_t h3f_memory_now(const h3f_context *ctx);
H3F_API int64_t h3f_memory_peak(const h3f_context *ctx);
H3F_API void h3f_memory_peak_reset(h3f_context *ctx);

H3F_API int32_t h3f_threads(const h3f_context *ctx);
H3F_API const char *h3f_isa_name(const h3f_context *ctx); /* "avx512", ... */
H3F_API const char *h3f_version(void);

/* ---- checkpoint: tensors in mapped files --------------------------------------------------- */

typedef enum h3f_dtype {
    H3F_F32 = 0,
    H3F_F16 = 1,
    H3F_BF16 = 2,
    H3F_F64 = 3,
    H3F_I8 = 4,
    H3F_U8 = 5,
    H3F_I16 = 6,
    H3F_U16 = 7,
    H3F_I32 = 8,
    H3F_U32 = 9,
    H3F_I64 = 10,
    H3F_U64 = 11,
    H3F_BOOL = 12,
    H3F_F8_E4M3 = 13,
    H3F_F8_E5M2 = 14
} h3f_dtype;

typedef enum h3f_component {
    H3F_ANY = 0, /* names as in the file, nothing checked */
    H3F_TEXT_ENCODER = 1,
    H3F_TRANSFORMER = 2,
    H3F_VIDEO_VAE = 3,
    H3F_AUDIO_VAE = 4
} h3f_component;

typedef enum h3f_layout { H3F_LAYOUT_OFFICIAL = 0, H3F_LAYOUT_DIFFUSERS = 1 } h3f_layout;

typedef struct h3f_checkpoint h3f_checkpoint;

typedef struct h3f_tensor {
    const char *name; /* canonical: the official spelling, whatever the file calls it */
    const char *file; /* path it came from */
    int32_t dtype;    /* h3f_dtype */
    int32_t ndim;
    int64_t shape[8];
    const void *data; /* in the mapping; aligned to nothing in particular */
    int64_t bytes;
} h3f_tensor;

/* Map `count` safetensors files (the shards of one component) and index their tensors. Reads the
 * headers only. Fails, naming the file, when one is missing, a folder, truncated or malformed, when two
 * files hold the same tensor, or (component given) when a tensor is unknown to that component.
 * Paths are UTF-8 bytes. */
H3F_API int h3f_checkpoint_open(h3f_context *ctx, int32_t component, const char *const *paths,
                                int32_t count, h3f_checkpoint **checkpoint);
H3F_API void h3f_checkpoint_close(h3f_checkpoint *checkpoint); /* NULL is allowed */
H3F_API int32_t h3f_checkpoint_layout(const h3f_checkpoint *checkpoint);
H3F_API int64_t h3f_checkpoint_count(const h3f_checkpoint *checkpoint);
H3F_API int64_t h3f_checkpoint_bytes(const h3f_checkpoint *checkpoint); /* of all tensors */
/* index 0 .. count-1, in file order; H3F_EINVAL beyond. */
H3F_API int h3f_checkpoint_tensor(const h3f_checkpoint *checkpoint, int64_t index, h3f_tensor *tensor);
/* H3F_ETENSOR, naming the tensor and the files searched, when there is none of that name. */
H3F_API int h3f_checkpoint_find(const h3f_checkpoint *checkpoint, const char *name, h3f_tensor *tensor);

/* ---- text encoder: Qwen3-VL's language model, hidden state before the unused last layers --- */

typedef struct h3f_text_encoder h3f_text_encoder;

typedef struct h3f_text_encoder_config {
    int32_t hidden, heads, kv_heads, head_dim, ffn, vocab;
    int32_t layers; /* layers to run: 50 of the release's 64 */
    float rms_eps;
    double rope_theta;
} h3f_text_encoder_config;

/* Checks every tensor's shape against the config. The checkpoint stays the caller's. */
H3F_API int h3f_text_encoder_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                                  const h3f_text_encoder_config *config, h3f_text_encoder **encoder);
H3F_API void h3f_text_encoder_close(h3f_text_encoder *encoder);
/* ids: [count] in 0 .. vocab-1, text only; hidden: [count, config.hidden] f32, the residual stream after
 * the last layer run, without a final norm. count may be 0. */
H3F_API int h3f_text_encoder_encode(h3f_text_encoder *encoder, const int32_t *ids, int64_t count,
                                    float *hidden);

/* ---- transformer (DiT) --------------------------------------------------------------------- */

typedef struct h3f_dit h3f_dit;
typedef struct h3f_dit_run h3f_dit_run; /* one request: its text, layout and modulation tables */

typedef struct h3f_dit_config {
    int32_t hidden, layers, refiner_layers, heads, head_dim, ffn;
    int32_t video_dim; /* values of a video row: latent channels x patch volume */
    int32_t audio_dim; /* values of an audio row */
    int32_t text_dim;
    int32_t freq_dim, time_hidden, time_dim;
    int32_t rope_freqs; /* frequencies per axis; 6 x rope_freqs <= head_dim channels are rotated */
    double rope_theta;
    float norm_eps, qk_norm_eps, final_norm_eps;
} h3f_dit_config;

enum { H3F_TAG_VIDEO = 0, H3F_TAG_TEXT = 1, H3F_TAG_AUDIO = 2 };

/* The packed sequence. The three index lists together name every row exactly once. */
typedef struct h3f_sequence {
    int64_t rows, text_rows, video_rows, audio_rows;
    const double *positions;      /* [rows, 3]: t, h, w */
    const int32_t *tags;          /* [rows], H3F_TAG_*: selects the modulation */
    const int32_t *text_indices;  /* [text_rows] packed position of each text row */
    const int32_t *video_indices; /* [video_rows] conditions first, then the target */
    const int32_t *audio_indices; /* [audio_rows] */
} h3f_sequence;

/* A timestep that will occur in the run, and the tags of the rows that will have it. */
typedef struct h3f_time {
    float t;          /* 0 noise .. 1 data */
    uint32_t tag_mask; /* bit H3F_TAG_* set: rows with that tag use this t */
} h3f_time;

H3F_API int h3f_dit_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                         const h3f_dit_config *config, h3f_dit **dit);
H3F_API void h3f_dit_close(h3f_dit *dit);

/* Everything that does not change from step to step: refined text, rotary tables, and the AdaLN tables
 * of all `times` (so that their weights are read once per run, not once per step).
 * text: [sequence->text_rows, text_dim] f32. The sequence is copied. */
H3F_API int h3f_dit_begin(h3f_dit *dit, const h3f_sequence *sequence, const float *text,
                          const h3f_time *times, int32_t time_count, h3f_dit_run **run);
H3F_API void h3f_dit_end(h3f_dit_run *run);

/* One forward pass. row_times: [rows] index into `times`; video: [video_rows, video_dim];
 * audio: [audio_rows, audio_dim]; the velocities (data-ward, x0 - noise) have the same shapes, rows of
 * conditions included. H3F_ENUMERIC when a block's output is not finite. */
H3F_API int h3f_dit_step(h3f_dit_run *run, const int32_t *row_times, const float *video,
                         const float *audio, float *video_velocity, float *audio_velocity);

/* ---- schedule and noise -------------------------------------------------------------------- */

/* points grid points, the terminal 0 included (points - 1 evaluations), shifted by `shift`, equal
 * neighbours dropped, so that sigmas fall from 1 to 0. sigmas: [points]; *count how many were written.
 * points >= 2, shift 0.001 .. 1e6. */
H3F_API int h3f_sigmas(h3f_context *ctx, float shift, int32_t points, float *sigmas, int32_t *count);

/* sample += the Euler step from sigmas[step] to sigmas[step + 1], in place. sample, velocity: [count]. */
H3F_API void h3f_euler_step(const float *sigmas, int32_t step, const float *velocity, int64_t count,
                            float *sample);

/* Standard normal numbers in the order in which torch's CPU generator draws them. */
typedef struct h3f_noise h3f_noise;
H3F_API int h3f_noise_new(h3f_context *ctx, uint64_t seed, h3f_noise **noise);
H3F_API void h3f_noise_free(h3f_noise *noise);
/* One torch.randn call of `count` elements: below 16 elements torch draws another way than above. */
H3F_API void h3f_noise_draw(h3f_noise *noise, int64_t count, float *out);

/* ---- video VAE ------------------------------------------------------------------------------ */

typedef struct h3f_video_vae h3f_video_vae;

typedef struct h3f_video_vae_config {
    int32_t latent_channels;
    int32_t layers, heads, head_dim, ffn; /* of the decoder; hidden = heads x head_dim */
    int32_t registers;
    int32_t spatial_factor, temporal_factor; /* 16, 4 */
    int32_t clip_length, token_drop;         /* 17, 3 */
    int32_t rope_dim;                        /* rotated channels of a head, a multiple of 6 */
    double rope_theta;
    float norm_eps;
    int32_t tile, tile_overlap; /* pixels; tile 0: no tiling */
} h3f_video_vae_config;

H3F_API int h3f_video_vae_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                               const h3f_video_vae_config *config, h3f_video_vae **vae);
H3F_API void h3f_video_vae_close(h3f_video_vae *vae);

/* How decoding `latent_frames` goes: that many clips, that many frames in all, and the most frames one
 * clip yields (the last one also yields the blended tail). H3F_EINVAL for fewer than 3 latent frames. */
H3F_API int h3f_video_vae_plan(const h3f_video_vae *vae, int32_t latent_frames, int32_t *clips,
                               int32_t *frames, int32_t *max_clip_frames);

/* The latent of a whole video, de-normalised: [latent_channels, frames, height, width] f32. */
typedef struct h3f_latent {
    const float *data;
    int32_t frames, height, width;
} h3f_latent;

/* Decode clip `clip` (0 .. clips-1, in order). carry: [3, overlap frames, H, W] f32, the tail of the clip
 * before, written for the next (overlap = h3f_video_vae_overlap); ignored on input for clip 0.
 * pixels: room for [3, max_clip_frames, H, W] f32; filled as [3, *frames, H, W], ImageNet-normalised, not
 * clamped. H = height x spatial_factor, W likewise. Progress and cancel by tile and layer. */
H3F_API int h3f_video_vae_decode_clip(h3f_video_vae *vae, const h3f_latent *latent, int32_t clip,
                                      float *carry, float *pixels, int32_t *frames);
H3F_API int32_t h3f_video_vae_overlap(const h3f_video_vae *vae);

/* One decoder call without temporal handling or tiling, for tests.
 * pixels: [3, temporal_factor x frames, H, W]. */
H3F_API int h3f_video_vae_decode_raw(h3f_video_vae *vae, const h3f_latent *latent, float *pixels);

/* [3, frames, height, width] f32 ImageNet-normalised -> [frames, height, width, 3] u8, rounded.
 * A value that is not finite is H3F_ENUMERIC. */
H3F_API int h3f_pixels_to_rgb(h3f_context *ctx, const float *pixels, int32_t frames, int32_t height,
                              int32_t width, uint8_t *rgb);

/* ---- video VAE encoder: pictures and clips to the posterior of their latent ------------------ */

typedef struct h3f_video_encoder h3f_video_encoder;

enum { H3F_VIDEO_MAX_LEVELS = 8 };

typedef struct h3f_video_encoder_config {
    int32_t latent_channels;
    int32_t levels;
    int32_t channels[8];
    int32_t spatial[8];  /* by what a level divides the sides: 1 or 2 */
    int32_t temporal[8]; /* and the frames, rounded up; more than 1 only where the sides shrink */
    int32_t resnets;     /* residual blocks of a level */
    int32_t groups;      /* of the norms; divides the channels of every level */
    float norm_eps;
    int32_t clip_length, token_drop; /* 17, 3 */
    int32_t tile, tile_overlap;      /* pixels; tile 0: no tiling */
} h3f_video_encoder_config;

/* Checks every tensor of the encoder against the config. The checkpoint stays the caller's. */
H3F_API int h3f_video_encoder_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                                   const h3f_video_encoder_config *config,
                                   h3f_video_encoder **encoder);
H3F_API void h3f_video_encoder_close(h3f_video_encoder *encoder); /* NULL is allowed */

/* A picture (frames 1) or a clip: [frames, height, width, 3] u8. */
typedef struct h3f_rgb {
    const uint8_t *data;
    int32_t frames, height, width;
} h3f_rgb;

/* Latent frames that so many frames become: 1 for one; else 5 for every 17 begun, less the 3 dropped
 * at the end. */
H3F_API int32_t h3f_video_encoder_latents(const h3f_video_encoder *encoder, int32_t frames);

/* The posterior: mean and log variance (clamped to -30 .. 20), each [latent_channels, latents,
 * height / 16, width / 16] f32, in the VAE's own scale. The sides are multiples of 16, and of 32 or
 * more. A clip's last frame is repeated up to whole clips of 17. Progress and cancel by tile and
 * level. */
H3F_API int h3f_video_encoder_encode(h3f_video_encoder *encoder, const h3f_rgb *rgb, float *mean,
                                     float *logvar);

/* ---- audio VAE ------------------------------------------------------------------------------ */

typedef struct h3f_audio_vae h3f_audio_vae;

enum { H3F_AUDIO_MAX_STAGES = 8, H3F_AUDIO_MAX_KERNELS = 4, H3F_AUDIO_MAX_DILATIONS = 4 };

typedef struct h3f_audio_vae_config {
    int32_t latent_channels;
    int32_t stages;
    int32_t rates[8];      /* upsampling of each stage; their product is the hop (800) */
    int32_t kernels;       /* resblocks per stage */
    int32_t kernel_sizes[4];
    int32_t dilations;
    int32_t dilation_sizes[4];
} h3f_audio_vae_config;

H3F_API int h3f_audio_vae_open(h3f_context *ctx, const h3f_checkpoint *checkpoint,
                               const h3f_audio_vae_config *config, h3f_audio_vae **vae);
H3F_API void h3f_audio_vae_close(h3f_audio_vae *vae);
H3F_API int32_t h3f_audio_vae_hop(const h3f_audio_vae *vae); /* samples per latent */
/* latent: [channels, latent_channels, latents] de-normalised; wave: [channels, latents x hop], -1 .. 1. */
H3F_API int h3f_audio_vae_decode(h3f_audio_vae *vae, const float *latent, int32_t channels,
                                 int32_t latents, float *wave);
/* The alias-free activation `name` ("decoder.resblocks.0.activations.0") alone, for tests.
 * signal, out: [channels, length], channels as in the checkpoint. */
H3F_API int h3f_audio_vae_activation(h3f_audio_vae *vae, const char *name, const float *signal,
                                     int64_t length, float *out);

#endif
