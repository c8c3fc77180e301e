/* A custom call that computes attention of few queries, as a model that makes one token after the
 * other does. */

#ifndef PJRT_BRIDGE_CPU_ATTEND_H
#define PJRT_BRIDGE_CPU_ATTEND_H

#include "xla.h"

/* Operands, of one element type, float32 or bfloat16: queries (batches, heads, queries, size); keys
 * (batches, key heads, keys, size) and values (batches, key heads, keys, width); and a float32 mask
 * that is added to scores, (batches, heads, queries, keys), of which each but the last may be 1
 * instead, and which has no elements where nothing is masked. Consecutive heads share a key head.
 * Results: (batches, heads, queries, width), of the same element type, and float32 (batches, heads,
 * queries), the logarithm of the sum of the exponentials of a query's scores. All are row-major.
 *
 * The attribute `how` has two int64: whether the dimensions of the keys, and of the values, are
 * (batches, keys, key heads, ...) instead; `scale` one float32, which scores are multiplied with.
 * Where all scores of a query are -inf both results are 0. */
Error *attend_few(Frame *frame);

#endif
