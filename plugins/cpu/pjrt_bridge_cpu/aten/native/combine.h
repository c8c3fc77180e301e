/* A custom call that combines numbers with those of an array, at positions along a dimension.
 *
 * Its result shares the memory of its first operand, so that only what is written costs time.
 */

#ifndef PJRT_BRIDGE_CPU_COMBINE_H
#define PJRT_BRIDGE_CPU_COMBINE_H

#include "xla.h"

/* Operands: the array (outer, length, inner) of float32, float64, int32 or int64; positions, int64;
 * updates (outer, count, inner) of the array's element type. Positions are of the shape of the
 * updates, or 1 where they are the same along the outer or the inner dimension. Result: as the
 * array. The attribute `how` is an int64: 0 adds, 1 multiplies, 2 takes the larger one, 3 the
 * smaller one, 4 the update. NaN is larger and smaller than all others. An update at a position out
 * of range is left out; those at one place come in their order. */
Error *combine_along(Frame *frame);

#endif
