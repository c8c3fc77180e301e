/* A custom call that reduces integers and long floats along a dimension. */

#ifndef PJRT_BRIDGE_CPU_TOTAL_H
#define PJRT_BRIDGE_CPU_TOTAL_H

#include "xla.h"

/* Operand: (outer, length, inner) of int32, int64 or float64, with elements. Result: (outer, inner)
 * of its element type. Attribute `how`: one int64, 0 for sums, 1 for the largest, 2 for the smallest
 * elements; a NaN is both. Sums of floats are of parts whose length does not depend on threads. */
Error *total_along(Frame *frame);

#endif
