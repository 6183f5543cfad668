/* kernels_exp: e to the power of x, in a form that compilers vectorise. */
#ifndef H3F_KERNELS_EXP_H
#define H3F_KERNELS_EXP_H

#include "kernels_table.h"

/* Within 1 unit in the last place where the result is a normal number. exp(0) is 1, NaN stays NaN,
 * below -104 the result is 0 and above 89 infinity. x = n ln 2 + r; 2^n is put together from bits,
 * in two factors, so that both ends of the range round as they should. The polynomial for (e^r - 1
 * - r) / r^2 on |r| <= ln(2)/2 is a minimax fit of our own, relative error 1e-9 with these rounded
 * coefficients. */
H3F_INLINE float h3f_exp(float x) {
    union {
        float value;
        uint32_t bits;
    } shifted, low, high;
    x = x > 89.0F ? 89.0F : x;
    x = x < -104.0F ? -104.0F : x;
    const float shift = 0x1.8p23F; /* adding it rounds to a whole number, kept in the low bits */
    shifted.value = __builtin_fmaf(x, 0x1.715476p0F, shift);
    float n = shifted.value - shift;
    /* ln 2 in two parts, the first short enough for an exact product */
    float r = __builtin_fmaf(n, -0x1.62e4p-1F, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20F, r);
    float p = 0x1.9f085ap-13F;
    p = __builtin_fmaf(p, r, 0x1.6d8d52p-10F);
    p = __builtin_fmaf(p, r, 0x1.111272p-7F);
    p = __builtin_fmaf(p, r, 0x1.55548ep-5F);
    p = __builtin_fmaf(p, r, 0x1.555554p-3F);
    p = __builtin_fmaf(p, r, 0x1p-1F);
    p = __builtin_fmaf(p * r, r, r) + 1.0F;
    /* n, as an integer; unsigned, since NaN makes it anything */
    uint32_t whole = shifted.bits - 0x4B400000U;
    uint32_t half = (uint32_t)((int32_t)whole >> 1);
    low.bits = (half + 127U) << 23;
    high.bits = (whole - half + 127U) << 23;
    return p * low.value * high.value;
}

#endif
