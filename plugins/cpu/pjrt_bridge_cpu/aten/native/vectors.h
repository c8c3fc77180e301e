/* Loops that the compiler makes vectors of, in a function for each kind of vectors. */

#ifndef PJRT_BRIDGE_CPU_VECTORS_H
#define PJRT_BRIDGE_CPU_VECTORS_H

/* What is called in such a function is compiled as a part of it. */
#define INLINE static inline __attribute__((always_inline))

typedef enum { PORTABLE, AVX2, AVX512 } Vectors;

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
