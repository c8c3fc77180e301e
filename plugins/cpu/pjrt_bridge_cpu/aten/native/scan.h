/* A custom call of running sums, products, and logarithms of sums of exponentials. */

#ifndef PJRT_BRIDGE_CPU_SCAN_H
#define PJRT_BRIDGE_CPU_SCAN_H

#include "xla.h"

/* Operand and result: (outer, length, inner) of float32, bfloat16, float64, int32 or int64, which
 * are combined along the length. Attribute `how`: two int64, 0 for sums, 1 for products, of floats
 * alone, 2 for logarithms of sums of exponentials, of float32 or bfloat16 alone; and 1 to go from
 * the last element to the first, or 0. What is combined is float64 for float32, and float32 for
 * bfloat16; integers wrap around. All is in order, but for sums of float32 and bfloat16 where
 * `inner` is 1: these are of vectors and parts whose length does not depend on threads. */
Error *scan_along(Frame *frame);

#endif
