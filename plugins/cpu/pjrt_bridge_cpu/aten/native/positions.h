/* A custom call that gives a tensor of positions as it is, and fails where one is out of range. */

#ifndef PJRT_BRIDGE_CPU_POSITIONS_H
#define PJRT_BRIDGE_CPU_POSITIONS_H

#include "xla.h"

/* Operand and result: int32 or int64, of one shape. Second operand: the smallest and the largest
 * position (two int64). Attributes: `where`, what the message begins with, and `refusal`, which may
 * be left out: what it says in the place of the range. */
Error *check_positions(Frame *frame);

#endif
