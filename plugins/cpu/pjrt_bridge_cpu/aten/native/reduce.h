/* A custom call that reduces the numbers of an elementwise expression, which are not written. */

#ifndef PJRT_BRIDGE_CPU_REDUCE_H
#define PJRT_BRIDGE_CPU_REDUCE_H

#include "xla.h"

/* Operands and attributes: as for an expression, whose last step computes what is reduced; and
 * `reduced`, four int64: the outer, the reduced and the inner elements, and how these are reduced:
 * 0 a sum, 1 the largest, 2 the smallest. Result: outer times inner elements, float32 or bfloat16.
 * Sums of many are added up in float64. */
Error *reduce_expression(Frame *frame);

#endif
