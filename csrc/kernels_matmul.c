/* Tiles of matrix products, and the transposing copies that feed them: see linear.c for how they
 * are used. */
#include "kernels_table.h"

#include <string.h>

/* ---- scalar ---- */

H3F_INLINE void tile_ref(int rows, int64_t depth, const float *a, int64_t a_stride, const float *b,
                         const float *base, int64_t base_stride, float *c, int64_t c_stride) {
    enum { NR = 8 };
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < NR; j++) {
            float sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += a[k * a_stride + i] * b[k * NR + j];
            c[i * c_stride + j] = base[i * base_stride + j] + sum;
        }
    }
}

static void pack_ref(int32_t dtype, const void *const *rows, int64_t depth, float *out,
                     int64_t stride) {
    enum { LANES = 8 };
    for (int i = 0; i < LANES; i++) {
        for (int64_t k = 0; k < depth; k++) {
            const unsigned char *row = rows[i];
            h3f_widen(dtype, row + (size_t)k * h3f_dtype_size(dtype), 1, &out[k * stride + i]);
        }
    }
}

/* The function of one number of rows: `body` inlined with a constant. */
#define TILE(isa, target, rows)                                                                    \
    target static void tile_##isa##_##rows(int64_t depth, const float *a, int64_t a_stride,        \
                                           const float *b, const float *base, int64_t base_stride, \
                                           float *c, int64_t c_stride) {                           \
        tile_##isa(rows, depth, a, a_stride, b, base, base_stride, c, c_stride);                   \
    }

#define NO_TARGET
TILE(ref, NO_TARGET, 1)
TILE(ref, NO_TARGET, 2)
TILE(ref, NO_TARGET, 3)
TILE(ref, NO_TARGET, 4)

const h3f_matmul_kernels h3f_matmul_scalar = {
    .mr = 4,
    .nr = 8,
    .lanes = 8,
    .tile = {NULL, tile_ref_1, tile_ref_2, tile_ref_3, tile_ref_4},
    .pack = pack_ref,
};

/* The columns that a vectorised copy leaves over. */
#if defined(H3F_X86) || defined(H3F_ARM)
static void pack_rest(int32_t dtype, const void *const *rows, int lanes, int64_t begin,
                      int64_t depth, float *out, int64_t stride) {
    for (int64_t k = begin; k < depth; k++) {
        for (int i = 0; i < lanes; i++) {
            const unsigned char *row = rows[i];
            h3f_widen(dtype, row + (size_t)k * h3f_dtype_size(dtype), 1, &out[k * stride + i]);
        }
    }
}
#endif

#ifdef H3F_X86
#include <immintrin.h>

/* ---- AVX2: 6 x 16, twelve sums, of sixteen registers ---- */

H3F_INLINE H3F_AVX2 void tile_avx2(int rows, int64_t depth, const float *a, int64_t a_stride,
                                   const float *b, const float *base, int64_t base_stride, float *c,
                                   int64_t c_stride) {
    __m256 sums[6][2];
    H3F_UNROLL
    for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < depth; k++) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        H3F_UNROLL
        for (int i = 0; i < rows; i++) {
            __m256 value = _mm256_broadcast_ss(a + i);
            sums[i][0] = _mm256_fmadd_ps(value, b0, sums[i][0]);
            sums[i][1] = _mm256_fmadd_ps(value, b1, sums[i][1]);
        }
        a += a_stride;
        b += 16;
    }
    H3F_UNROLL
    for (int i = 0; i < rows; i++) {
        const float *from = base + i * base_stride;
        float *to = c + i * c_stride;
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(from), sums[i][0]));
        _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(from + 8), sums[i][1]));
    }
}

TILE(avx2, H3F_AVX2, 1)
TILE(avx2, H3F_AVX2, 2)
TILE(avx2, H3F_AVX2, 3)
TILE(avx2, H3F_AVX2, 4)
TILE(avx2, H3F_AVX2, 5)
TILE(avx2, H3F_AVX2, 6)

