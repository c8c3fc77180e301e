/* Functions of float32 that are computed in float64, as loops that the compiler makes vectors of.
 *
 * Angles are divided by quarter turns, of which float64 keeps all digits up to MOST_TURNED. The
 * polynomials for what is left are those of the Cephes library (S. L. Moshier).
 */

#ifndef PJRT_BRIDGE_CPU_WIDE_FUNCTIONS_H
#define PJRT_BRIDGE_CPU_WIDE_FUNCTIONS_H

#include "functions.h"

/* Up to here the product of a float32 and the first part of 2 / pi is exact. */
#define MOST_TURNED 16777216.0F

/* Up to here three numbers of float32 are enough for a quarter turn, if products are exact. */
#define MOST_NEAR 8192.0F

/* The sine of what an angle has beyond so many quarter turns, and of these. */
INLINE float
sine_of_rest(float r, uint32_t quarter)
{
    const float z = r * r;
    float sine = -1.9515295891e-4F;
    sine = sine * z + 8.3321608736e-3F;
    sine = sine * z - 1.6666654611e-1F;
    sine = sine * z * r + r;
    float cosine = 2.443315711809948e-5F;
    cosine = cosine * z - 1.388731625493765e-3F;
    cosine = cosine * z + 4.166664568298827e-2F;
    cosine = cosine * (z * z) + (1.0F - 0.5F * z);
    const float found = quarter & 1 ? cosine : sine;
    return float_of_bits(bits_of_float(found) ^ (quarter & 2) << 30);
}

/* The sine of an angle of at most MOST_NEAR and so many quarter turns. */
INLINE float
sine_near(float x, uint32_t quarters)
{
    const float shift = 12582912.0F, sum = x * 0.636619772F + shift, whole = sum - shift;
    float r = __builtin_fmaf(-whole, 1.57079637F, x);
    r = __builtin_fmaf(-whole, -4.37113883e-8F, r);
    r = __builtin_fmaf(-whole, -1.71512451e-15F, r);
    return sine_of_rest(r, bits_of_float(sum) + quarters);
}

/* The sine of an angle of less than MOST_TURNED and so many quarter turns. */
INLINE float
sine_behind(float x, uint32_t quarters)
{
    /* Of numbers of this size the last bit is 1. */
    const double base = 0x1.8p52, digits = x;
    /* 2 / pi to 27 digits, and the rest. */
    const double high = digits * 0x1.45f306cp-1, low = digits * 0x1.c9c882a53f84fp-29;
    const double counted = high + low + base, beyond = high - (counted - base) + low;
    const float r = (float)(beyond * 1.5707963267948966);
    return sine_of_rest(r, (uint32_t)bits_of_double(counted) + quarters);
}

/* A zero keeps its sign, and a number below the normal ones its digits. */
INLINE float
itself_near_zero(float x, float sine)
{
    return fabsf(x) < 0x1p-12F ? x : sine;
}

INLINE int
are_all_near(const float *x, int64_t count)
{
    uint32_t is_far = 0;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        is_far |= (uint32_t)!(fabsf(x[i]) <= MOST_NEAR);
    return !is_far;
}

/* Of finite angles from MOST_TURNED on the results are those of the C library. */
INLINE void
mend_large_angles(float *to, const float *x, float (*function)(float), int64_t count)
{
    uint32_t is_any = 0;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        is_any |= (uint32_t)(fabsf(x[i]) >= MOST_TURNED);
    for (int64_t i = 0; is_any && i < count; i++)
        if (fabsf(x[i]) >= MOST_TURNED)
            to[i] = function(x[i]);
}

/* The logarithm to base 2 of a number that is not negative. */
INLINE double
logarithm_to_two(float x)
{
    /* What is below the least normal number is scaled by 2 to the 25. */
    const int is_small = x < 1.17549435e-38F;
    const uint32_t bits = bits_of_float(is_small ? x * 33554432.0F : x);
    /* The mantissa is from sqrt(1/2) to sqrt(2). */
    const int32_t n = (int32_t)(bits - 0x3f3504f3U) >> 23;
    const double m = float_of_bits(bits - ((uint32_t)n << 23));
    const double ratio = (m - 1.0) / (m + 1.0), z = ratio * ratio;
    /* That of (1 + s) / (1 - s) as a polynomial of s; the relative error is 4.3e-12 at most. */
    double p = 0.34074898320595381;
    p = p * z + 0.41167174562558334;
    p = p * z + 0.57708360033386141;
    p = p * z + 0.96179667326626261;
    p = p * z + 2.8853900817901441;
    double found = p * ratio + (double)(n - (is_small ? 25 : 0));
    found = x == 0.0F ? -INFINITY : found;
    return x <= 3.40282347e38F ? found : (double)x;
}

/* 2 to the power of a number. */
INLINE float
raised_two(double exponent)
{
    double in = exponent > 250.0 ? 250.0 : exponent;
    in = in < -250.0 ? -250.0 : in;
    /* Adding this number rounds to an integer, which the sum's bits end in. */
    const double shift = 0x1.8p52, sum = in + shift, r = in - (sum - shift);
    double p = 0.000153533618;
    p = p * r + 0.00133988744;
    p = p * r + 0.00961843736;
    p = p * r + 0.0555033247;
    p = p * r + 0.240226479;
    p = p * r + 0.693147203;
    p = p * r + 1.0;
    return (float)(p * double_of_bits((bits_of_double(sum) + 1023) << 52));
}

/* x to the power of y, with the limits that C's `powf` has. */
INLINE float
power_of(float x, float y)
{
    const float size = fabsf(x), half = 0.5F * y;
    float found = raised_two((double)y * logarithm_to_two(size));
    const int is_whole = floorf(y) == y, is_odd = is_whole & (floorf(half) != half);
    found = is_odd ? copysignf(found, x) : found;
    found = x < 0.0F && size <= 3.40282347e38F && !is_whole ? NAN : found;
    /* An infinite power of -1 is 1, too. */
    const int is_one = x == 1.0F || y == 0.0F;
    return is_one || (size == 1.0F && fabsf(y) > 3.40282347e38F) ? 1.0F : found;
}

#endif
