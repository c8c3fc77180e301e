/* A custom call that convolves a few small pictures, or lines, whose channels are few. */

#ifndef PJRT_BRIDGE_CPU_CONVOLVE_H
#define PJRT_BRIDGE_CPU_CONVOLVE_H

#include "xla.h"

/* Operands, of one element type, and result: float32 or bfloat16, row-major; sums are in float32.
 * The data (batches, groups, inputs, height, width), the weights (groups, outputs, inputs, height,
 * width) and the result (batches, groups, outputs, height, width). The first numbers of the attribute
 * `window` (convolution.h): batches, groups, inputs and outputs of a group. */
Error *convolve_small(Frame *frame);

#endif
