/* Custom calls that pool the maxima, or the averages, of windows of a plane. */

#ifndef PJRT_BRIDGE_CPU_POOL_H
#define PJRT_BRIDGE_CPU_POOL_H

#include "xla.h"

/* Numbers of the attribute `window`, int64: for height and width the places of a window, and then in
 * the same way the distance of windows, the padding before the plane, the distance of places. */
enum { WINDOW_NUMBERS = 8 };

/* Operand: planes (outer, height, width, inner), float32. Result: the maximum of each window, (outer,
 * rows, columns, inner), float32. A NaN is the maximum of its window. */
Error *pool_maxima(Frame *frame);

/* The same operand. Result: int64, the position of each maximum in its plane, row by row: the first
 * one in the window, or the last NaN. */
Error *pool_positions(Frame *frame);

/* Operands: the same, and what the sum of each window is divided by, (rows, columns), float32. Result:
 * the quotients; what is around a plane counts for nothing. */
Error *pool_averages(Frame *frame);

/* Operands: a number for each window, float32, and the position that it belongs to, int64. Result:
 * planes (outer, height, width, inner) of the sums. A position outside of its plane belongs to
 * nothing. */
Error *pool_gradients(Frame *frame);

#endif
