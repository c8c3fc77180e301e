/* Functions of float32 in forms that the compiler makes vectors of.
 *
 * Each is good to 2 units in the last place, keeps a NaN, and has the limits of the real function.
 * The ways to compute them are those of the Cephes library (S. L. Moshier): a range that is small,
 * and a polynomial for it. That of erf is by N. Juffa.
 */

#ifndef PJRT_BRIDGE_CPU_FUNCTIONS_H
#define PJRT_BRIDGE_CPU_FUNCTIONS_H

#include "vectors.h"

#include <math.h>

/* 2 to the power of an integer from -126 to 127. */
INLINE float
power_of_two(int32_t n)
{
    return float_of_bits((uint32_t)(n + 127) << 23);
}

/* exp(r) - 1, where x is r and so many times the logarithm of 2, and r is near 0. */
INLINE float
exponential_of_rest(float x, int32_t *times)
{
    /* Adding this number rounds to an integer, which the sum's bits end in; NaN gives any. */
    const float shift = 12582912.0F, sum = x * 1.44269504F + shift, whole = sum - shift;
    *times = (int32_t)(bits_of_float(sum) - bits_of_float(shift));
    const float high = x - whole * 0.693359375F, r = high + whole * 2.12194440e-4F;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    return p * (r * r) + r;
}

INLINE float
exponential(float x)
{
    /* Beyond these the result is infinite, or rounds to 0. */
    float in = x > 89.0F ? 89.0F : x;
    in = in < -104.0F ? -104.0F : in;
    int32_t n;
    const float p = exponential_of_rest(in, &n) + 1.0F;
    /* In two steps, for results of less than the least normal number or near the largest. */
    const int32_t half = n >> 1;
    return p * power_of_two(half) * power_of_two(n - half);
}

INLINE float
logistic(float x)
{
    return 1.0F / (1.0F + exponential(-x));
}

INLINE float
hyperbolic_tangent(float x)
{
    const float size = fabsf(x), z = x * x;
    float p = -5.70498872745e-3F;
    p = p * z + 2.06390887954e-2F;
    p = p * z - 5.37397155531e-2F;
    p = p * z + 1.33314422036e-1F;
    p = p * z - 3.33332819422e-1F;
    const float near = p * z * x + x;
    const float far = copysignf(1.0F - 2.0F / (exponential(size + size) + 1.0F), x);
    return size < 0.625F ? near : far;
}

INLINE float
error_function(float x)
{
    /* From 4 on the result is 1; the polynomial is good for less. */
    const float t = fabsf(x), s = x * x, c = t > 4.0F ? 4.0F : t;
    float far = -1.72853470e-5F * c + 3.83197126e-4F;
    far = far * (c * c) + (-3.88396438e-3F * c + 2.42546219e-2F);
    far = far * c - 1.06777877e-1F;
    far = far * c - 6.34846687e-1F;
    far = far * c - 1.28717512e-1F;
    far = far * c - c;
    far = copysignf(1.0F - exponential(far), x);
    float near = -5.96761703e-4F;
    near = near * s + 4.99119423e-3F;
    near = near * s - 2.67681349e-2F;
    near = near * s + 1.12819925e-1F;
    near = near * s - 3.76125336e-1F;
    near = near * s + 1.28379166e-1F;
    near = near * x + x;
    return t > 0.927734375F ? far : near;
}

INLINE float
natural_logarithm(float x)
{
    /* What is below the least normal number is scaled by 2 to the 25. */
    const int is_small = x < 1.17549435e-38F;
    const float in = is_small ? x * 33554432.0F : x;
    const uint32_t bits = bits_of_float(in);
    /* The mantissa is from sqrt(1/2) to sqrt(2). */
    const uint32_t moved = bits - 0x3f3504f3U;
    const int32_t n = (int32_t)moved >> 23;
    const float m = float_of_bits((moved & 0x7fffffU) + 0x3f3504f3U) - 1.0F, z = m * m;
    const float e = (float)n - (is_small ? 25.0F : 0.0F);
    float p = 7.0376836292e-2F;
    p = p * m - 1.1514610310e-1F;
    p = p * m + 1.1676998740e-1F;
    p = p * m - 1.2420140846e-1F;
    p = p * m + 1.4249322787e-1F;
    p = p * m - 1.6668057665e-1F;
    p = p * m + 2.0000714765e-1F;
    p = p * m - 2.4999993993e-1F;
    p = p * m + 3.3333331174e-1F;
    p = p * m * z - 2.12194440e-4F * e - 0.5F * z + m + 0.693359375F * e;
    p = x > 3.40282347e38F ? x : p;
    p = x == 0.0F ? -INFINITY : p;
    return x < 0.0F || x != x ? NAN : p;
}

/* log(1 + x); the rounding of the sum is divided out (Goldberg 1991, theorem 4). */
INLINE float
log_of_one_and(float x)
{
    const float sum = 1.0F + x, found = natural_logarithm(sum) * (x / (sum - 1.0F));
    return sum == 1.0F || x > 3.40282347e38F ? x : found;
}

/* exp(x) - 1. */
INLINE float
exponential_minus_one(float x)
{
    float in = x > 89.0F ? 89.0F : x;
    in = in < -88.0F ? -88.0F : in;
    int32_t n;
    const float p = exponential_of_rest(in, &n);
    /* The largest results are twice those of the power before. */
    const float power = power_of_two(n > 127 ? 127 : n), last = n > 127 ? 2.0F : 1.0F;
    const float found = (p * power + (power - 1.0F)) * last;
    return fabsf(x) < 1e-7F ? x : found;
}

INLINE float
sign_of(float x)
{
    return x > 0.0F ? 1.0F : x < 0.0F ? -1.0F : x;
}

/* The larger of two numbers; NaN if one is. */
INLINE float
larger(float x, float y)
{
    const float found = x > y ? x : y;
    return x != x ? x : found;
}

INLINE float
smaller(float x, float y)
{
    const float found = x < y ? x : y;
    return x != x ? x : found;
}

#endif