H3F_INLINE H3F_AVX2 void transpose_avx2(__m256 v[8]) {
    __m256 t[8], u[8];
    H3F_UNROLL
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    H3F_UNROLL
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    H3F_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* The low half of each 32-bit lane, an f16, as f32. */
H3F_INLINE H3F_AVX2 __m256 low_f16_avx2(__m256i pairs) {
    __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

/* 16-bit values travel through the transposition in pairs, so that it moves half as much. */
H3F_AVX2 static void pack_avx2(int32_t dtype, const void *const *rows, int64_t depth, float *out,
                               int64_t stride) {
    int64_t step = dtype == H3F_F32 ? 8 : 16, k = 0;
    for (; k + step <= depth; k += step) {
        __m256 v[8];
        H3F_UNROLL
        for (int i = 0; i < 8; i++)
            v[i] = _mm256_loadu_ps((const float *)((const unsigned char *)rows[i] + k * 32 / step));
        transpose_avx2(v);
        float *to = out + k * stride;
        if (dtype == H3F_F32) {
            H3F_UNROLL
            for (int i = 0; i < 8; i++)
                _mm256_storeu_ps(to + i * stride, v[i]);
            continue;
        }
        for (int i = 0; i < 8; i++) {
            __m256i pairs = _mm256_castps_si256(v[i]);
            __m256 first, second;
            if (dtype == H3F_BF16) {
                first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
                second = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
            } else {
                first = low_f16_avx2(pairs);
                second = low_f16_avx2(_mm256_srli_epi32(pairs, 16));
            }
            _mm256_storeu_ps(to + 2 * i * stride, first);
            _mm256_storeu_ps(to + (2 * i + 1) * stride, second);
        }
    }
    pack_rest(dtype, rows, 8, k, depth, out, stride);
}

const h3f_matmul_kernels h3f_matmul_avx2 = {
    .mr = 6,
    .nr = 16,
    .lanes = 8,
    .tile = {NULL, tile_avx2_1, tile_avx2_2, tile_avx2_3, tile_avx2_4, tile_avx2_5, tile_avx2_6},
    .pack = pack_avx2,
};

/* ---- AVX-512: 14 x 32, 28 sums, of 32 registers ---- */

H3F_INLINE H3F_AVX512 void tile_avx512(int rows, int64_t depth, const float *a, int64_t a_stride,
                                       const float *b, const float *base, int64_t base_stride,
                                       float *c, int64_t c_stride) {
    __m512 sums[14][2];
    H3F_UNROLL
    for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < depth; k++) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        H3F_UNROLL
        for (int i = 0; i < rows; i++) {
            __m512 value = _mm512_set1_ps(a[i]);
            sums[i][0] = _mm512_fmadd_ps(value, b0, sums[i][0]);
            sums[i][1] = _mm512_fmadd_ps(value, b1, sums[i][1]);
        }
        a += a_stride;
        b += 32;
    }
    H3F_UNROLL
    for (int i = 0; i < rows; i++) {
        const float *from = base + i * base_stride;
        float *to = c + i * c_stride;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(from), sums[i][0]));
        _mm512_storeu_ps(to + 16, _mm512_add_ps(_mm512_loadu_ps(from + 16), sums[i][1]));
    }
}

TILE(avx512, H3F_AVX512, 1)
TILE(avx512, H3F_AVX512, 2)
TILE(avx512, H3F_AVX512, 3)
TILE(avx512, H3F_AVX512, 4)
TILE(avx512, H3F_AVX512, 5)
TILE(avx512, H3F_AVX512, 6)
TILE(avx512, H3F_AVX512, 7)
TILE(avx512, H3F_AVX512, 8)
TILE(avx512, H3F_AVX512, 9)
TILE(avx512, H3F_AVX512, 10)
TILE(avx512, H3F_AVX512, 11)
TILE(avx512, H3F_AVX512, 12)
TILE(avx512, H3F_AVX512, 13)
TILE(avx512, H3F_AVX512, 14)

H3F_INLINE H3F_AVX512 void transpose_avx512(__m512 v[16]) {
    __m512 t[16];
    H3F_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    /* v[4g + c]: column c of each 128-bit quarter, of rows 4g .. 4g + 3 */
    H3F_UNROLL
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        v[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
        v[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        v[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    H3F_UNROLL
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_f32x4(v[c], v[c + 4], 0x88);
        t[c + 4] = _mm512_shuffle_f32x4(v[c], v[c + 4], 0xDD);
        t[c + 8] = _mm512_shuffle_f32x4(v[c + 8], v[c + 12], 0x88);
        t[c + 12] = _mm512_shuffle_f32x4(v[c + 8], v[c + 12], 0xDD);
    }
    H3F_UNROLL
    for (int c = 0; c < 4; c++) {
        v[c] = _mm512_shuffle_f32x4(t[c], t[c + 8], 0x88);
        v[c + 4] = _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0x88);
        v[c + 8] = _mm512_shuffle_f32x4(t[c], t[c + 8], 0xDD);
        v[c + 12] = _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0xDD);
    }
}

H3F_AVX512 static void pack_avx512(int32_t dtype, const void *const *rows, int64_t depth,
                                   float *out, int64_t stride) {
    int64_t step = dtype == H3F_F32 ? 16 : 32, k = 0;
    for (; k + step <= depth; k += step) {
        __m512 v[16];
        H3F_UNROLL
        for (int i = 0; i < 16; i++)
            v[i] = _mm512_loadu_ps((const unsigned char *)rows[i] + k * 64 / step);
        transpose_avx512(v);
        float *to = out + k * stride;
        if (dtype == H3F_F32) {
            H3F_UNROLL
            for (int i = 0; i < 16; i++)
                _mm512_storeu_ps(to + i * stride, v[i]);
            continue;
        }
        for (int i = 0; i < 16; i++) {
            __m512i pairs = _mm512_castps_si512(v[i]);
            __m512 first, second;
            if (dtype == H3F_BF16) {
                first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
                second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
            } else {
                first = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
                second = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
            }
            _mm512_storeu_ps(to + 2 * i * stride, first);
            _mm512_storeu_ps(to + (2 * i + 1) * stride, second);
        }
    }
    pack_rest(dtype, rows, 16, k, depth, out, stride);
}

