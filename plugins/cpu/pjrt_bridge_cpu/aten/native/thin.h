/* A custom call that multiplies few rows by weights, in the weights' own element type.
 *
 * Such a product reads each weight once, so that memory bounds it: weights are not converted or put
 * into another order in memory.
 */

#ifndef PJRT_BRIDGE_CPU_THIN_H
#define PJRT_BRIDGE_CPU_THIN_H

#include "xla.h"

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

#endif
