/* dit_file: a small transformer made on the spot, in either layout, and what it computes by the
 * formulas of docs/model.md, in double precision. */
#ifndef H3F_TEST_DIT_FILE_H
#define H3F_TEST_DIT_FILE_H

#include "block_reference.h"
#include "tensor_file.h"

/* ---- the official file ---- */

#define D_BLOCKS "blocks"
#define D_REFINER "token_refiner.blocks"

/* list: D_BLOCKS or D_REFINER. */
static inline const char *d_name(const char *list, int32_t block, const char *leaf) {
    static char name[96];
    snprintf(name, sizeof name, "%s.%d.%s", list, block, leaf);
    return name;
}

static inline void d_matrix(t_file *file, const char *name, int64_t rows, int64_t cols) {
    t_add(file, 1.0F / sqrtf((float)cols), 0, name, 2, (const int64_t[]){rows, cols});
}

static inline void d_linear(t_file *file, const char *module, int64_t rows, int64_t cols) {
    char name[128];
    snprintf(name, sizeof name, "%s.weight", module);
    d_matrix(file, name, rows, cols);
    snprintf(name, sizeof name, "%s.bias", module);
    t_add(file, 0.3F, 0, name, 1, &rows);
}

static inline void d_add_block(t_file *file, const h3f_dit_config *c, const char *list, int32_t i) {
    const int64_t hidden = c->hidden, inner = (int64_t)c->heads * c->head_dim, size = c->head_dim;
    t_add(file, 0.2F, 1, d_name(list, i, "norm1.weight"), 1, &hidden);
    t_add(file, 0.2F, 1, d_name(list, i, "norm2.weight"), 1, &hidden);
    t_add(file, 0.2F, 1, d_name(list, i, "attn.q_norm.weight"), 1, &size);
    t_add(file, 0.2F, 1, d_name(list, i, "attn.k_norm.weight"), 1, &size);
    d_matrix(file, d_name(list, i, "attn.qkv_proj.weight"), 3 * inner, hidden);
    d_matrix(file, d_name(list, i, "attn.out_proj.weight"), hidden, inner);
    d_matrix(file, d_name(list, i, "mlp.fc1.weight"), 2 * (int64_t)c->ffn, hidden);
    d_matrix(file, d_name(list, i, "mlp.fc2.weight"), hidden, c->ffn);
}

static inline void d_make(t_file *file, const h3f_dit_config *c) {
    const int64_t hidden = c->hidden;
    t_clear(file);
    file->draw = (h_draw){21};
    d_linear(file, "video_patch_proj", hidden, c->video_dim);
    d_linear(file, "audio_patch_proj", hidden, c->audio_dim);
    d_linear(file, "condition_proj", hidden, c->text_dim);
    d_linear(file, "time_embedder.proj_in", c->time_hidden, c->freq_dim);
    d_linear(file, "time_embedder.proj_out", c->time_dim, c->time_hidden);
    for (int32_t i = 0; i < c->refiner_layers; i++)
        d_add_block(file, c, D_REFINER, i);
    t_add(file, 0.2F, 1, "token_refiner.final_norm.weight", 1, &hidden);
    for (int32_t i = 0; i < c->layers; i++) {
        d_add_block(file, c, D_BLOCKS, i);
        d_linear(file, d_name(D_BLOCKS, i, "adaln_proj.linear"), 18 * hidden, c->time_dim);
    }
    t_add(file, 0.2F, 1, "final_layer.norm.weight", 1, &hidden);
    d_linear(file, "final_layer.adaln_proj.linear", 2 * hidden, c->time_dim);
    d_linear(file, "final_layer.video_out", c->video_dim, hidden);
    d_linear(file, "final_layer.audio_out", c->audio_dim, hidden);
}

/* ---- the parts of fused tensors ---- */

/* q, k or v (0 .. 2): each head's rows follow those of the same head's predecessor. */
static inline void d_qkv(const h3f_dit_config *c, const float *fused, int part, float *out) {
    const int64_t size = (int64_t)c->head_dim * c->hidden;
    for (int64_t head = 0; head < c->heads; head++)
        memcpy(out + head * size, fused + (3 * head + part) * size, (size_t)size * sizeof(float));
}

