#include "kernels_table.h"

#include <string.h>

/* ---- stored types ---- */

float h3f_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    uint32_t exponent = half >> 10 & 0x1FU;
    uint32_t mantissa = half & 0x3FFU;
    union {
        uint32_t bits;
        float value;
    } u;
    if (exponent == 0x1F) { /* infinity, NaN */
        u.bits = sign | 0x7F800000U | mantissa << 13;
    } else if (exponent != 0) {
        u.bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else { /* zero, subnormal: mantissa * 2^-24 is exact */
        u.value = (float)mantissa * 0x1p-24F;
        u.bits |= sign;
    }
    return u.value;
}

static const struct {
    const char *word;
    size_t size;
} dtypes[] = {
    [H3F_F32] = {"F32", 4},   [H3F_F16] = {"F16", 2},         [H3F_BF16] = {"BF16", 2},
    [H3F_F64] = {"F64", 8},   [H3F_I8] = {"I8", 1},           [H3F_U8] = {"U8", 1},
    [H3F_I16] = {"I16", 2},   [H3F_U16] = {"U16", 2},         [H3F_I32] = {"I32", 4},
    [H3F_U32] = {"U32", 4},   [H3F_I64] = {"I64", 8},         [H3F_U64] = {"U64", 8},
    [H3F_BOOL] = {"BOOL", 1}, [H3F_F8_E4M3] = {"F8_E4M3", 1}, [H3F_F8_E5M2] = {"F8_E5M2", 1},
};

size_t h3f_dtype_size(int32_t dtype) {
    return dtypes[dtype].size;
}

const char *h3f_dtype_word(int32_t dtype) {
    return dtypes[dtype].word;
}

void h3f_widen(int32_t dtype, const void *source, int64_t count, float *out) {
    const unsigned char *bytes = source;
    if (dtype == H3F_F32) {
        memcpy(out, bytes, (size_t)count * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, bytes + 2 * i, sizeof half); /* aligned to nothing in particular */
        out[i] = dtype == H3F_BF16 ? h3f_bf16_to_f32(half) : h3f_f16_to_f32(half);
    }
}

bool h3f_all_finite(const float *x, int64_t count) {
    /* An integer test, so that the loop is vectorised: only infinity and NaN have all exponent
     * bits. */
    uint32_t worst = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        uint32_t exponent = bits & 0x7F800000U;
        worst = exponent > worst ? exponent : worst;
    }
    return worst != 0x7F800000U;
}

/* ---- the choice ---- */

const char *h3f_isa_word(int32_t isa) {
    switch (isa) {
    case H3F_ISA_BEST:
        return "best";
    case H3F_ISA_SCALAR:
        return "scalar";
    case H3F_ISA_AVX2:
        return "avx2";
    case H3F_ISA_AVX512:
        return "avx512";
    case H3F_ISA_NEON:
        return "neon";
    default:
        return "unknown";
    }
}

static const h3f_kernels scalar_kernels = {.isa = H3F_ISA_SCALAR,
                                           .matmul = &h3f_matmul_scalar,
                                           .attention = &h3f_attention_scalar,
                                           .rows = &h3f_rows_scalar};

#if defined(H3F_X86)
static const h3f_kernels avx2_kernels = {.isa = H3F_ISA_AVX2,
                                         .matmul = &h3f_matmul_avx2,
                                         .attention = &h3f_attention_avx2,
                                         .rows = &h3f_rows_avx2};
static const h3f_kernels avx512_kernels = {.isa = H3F_ISA_AVX512,
                                           .matmul = &h3f_matmul_avx512,
                                           .attention = &h3f_attention_avx512,
                                           .rows = &h3f_rows_avx512};

/* f16c has no name in every compiler; all processors with AVX2 have it. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const h3f_kernels *h3f_kernels_for(int32_t isa) {
    switch (isa) {
    case H3F_ISA_BEST:
        return has_avx512() ? &avx512_kernels : has_avx2() ? &avx2_kernels : &scalar_kernels;
    case H3F_ISA_SCALAR:
        return &scalar_kernels;
    case H3F_ISA_AVX2:
        return has_avx2() ? &avx2_kernels : NULL;
    case H3F_ISA_AVX512:
        return has_avx512() ? &avx512_kernels : NULL;
    default:
        return NULL;
    }
}
#elif defined(H3F_ARM)
static const h3f_kernels neon_kernels = {.isa = H3F_ISA_NEON,
                                         .matmul = &h3f_matmul_neon,
                                         .attention = &h3f_attention_neon,
                                         .rows = &h3f_rows_neon};

const h3f_kernels *h3f_kernels_for(int32_t isa) {
    if (isa == H3F_ISA_BEST || isa == H3F_ISA_NEON)
        return &neon_kernels;
    return isa == H3F_ISA_SCALAR ? &scalar_kernels : NULL;
}
#else
const h3f_kernels *h3f_kernels_for(int32_t isa) {
    return isa == H3F_ISA_BEST || isa == H3F_ISA_SCALAR ? &scalar_kernels : NULL;
}
#endif
