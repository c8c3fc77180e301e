/* A custom call that writes windows of elements into an array, at positions that are computed.
 *
 * Its result shares the memory of its first operand, so that only what is written costs time.
 */

#ifndef PJRT_BRIDGE_CPU_WINDOWS_H
#define PJRT_BRIDGE_CPU_WINDOWS_H

#include "xla.h"

/* Operands: the array; positions (count, dimensions), int64; the windows, of the rank of the array
 * and one more, of the array's element type. Result: as the array. The attribute `how` has int64:
 * which dimension of the windows counts them, and the dimensions of the array that a position
 * names; in the others windows begin at 0. A window that does not lie in the array is not written;
 * of several that overlap, the last one is there. */
Error *write_windows(Frame *frame);

#endif
