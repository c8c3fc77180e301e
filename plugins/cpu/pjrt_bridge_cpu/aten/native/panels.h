/* A matrix in panels of columns that are read from end to end, and products of rows with one.
 *
 * A panel has, for each element of the inner dimension, some vectors of LANES columns. Sums of a
 * product stay in registers, as many as there are: 32 of AVX-512, 16 of AVX2.
 */

#ifndef PJRT_BRIDGE_CPU_PANELS_H
#define PJRT_BRIDGE_CPU_PANELS_H

#include "vectors.h"

enum {
    LANES = 16,    /* Floats of a vector of columns. */
    MOST_SUMS = 24 /* Vectors of sums of one product. */
};

/* Vectors of sums for which there are registers. */
INLINE int
most_sums(Vectors kind)
{
    return kind == AVX512 ? MOST_SUMS : kind == AVX2 ? 6 : 3;
}

/* Sums of products of some rows with a panel, both of constant number, in a processor's vectors of
 * WIDTH floats: compilers keep wider ones in memory. */
#define MULTIPLY_ROWS(NAME, WIDTH)                                                                 \
    typedef float NAME##_floats __attribute__((vector_size(WIDTH * 4)));                           \
    typedef NAME##_floats NAME##_anywhere __attribute__((aligned(4), may_alias));                  \
    INLINE void NAME(int vectors, int rows, const float *x, int64_t stride, int64_t inner,         \
                     const float *panel, float *sums)                                              \
    {                                                                                              \
        const int each = vectors * LANES / WIDTH;                                                  \
        NAME##_floats totals[MOST_SUMS * LANES / WIDTH] = {{0}};                                   \
        for (int64_t k = 0; k < inner; k++) {                                                      \
            const float *columns = panel + k * vectors * LANES;                                    \
            _Pragma("GCC unroll 24") for (int r = 0; r < rows; r++)                                \
            {                                                                                      \
                const float factor = x[r * stride + k];                                            \
                _Pragma("GCC unroll 16") for (int v = 0; v < each; v++)                            \
                    totals[r * each + v] +=                                                        \
                        factor * *(const NAME##_anywhere *)(columns + v * WIDTH);                  \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 24") for (int i = 0; i < rows * each; i++)                             \
            *(NAME##_anywhere *)(sums + i * WIDTH) = totals[i];                                    \
    }

MULTIPLY_ROWS(multiply_in_4, 4)
MULTIPLY_ROWS(multiply_in_8, 8)
MULTIPLY_ROWS(multiply_in_16, 16)

/* The same for any number of rows up to those for whose sums there are registers. */
INLINE void
multiply_panel(Vectors kind, int vectors, int64_t rows, const float *x, int64_t stride,
               int64_t inner, const float *panel, float *sums)
{
#define CASE(count)                                                                                \
    case count:                                                                                    \
        if (kind == AVX512 && count * vectors <= MOST_SUMS)                                        \
            multiply_in_16(vectors, count, x, stride, inner, panel, sums);                         \
        else if (kind == AVX2 && count <= 2)                                                       \
            multiply_in_8(vectors, count, x, stride, inner, panel, sums);                          \
        else if (count == 1)                                                                       \
            multiply_in_4(vectors, count, x, stride, inner, panel, sums);                          \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
    }
#undef CASE
}

#endif
