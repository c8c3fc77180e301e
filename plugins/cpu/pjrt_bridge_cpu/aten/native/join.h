/* A custom call that puts parts of arrays one behind the other. */

#ifndef PJRT_BRIDGE_CPU_JOIN_H
#define PJRT_BRIDGE_CPU_JOIN_H

#include "xla.h"

/* Operands: arrays (outer, any, inner) of one element type of whole bytes, at most eight. Result:
 * (outer, length, inner). Attribute `ranges`: two int64 an operand, the first element along the
 * second dimension that is taken and the one behind the last; together they are the length. */
Error *join_parts(Frame *frame);

#endif