const h3f_matmul_kernels h3f_matmul_avx512 = {
    .mr = 14,
    .nr = 32,
    .lanes = 16,
    .tile = {NULL, tile_avx512_1, tile_avx512_2, tile_avx512_3, tile_avx512_4, tile_avx512_5,
             tile_avx512_6, tile_avx512_7, tile_avx512_8, tile_avx512_9, tile_avx512_10,
             tile_avx512_11, tile_avx512_12, tile_avx512_13, tile_avx512_14},
    .pack = pack_avx512,
};
#endif

#ifdef H3F_ARM
#include <arm_neon.h>

/* ---- NEON: 8 x 12, 24 sums, of 32 registers ---- */

H3F_INLINE void tile_neon(int rows, int64_t depth, const float *a, int64_t a_stride, const float *b,
                          const float *base, int64_t base_stride, float *c, int64_t c_stride) {
    float32x4_t sums[8][3];
    H3F_UNROLL
    for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = vdupq_n_f32(0);
    for (int64_t k = 0; k < depth; k++) {
        float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);
        H3F_UNROLL
        for (int i = 0; i < rows; i++) {
            sums[i][0] = vfmaq_n_f32(sums[i][0], b0, a[i]);
            sums[i][1] = vfmaq_n_f32(sums[i][1], b1, a[i]);
            sums[i][2] = vfmaq_n_f32(sums[i][2], b2, a[i]);
        }
        a += a_stride;
        b += 12;
    }
    H3F_UNROLL
    for (int i = 0; i < rows; i++) {
        H3F_UNROLL
        for (int j = 0; j < 3; j++)
            vst1q_f32(c + i * c_stride + 4 * j,
                      vaddq_f32(vld1q_f32(base + i * base_stride + 4 * j), sums[i][j]));
    }
}

TILE(neon, H3F_NEON, 1)
TILE(neon, H3F_NEON, 2)
TILE(neon, H3F_NEON, 3)
TILE(neon, H3F_NEON, 4)
TILE(neon, H3F_NEON, 5)
TILE(neon, H3F_NEON, 6)
TILE(neon, H3F_NEON, 7)
TILE(neon, H3F_NEON, 8)

H3F_INLINE void transpose_neon(uint32x4_t v[4]) {
    uint64x2_t low01 = vreinterpretq_u64_u32(vzip1q_u32(v[0], v[1]));
    uint64x2_t high01 = vreinterpretq_u64_u32(vzip2q_u32(v[0], v[1]));
    uint64x2_t low23 = vreinterpretq_u64_u32(vzip1q_u32(v[2], v[3]));
    uint64x2_t high23 = vreinterpretq_u64_u32(vzip2q_u32(v[2], v[3]));
    v[0] = vreinterpretq_u32_u64(vzip1q_u64(low01, low23));
    v[1] = vreinterpretq_u32_u64(vzip2q_u64(low01, low23));
    v[2] = vreinterpretq_u32_u64(vzip1q_u64(high01, high23));
    v[3] = vreinterpretq_u32_u64(vzip2q_u64(high01, high23));
}

static void pack_neon(int32_t dtype, const void *const *rows, int64_t depth, float *out,
                      int64_t stride) {
    int64_t step = dtype == H3F_F32 ? 4 : 8, k = 0;
    for (; k + step <= depth; k += step) {
        uint32x4_t v[4];
        H3F_UNROLL
        for (int i = 0; i < 4; i++)
            v[i] = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)rows[i] + k * 16 / step));
        transpose_neon(v);
        float *to = out + k * stride;
        H3F_UNROLL
        for (int i = 0; i < 4; i++) {
            if (dtype == H3F_F32) {
                vst1q_f32(to + i * stride, vreinterpretq_f32_u32(v[i]));
            } else if (dtype == H3F_BF16) {
                vst1q_f32(to + 2 * i * stride, vreinterpretq_f32_u32(vshlq_n_u32(v[i], 16)));
                vst1q_f32(to + (2 * i + 1) * stride,
                          vreinterpretq_f32_u32(vandq_u32(v[i], vdupq_n_u32(0xFFFF0000U))));
            } else {
                vst1q_f32(to + 2 * i * stride, vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v[i]))));
                vst1q_f32(to + (2 * i + 1) * stride,
                          vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(v[i], 16))));
            }
        }
    }
    pack_rest(dtype, rows, 4, k, depth, out, stride);
}

const h3f_matmul_kernels h3f_matmul_neon = {
    .mr = 8,
    .nr = 12,
    .lanes = 4,
    .tile = {NULL, tile_neon_1, tile_neon_2, tile_neon_3, tile_neon_4, tile_neon_5, tile_neon_6,
             tile_neon_7, tile_neon_8},
    .pack = pack_neon,
};
#endif
