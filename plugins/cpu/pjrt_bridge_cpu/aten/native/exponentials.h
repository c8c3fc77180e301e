/* Exponentials and logarithms of float64 that are good to float32, as vectors.
 *
 * They are series: their terms are those of the exponential, and of the area tangent.
 */

#ifndef PJRT_BRIDGE_CPU_EXPONENTIALS_H
#define PJRT_BRIDGE_CPU_EXPONENTIALS_H

#include "vectors.h"

/* exp(x) to 1e-13 of itself, for x <= 0; a NaN stays one. Below -708 it is exp(-708). */
INLINE double
exponential_of_negative(double x)
{
    /* Adding this number rounds to an integer, which the sum's bits end in. */
    const double shift = 0x1.8p52, in = x < -708.0 ? -708.0 : x;
    const double sum = in * 0x1.71547652b82fep0 + shift, whole = sum - shift;
    const double r = in - whole * 0x1.62e42fefa0000p-1 - whole * 0x1.cf79abc9e3b3ap-40;
    double p = 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 1.0 / 2;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * double_of_bits((bits_of_double(sum) - bits_of_double(shift) + 1023) << 52);
}

/* log(1 + x) to 1e-13 of itself, for x >= 0; a NaN stays one. */
INLINE double
logarithm_of_one_and(double x)
{
    /* 1 + x is a power of two and a mantissa from sqrt(1/2) to sqrt(2). */
    const uint64_t root = 0x3fe6a09e667f3bcd, moved = bits_of_double(1.0 + x) - root;
    const double mantissa = double_of_bits((moved & 0xfffffffffffff) + root);
    const double power = double_of_bits(moved >> 52 | 0x4330000000000000) - 0x1p52;
    const int is_small = x < 0x1.a8p-2;
    const double f = is_small ? x : mantissa - 1.0, k = is_small ? 0.0 : power;
    const double t = f / (2.0 + f), z = t * t;
    double p = 2.0 / 17;
    p = p * z + 2.0 / 15;
    p = p * z + 2.0 / 13;
    p = p * z + 2.0 / 11;
    p = p * z + 2.0 / 9;
    p = p * z + 2.0 / 7;
    p = p * z + 2.0 / 5;
    p = p * z + 2.0 / 3;
    p = p * z * t + 2.0 * t + k * 0x1.62e42fefa39efp-1;
    return x != x ? x : p;
}

#endif
