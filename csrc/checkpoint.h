/* checkpoint: what the networks ask of a set of mapped tensors.
 *
 * Names are canonical (official). A layout that splits or orders a tensor differently is hidden here:
 * a network asks for the query, key and value matrices and for the gate and value halves, and gets views
 * into the mapping whatever the file looks like. */
#ifndef H3F_CHECKPOINT_H
#define H3F_CHECKPOINT_H

#include "kernels.h"

h3f_context *h3f_checkpoint_context(const h3f_checkpoint *checkpoint);

bool h3f_checkpoint_has(const h3f_checkpoint *checkpoint, const char *name);

/* All of these fail with H3F_ETENSOR (absent, or a shape other than asked for: file, tensor, found,
 * expected) or H3F_EDTYPE (not f32, f16 or bf16). `name` is printf-style, with "blocks.%d" in it. */

/* The matrix [rows, cols]; trailing axes of size 1 in the file are ignored. */
int h3f_find_matrix(const h3f_checkpoint *checkpoint, int64_t rows, int64_t cols, h3f_mat *matrix,
                    const char *name, ...) __attribute__((format(printf, 5, 6)));

/* The tensor of exactly that shape, [shape[0], ..., shape[axes - 1]], as it is stored. */
int h3f_find_tensor(const h3f_checkpoint *checkpoint, int32_t axes, const int64_t *shape,
                    h3f_tensor *tensor, const char *name, ...)
    __attribute__((format(printf, 5, 6)));

/* H3F_EDTYPE, naming the type found, unless it is one that is computed with. */
int h3f_check_dtype(const h3f_checkpoint *checkpoint, const h3f_tensor *tensor);

/* A vector of `count` values, widened to f32 into `out`; extra axes of size 1 are ignored. */
int h3f_read_vector(const h3f_checkpoint *checkpoint, int64_t count, float *out, const char *name, ...)
    __attribute__((format(printf, 4, 5)));

/* The parts of an attention projection, in the order q, k, v: matrices [heads * head_dim, cols].
 * name: the module, "blocks.3.attn". Transformer: <module>.qkv_proj.weight, per head interleaved in
 * official files, three matrices in diffusers files; video VAE: <module>.to_qkv, likewise.
 * bias, when not NULL: room for [3][heads * head_dim], de-interleaved. */
int h3f_find_qkv(const h3f_checkpoint *checkpoint, int32_t heads, int32_t head_dim, int64_t cols,
                 h3f_mat parts[3], float *bias, const char *name, ...)
    __attribute__((format(printf, 7, 8)));

/* The gate (through SiLU) and up halves [ffn, cols] of a fused projection: official [gate; up], diffusers
 * [up; gate]. name: the fused tensor's module, "blocks.3.mlp.fc1" or "decoder.transformer_blocks.0.ff.w1".
 * bias, when not NULL: room for [2][ffn], gate first. */
int h3f_find_gate_up(const h3f_checkpoint *checkpoint, int64_t ffn, int64_t cols, h3f_mat parts[2],
                     float *bias, const char *name, ...) __attribute__((format(printf, 6, 7)));

#endif
