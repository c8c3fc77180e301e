/* A custom call that sums rows of a table by bags of their positions. */

#ifndef PJRT_BRIDGE_CPU_BAGS_H
#define PJRT_BRIDGE_CPU_BAGS_H

#include "xla.h"

/* Operands: the table (rows, width), float32, float64 or bfloat16; positions (count), int32
 * or int64; ends (bags + 1), int64: bag i has the positions from ends[i] up to ends[i + 1]; factors
 * of rows (count), or none (0), float64 for a table of float64, else float32. Result: (bags, width),
 * of the table's element type, summed in the type of the factors and rounded once; a bag of no row
 * is 0. The attribute `how` has two int64: whether sums are divided by the number of rows; and a
 * position that is left out, as those are that are out of range. */
Error *sum_bags(Frame *frame);

#endif
