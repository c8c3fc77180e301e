/* Loops that the compiler makes vectors of, in a function for each kind of vectors. */

#ifndef PJRT_BRIDGE_CPU_VECTORS_H
#define PJRT_BRIDGE_CPU_VECTORS_H

#include <stdint.h>
#include <string.h>

/* What is called in such a function is compiled as a part of it. */
#define INLINE static inline __attribute__((always_inline))

/* Before a loop of which no turn reads what another one writes. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

INLINE float
float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t
bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE double
double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint64_t
bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float
from_bfloat16(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

/* The nearest number, ties to even; a NaN stays one. */
INLINE uint16_t
to_bfloat16(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), nan = bits | 0x400000;
    return (uint16_t)((value != value ? nan : rounded) >> 16);
}

typedef enum { PORTABLE, AVX2, AVX512 } Vectors;

/* Processors of x86 without AVX2 are of before 2013: for them size counts, and not speed. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_PORTABLE __attribute__((optimize("Os")))
#else
#define FOR_PORTABLE
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define FOR_AVX2 __attribute__((target("avx2,fma")))
#define FOR_AVX512                                                                                 \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,prefer-vector-width=512")))

static inline Vectors
widest_vectors(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return PORTABLE;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl")
               ? AVX512
               : AVX2;
}
#else
#define FOR_AVX2
#define FOR_AVX512

static inline Vectors
widest_vectors(void)
{
    return PORTABLE;
}
#endif

#endif
