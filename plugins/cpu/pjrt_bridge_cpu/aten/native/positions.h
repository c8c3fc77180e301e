/* A custom call that fails where a position is out of range. */

#ifndef PJRT_BRIDGE_CPU_POSITIONS_H
#define PJRT_BRIDGE_CPU_POSITIONS_H

#include "xla.h"

/* Operands: the positions, int32 or int64, and the smallest and the largest that are in range (two
 * int64). Result: one bool, true. Attributes: `where`, what the message begins with, and `refusal`,
 * which may be left out: what it says in the place of the range. */
Error *check_positions(Frame *frame);

#endif
