/* A custom call that multiplies few rows by weights, in the weights' own element type.
 *
 * Such a product reads each weight once, so that memory bounds it: weights are not converted or put
 * into another order in memory.
 */

#ifndef PJRT_BRIDGE_CPU_THIN_H
#define PJRT_BRIDGE_CPU_THIN_H

#include "xla.h"

#include <stdbool.h>
#include <stddef.h>

/* Rows for which weights are read once, and columns of a unit, in which a product is divided among
 * threads. */
#define MOST_ROWS 16
#define UNIT 64

/* Operands: x (batches, rows, inner), float32 or bfloat16; the weights, float32, bfloat16 or int8.
 * Result: (batches, rows, columns), float32 or bfloat16, summed in float32 and rounded once. All are
 * row-major. The attribute `how` has two int64: whether the weights are (batches, columns, inner),
 * else they are (batches, inner, columns); and the widest vectors that may be used: 0 the portable
 * ones, 1 those of AVX2, 2 those of AVX-512, 3 those of AVX-512 with products of bfloat16. */
Error *multiply_thin(Frame *frame);

/* Such a product. */
typedef struct {
    const char *x, *weights;
    char *result;
    int x_type, weight_type, result_type;
    int64_t batches, rows, inner, columns;
    int64_t stride; /* Bytes from one row of the weights, as they are in memory, to the next one. */
    bool is_transposed;
    int vectors; /* The widest that may be used. */
    float *copy; /* Of x, in the order in which the loops read it. */
} Thin;

/* Floats of the copy of x. */
size_t floats_of_copy(int64_t rows, int64_t inner);

/* Compute a product of one batch and at most MOST_ROWS rows on this thread, whatever vectors it
 * says. copy: as many floats as `floats_of_copy` says, at a line of the cache. */
void multiply_rows(const Thin *thin, float *copy);

#endif