static inline void d_rename(t_tensor *tensor, const char *from, const char *to) {
    char name[sizeof tensor->name];
    const char *at = strstr(tensor->name, from);
    if (!at)
        return;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - tensor->name), tensor->name, to,
             at + strlen(from));
    memcpy(tensor->name, name, sizeof name);
}

static inline void d_split_qkv(t_file *file, const h3f_dit_config *c, int32_t at) {
    static const char *const leaves[] = {"to_q", "to_k", "to_v"};
    const t_tensor fused = file->tensors[at];
    const int64_t shape[] = {(int64_t)c->heads * c->head_dim, c->hidden};
    for (int part = 0; part < 3; part++) {
        t_tensor *tensor = t_add(file, 0, 0, fused.name, 2, shape);
        d_qkv(c, fused.values, part, tensor->values);
        d_rename(tensor, "qkv_proj", leaves[part]);
    }
    t_drop(file, fused.name);
}

static inline void d_swap_halves(t_tensor *fused) {
    const int64_t half = t_count(fused) / 2;
    for (int64_t i = 0; i < half; i++) {
        const float gate = fused->values[i];
        fused->values[i] = fused->values[half + i];
        fused->values[half + i] = gate;
    }
}

/* The same weights as diffusers stores them. */
static inline void d_to_diffusers(t_file *file, const h3f_dit_config *c) {
    static const char *const names[][2] = {
        {"token_refiner.blocks.", "token_refiner.refiner_blocks."},
        {"attn.q_norm", "attn.norm_q"},
        {"attn.k_norm", "attn.norm_k"},
        {"attn.out_proj", "attn.to_out.0"},
        {"mlp.fc1", "ff.net.0.proj"},
        {"mlp.fc2", "ff.net.2"},
        {"video_patch_proj", "proj_in"},
        {"audio_patch_proj", "audio_proj_in"},
        {"condition_proj", "context_embedder"},
        {"time_embedder.proj_in", "time_embedder.linear_1"},
        {"time_embedder.proj_out", "time_embedder.linear_2"},
        {"final_layer.norm", "norm_out.norm"},
        {"final_layer.adaln_proj.linear", "norm_out.linear"},
        {"final_layer.video_out", "proj_out"},
        {"final_layer.audio_out", "audio_proj_out"},
    };
    for (int32_t i = file->count - 1; i >= 0; i--) {
        if (strstr(file->tensors[i].name, "mlp.fc1"))
            d_swap_halves(&file->tensors[i]);
        if (strstr(file->tensors[i].name, "qkv_proj"))
            d_split_qkv(file, c, i);
    }
    for (int32_t i = 0; i < file->count; i++) {
        if (strncmp(file->tensors[i].name, "blocks.", 7) == 0)
            d_rename(&file->tensors[i], "blocks.", "transformer_blocks.");
        for (size_t j = 0; j < sizeof names / sizeof *names; j++)
            d_rename(&file->tensors[i], names[j][0], names[j][1]);
    }
}

/* ---- the formulas ---- */

/* What goes through the transformer in one step. */
typedef struct d_request {
    const h3f_sequence *sequence;
    const float *times;       /* the t of each */
    const int32_t *row_times; /* [rows] */
    const float *text, *video, *audio;
} d_request;

static inline h3f_block_shape d_shape(const h3f_dit_config *c, int32_t pairs) {
    return (h3f_block_shape){.hidden = c->hidden,
                             .ffn = c->ffn,
                             .heads = c->heads,
                             .kv_heads = c->heads,
                             .head_dim = c->head_dim,
                             .pairs = pairs,
                             .norm_eps = c->norm_eps,
                             .qk_norm_eps = c->qk_norm_eps};
}

