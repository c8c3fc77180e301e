/* A custom call that normalizes rows: layer norm, RMS norm, group norm.
 *
 * A row stays in the first cache while it is summed and written, so that memory is read and written
 * once.
 */

#ifndef PJRT_BRIDGE_CPU_NORM_H
#define PJRT_BRIDGE_CPU_NORM_H

#include "xla.h"

/* Operands: x (rows, length), weight and bias (sets, count), float32 or bfloat16. Row r has set
 * r % sets, of which each number is for length / count elements side by side. Results:
 * (x - mean) * rstd * weight + bias, of the shape of x, float32 or bfloat16, computed in float32 and
 * rounded; mean and rstd (rows), float32, where rstd = 1 / sqrt(variance + eps) with the biased
 * variance. All are row-major. The attribute `how` has three int64: whether rows are centered,
 * else the mean is 0; whether (x - mean) * rstd is rounded to bfloat16; and the widest vectors that
 * may be used: 0 the portable ones, 1 those of AVX2, 2 those of AVX-512. The attribute `eps` has one float64. */
Error *normalize_rows(Frame *frame);

#endif
