/* A custom call that convolves each channel by itself, or computes the gradient of the weights of
 * such a convolution. */

#ifndef PJRT_BRIDGE_CPU_DEPTHWISE_H
#define PJRT_BRIDGE_CPU_DEPTHWISE_H

#include "xla.h"

/* Elements of a channel's weights, at most. */
enum { MOST_TAPS = 64 };

/* Operands, of one element type, and result: float32 or bfloat16; sums are in float32. The attribute `window` has so many
 * int64: 1 for the gradient of weights, else 0; 1 if channels are the last dimension in memory, 0
 * if they are behind the batches; batches, channels; and in pairs, of height and width, the sizes of
 * the data, of the result (of its gradient), of the weights, and per dimension the distance of
 * windows, of the data's elements (zeros are between them), of the weights' elements, and the zeros
 * before the data, of which a negative number cuts.
 *
 * A convolution: data and weights (channel by channel, row-major), to the result. The gradient of
 * weights: data, whose elements have a distance of 1, and the result's gradient, to the weights. */
enum { WINDOW = 4 + 2 * 7 };
Error *convolve_depthwise(Frame *frame);

#endif
