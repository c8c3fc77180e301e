/* A custom call that finds where the largest or smallest elements are. */

#ifndef PJRT_BRIDGE_CPU_EXTREMES_H
#define PJRT_BRIDGE_CPU_EXTREMES_H

#include "xla.h"

/* Operand: (outer, length, inner) of booleans, integers, or real floats of at most 64 bits; length
 * is not 0. Result: (outer, inner), int32 or int64: the first position along the second dimension
 * of the largest element, or of the smallest with the attribute `smallest`, a text. -0.0 and 0.0
 * are equal; a NaN is both the largest and the smallest. */
Error *find_extremes(Frame *frame);

#endif
