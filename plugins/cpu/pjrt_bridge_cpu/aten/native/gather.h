/* A custom call that reads elements of an array at positions along a dimension. */

#ifndef PJRT_BRIDGE_CPU_GATHER_H
#define PJRT_BRIDGE_CPU_GATHER_H

#include "xla.h"

/* Operands: the array (outer, length, inner) of elements of 1, 2, 4, 8 or 16 bytes; positions,
 * int32 or int64. Result: (outer, count, inner), of the array's element type. Positions are of its
 * shape, or 1 where they are the same along the outer or the inner dimension. One that is out of
 * range is moved to the nearest that is not. */
Error *gather_along(Frame *frame);

#endif
