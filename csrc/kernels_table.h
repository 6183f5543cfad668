/* kernels_table: the inner loops of one instruction set.
 *
 * A context points at one constant table; nothing else in the engine asks what the processor can do. */
#ifndef H3F_KERNELS_TABLE_H
#define H3F_KERNELS_TABLE_H

#include "kernels.h"

#if defined(__x86_64__)
#define H3F_X86 1
#elif defined(__aarch64__)
#define H3F_ARM 1
#endif

/* ---- matrix products: tiles of at most mr x nr outputs ---- */

enum { H3F_MAX_MR = 14, H3F_MAX_NR = 32 };

/* c[i][j] = base[i][j] + sum over k of a[k][i] * b[k][j], k ascending, for one tile of rows x nr.
 * a: [depth][rows]; b: [depth][nr], 64-byte aligned; base and c may be the same. */
typedef void h3f_tile_fn(int64_t depth, const float *a, const float *b, const float *base,
                         int64_t base_stride, float *c, int64_t c_stride);

/* out[k][i] = rows[i][k], widened, for k < depth and i < count; zeros for the lanes from count to nr-1.
 * rows: the places in the mapping, of type dtype and not aligned. */
typedef void h3f_pack_fn(int32_t dtype, const unsigned char *const *rows, int64_t count, int64_t depth,
                         float *out);

typedef struct h3f_matmul_kernels {
    int32_t mr, nr;
    h3f_tile_fn *tile[H3F_MAX_MR + 1]; /* by rows, 1 .. mr */
    h3f_pack_fn *pack;
} h3f_matmul_kernels;

/* ---- row kernels: one row (or one run of values) a call ---- */

typedef struct h3f_row_kernels {
    void (*rms_norm)(const h3f_norm *norm, const float *x, float *out);
    void (*layer_norm)(const h3f_norm *norm, const float *x, float *out);
    /* All heads of one row; cosine, sine: [pairs]. */
    void (*rotate)(const h3f_rotary *rotary, const float *cosine, const float *sine, float *x);
    void (*modulate)(int64_t cols, const float *x, const float *shift, const float *scale, float *out);
    void (*add_gated)(int64_t cols, const float *gate, const float *branch, float *x);
    void (*silu_mul)(int64_t count, float *gate, const float *up);
    void (*silu)(int64_t count, const float *x, float *out);
} h3f_row_kernels;

extern const h3f_matmul_kernels h3f_matmul_scalar;
extern const h3f_row_kernels h3f_rows_scalar;

struct h3f_kernels {
    int32_t isa;
    const h3f_matmul_kernels *matmul;
    const h3f_row_kernels *rows;
};

/* The table of an h3f_isa; NULL when this processor or this build lacks it. */
const h3f_kernels *h3f_kernels_for(int32_t isa);
const char *h3f_isa_word(int32_t isa);

#endif
