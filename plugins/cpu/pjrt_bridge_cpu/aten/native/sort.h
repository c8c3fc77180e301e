/* A custom call that sorts rows. */

#ifndef PJRT_BRIDGE_CPU_SORT_H
#define PJRT_BRIDGE_CPU_SORT_H

#include "xla.h"

/* Operand: (rows, length) of booleans, integers, or real floats of at most 64 bits. Results: the
 * elements of each row in order, and the positions that they had, int32 or int64. Attribute: the
 * text `descending`, if they begin with the largest. Equal elements keep their order; -0.0 and 0.0
 * are equal, and all NaN, which are larger than any number. */
Error *sort_rows(Frame *frame);

#endif
