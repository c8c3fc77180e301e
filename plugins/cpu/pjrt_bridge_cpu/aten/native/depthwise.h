/* A custom call that convolves each channel by itself, or computes the gradient of the weights of
 * such a convolution. */

#ifndef PJRT_BRIDGE_CPU_DEPTHWISE_H
#define PJRT_BRIDGE_CPU_DEPTHWISE_H

#include "xla.h"

/* Operands, of one element type, and result: float32 or bfloat16; sums are in float32. The first
 * numbers of the attribute `window` (convolution.h): 1 for the gradient of weights, else 0; 1 if
 * channels are the last dimension in memory, 0 if they are behind the batches; batches, channels.
 *
 * A convolution: data and weights (channel by channel, row-major), to the result. The gradient of
 * weights: data, whose elements have a distance of 1, and the result's gradient, to the weights. */
Error *convolve_depthwise(Frame *frame);

#endif
