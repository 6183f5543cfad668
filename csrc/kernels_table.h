/* kernels_table: the inner loops of one instruction set.
 *
 * A context points at one constant table; nothing else in the engine asks what the processor can
 * do. */
#ifndef H3F_KERNELS_TABLE_H
#define H3F_KERNELS_TABLE_H

#include "kernels.h"

#if defined(__x86_64__)
#define H3F_X86 1
#define H3F_AVX2 __attribute__((target("avx2,fma,f16c")))
#define H3F_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#elif defined(__aarch64__)
#define H3F_ARM 1
#define H3F_NEON /* every aarch64 has it */
#endif

/* For the bodies that a twin is made of: their trip counts are constants only when inlined. */
#define H3F_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define H3F_UNROLL _Pragma("clang loop unroll(full)")
#else
#define H3F_UNROLL _Pragma("GCC unroll 32")
#endif

/* ---- matrix products: tiles of at most mr x nr outputs ---- */

enum { H3F_MAX_MR = 14, H3F_MAX_NR = 32 };

/* c[i][j] = base[i][j] + sum over k of a[k * a_stride + i] * b[k * nr + j], k ascending from a sum
 * of 0, for i < rows, j < nr; `rows` is the function's place in the table. base and c may be the
 * same. */
typedef void h3f_tile_fn(int64_t depth, const float *a, int64_t a_stride, const float *b,
                         const float *base, int64_t base_stride, float *c, int64_t c_stride);

/* out[k * stride + i] = rows[i][k], widened, for k < depth, i < lanes. The rows are of type dtype,
 * not aligned. */
typedef void h3f_pack_fn(int32_t dtype, const void *const *rows, int64_t depth, float *out,
                         int64_t stride);

typedef struct h3f_matmul_kernels {
    int32_t mr, nr;
    int32_t lanes;                     /* rows that pack transposes at once; nr is a multiple */
    h3f_tile_fn *tile[H3F_MAX_MR + 1]; /* by rows, 1 .. mr */
    h3f_pack_fn *pack;
} h3f_matmul_kernels;

/* ---- row kernels: one row (or one run of values) a call ---- */

typedef struct h3f_row_kernels {
    void (*rms_norm)(const h3f_norm *norm, const float *x, float *out);
    void (*layer_norm)(const h3f_norm *norm, const float *x, float *out);
    /* All heads of one row; cosine, sine: [pairs]. */
    void (*rotate)(const h3f_rotary *rotary, const float *cosine, const float *sine, float *x);
    void (*modulate)(int64_t cols, const float *x, const float *shift, const float *scale,
                     float *out);
    void (*add_gated)(int64_t cols, const float *gate, const float *branch, float *x);
    void (*silu_mul)(int64_t count, float *gate, const float *up);
    void (*silu)(int64_t count, const float *x, float *out);
} h3f_row_kernels;

/* ---- attention: the softmax of a tile of scores, queries in the lanes ---- */

/* most, total: [nr], of the tiles before; -infinity and 0 at first. On return scores hold exp(scale
 * * score - most), most and total include the tile, and out is multiplied by what the change of
 * most makes of it. */
typedef struct h3f_softmax {
    int64_t keys, head_dim;
    float scale;
    float *scores; /* [keys][nr] */
    float *most, *total;
    float *out; /* [head_dim][nr] */
} h3f_softmax;

typedef struct h3f_attention_kernels {
    void (*softmax)(const h3f_softmax *tile); /* NULL: row by row, by the formula */
} h3f_attention_kernels;

extern const h3f_matmul_kernels h3f_matmul_scalar;
extern const h3f_attention_kernels h3f_attention_scalar;
extern const h3f_row_kernels h3f_rows_scalar;
#ifdef H3F_X86
extern const h3f_matmul_kernels h3f_matmul_avx2, h3f_matmul_avx512;
extern const h3f_attention_kernels h3f_attention_avx2, h3f_attention_avx512;
extern const h3f_row_kernels h3f_rows_avx2, h3f_rows_avx512;
#endif
#ifdef H3F_ARM
extern const h3f_matmul_kernels h3f_matmul_neon;
extern const h3f_attention_kernels h3f_attention_neon;
extern const h3f_row_kernels h3f_rows_neon;
#endif

struct h3f_kernels {
    int32_t isa;
    const h3f_matmul_kernels *matmul;
    const h3f_attention_kernels *attention;
    const h3f_row_kernels *rows;
};

/* The table of an h3f_isa; NULL when this processor or this build lacks it. */
const h3f_kernels *h3f_kernels_for(int32_t isa);
const char *h3f_isa_word(int32_t isa);

#endif