static inline void d_run_block(t_file *file, const h3f_dit_config *c, const char *list, int32_t i,
                               int64_t rows, const double *angles, r_modulation modulation,
                               double *x) {
    const h3f_block_shape shape = d_shape(c, angles ? 3 * c->rope_freqs : 0);
    const float *fused = t_find(file, d_name(list, i, "attn.qkv_proj.weight"))->values;
    const float *fc1 = t_find(file, d_name(list, i, "mlp.fc1.weight"))->values;
    const size_t size = (size_t)(c->heads * c->head_dim * c->hidden);
    float *qkv = malloc(3 * size * sizeof *qkv);
    for (int part = 0; part < 3; part++)
        d_qkv(c, fused, part, qkv + (size_t)part * size);
    const r_block block = {.norm1 = t_find(file, d_name(list, i, "norm1.weight"))->values,
                           .norm2 = t_find(file, d_name(list, i, "norm2.weight"))->values,
                           .q_norm = t_find(file, d_name(list, i, "attn.q_norm.weight"))->values,
                           .k_norm = t_find(file, d_name(list, i, "attn.k_norm.weight"))->values,
                           .q = qkv,
                           .k = qkv + size,
                           .v = qkv + 2 * size,
                           .out = t_find(file, d_name(list, i, "attn.out_proj.weight"))->values,
                           .gate = fc1,
                           .up = fc1 + c->ffn * c->hidden,
                           .down = t_find(file, d_name(list, i, "mlp.fc2.weight"))->values};
    r_block_run(&shape, &block, rows, angles, modulation, x);
    free(qkv);
}

/* y = W x + b of the module. */
static inline double *d_project(t_file *file, const char *module, const double *x, int64_t rows) {
    char name[128];
    snprintf(name, sizeof name, "%s.weight", module);
    const t_tensor *weight = t_find(file, name);
    snprintf(name, sizeof name, "%s.bias", module);
    double *y = r_room(rows * weight->shape[0]);
    r_linear(x, rows, weight->shape[1], weight->values, t_find(file, name)->values,
             weight->shape[0], y);
    return y;
}

static inline double *d_widen(const float *values, int64_t count) {
    double *wide = r_room(count);
    for (int64_t i = 0; i < count; i++)
        wide[i] = (double)values[i];
    return wide;
}

/* silu of the embedding of a time: [time_dim]. */
static inline double *d_time(t_file *file, const h3f_dit_config *c, double t) {
    double *wave = r_room(c->freq_dim);
    const int32_t half = c->freq_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        wave[i] = cos(t * pow(10000.0, -(double)i / half));
        wave[half + i] = sin(t * pow(10000.0, -(double)i / half));
    }
    double *inner = d_project(file, "time_embedder.proj_in", wave, 1);
    for (int32_t i = 0; i < c->time_hidden; i++)
        inner[i] = r_silu(inner[i]);
    double *embedding = d_project(file, "time_embedder.proj_out", inner, 1);
    for (int32_t i = 0; i < c->time_dim; i++)
        embedding[i] = r_silu(embedding[i]);
    free(wave);
    free(inner);
    return embedding;
}

static inline double *d_refine(t_file *file, const h3f_dit_config *c, const d_request *r) {
    const int64_t rows = r->sequence->text_rows;
    double *text = d_widen(r->text, rows * c->text_dim);
    double *x = d_project(file, "condition_proj", text, rows);
    for (int32_t i = 0; i < c->refiner_layers; i++)
        d_run_block(file, c, D_REFINER, i, rows, NULL, NULL, x);
    r_rms_norm(x, rows, c->hidden, t_find(file, "token_refiner.final_norm.weight")->values,
               (double)c->final_norm_eps, x);
    free(text);
    return x;
}

/* Takes `rows`. */
static inline void d_scatter(double *rows, const int32_t *indices, int64_t count, int64_t hidden,
                             double *x) {
    for (int64_t i = 0; i < count; i++)
        memcpy(x + indices[i] * hidden, rows + i * hidden, (size_t)hidden * sizeof *x);
    free(rows);
}

