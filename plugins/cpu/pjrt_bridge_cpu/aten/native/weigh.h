/* A custom call that sums elements of an array along a dimension by constant weights. */

#ifndef PJRT_BRIDGE_CPU_WEIGH_H
#define PJRT_BRIDGE_CPU_WEIGH_H

#include "xla.h"

/* Operands: the array (outer, length, inner), float32 or float64; places (terms, count), int32;
 * weights (terms, count), of the array's element type. Result: (outer, count, inner). A term whose
 * place is not in the array is none. */
Error *weigh_along(Frame *frame);

#endif