static inline double *d_pack(t_file *file, const h3f_dit_config *c, const d_request *r) {
    const h3f_sequence *s = r->sequence;
    double *x = r_room(s->rows * c->hidden);
    double *video = d_widen(r->video, s->video_rows * c->video_dim);
    double *audio = d_widen(r->audio, s->audio_rows * c->audio_dim);
    d_scatter(d_refine(file, c, r), s->text_indices, s->text_rows, c->hidden, x);
    d_scatter(d_project(file, "video_patch_proj", video, s->video_rows), s->video_indices,
              s->video_rows, c->hidden, x);
    d_scatter(d_project(file, "audio_patch_proj", audio, s->audio_rows), s->audio_indices,
              s->audio_rows, c->hidden, x);
    free(video);
    free(audio);
    return x;
}

static inline double *d_angles(const h3f_dit_config *c, const h3f_sequence *s) {
    const int64_t freqs = c->rope_freqs;
    double *angles = r_room(s->rows * 3 * freqs);
    for (int64_t i = 0; i < s->rows * 3; i++)
        for (int64_t f = 0; f < freqs; f++)
            angles[i * freqs + f] =
                s->positions[i] * pow(c->rope_theta, -(double)f / (double)freqs);
    return angles;
}

static inline void d_modulated_block(t_file *file, const h3f_dit_config *c, const d_request *r,
                                     double *const *embeddings, int32_t times, int32_t i,
                                     const double *angles, double *x) {
    const int64_t rows = r->sequence->rows, size = H3F_MODULATIONS * (int64_t)c->hidden;
    char module[96];
    snprintf(module, sizeof module, "%s", d_name(D_BLOCKS, i, "adaln_proj.linear"));
    double *tables[8];
    const double **modulation = malloc((size_t)rows * sizeof *modulation);
    for (int32_t t = 0; t < times; t++)
        tables[t] = d_project(file, module, embeddings[t], 1);
    for (int64_t row = 0; row < rows; row++)
        modulation[row] = tables[r->row_times[row]] + r->sequence->tags[row] * size;
    d_run_block(file, c, D_BLOCKS, i, rows, angles, modulation, x);
    for (int32_t t = 0; t < times; t++)
        free(tables[t]);
    free(modulation);
}

/* The last norm and a head, over the rows at `indices`. */
static inline double *d_velocity(t_file *file, const h3f_dit_config *c, const d_request *r,
                                 double *const *embeddings, const char *head,
                                 const int32_t *indices, int64_t count, const double *x) {
    const int64_t hidden = c->hidden;
    double *rows = r_room(count * hidden);
    for (int64_t i = 0; i < count; i++) {
        double *row = rows + i * hidden;
        const double *e = embeddings[r->row_times[indices[i]]];
        double *table = d_project(file, "final_layer.adaln_proj.linear", e, 1);
        r_rms_norm(x + indices[i] * hidden, 1, hidden,
                   t_find(file, "final_layer.norm.weight")->values, (double)c->final_norm_eps, row);
        for (int64_t j = 0; j < hidden; j++)
            row[j] = row[j] * (1 + table[hidden + j]) + table[j];
        free(table);
    }
    double *velocity = d_project(file, head, rows, count);
    free(rows);
    return velocity;
}

/* *video: [video_rows, video_dim], *audio: [audio_rows, audio_dim]; at most 8 times. */
static inline void d_step(t_file *file, const h3f_dit_config *c, const d_request *r, int32_t times,
                          double **video, double **audio) {
    const h3f_sequence *s = r->sequence;
    double *embeddings[8], *x = d_pack(file, c, r), *angles = d_angles(c, s);
    for (int32_t t = 0; t < times; t++)
        embeddings[t] = d_time(file, c, (double)r->times[t]);
    for (int32_t i = 0; i < c->layers; i++)
        d_modulated_block(file, c, r, embeddings, times, i, angles, x);
    *video = d_velocity(file, c, r, embeddings, "final_layer.video_out", s->video_indices,
                        s->video_rows, x);
    *audio = d_velocity(file, c, r, embeddings, "final_layer.audio_out", s->audio_indices,
                        s->audio_rows, x);
    for (int32_t t = 0; t < times; t++)
        free(embeddings[t]);
    free(angles);
    free(x);
}

#endif
