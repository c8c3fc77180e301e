/* A custom call that copies elements of arrays to their places in another one: slices, pads,
 * reversals, repetitions, transpositions and concatenations, and any sequence of them. */

#ifndef PJRT_BRIDGE_CPU_ASSEMBLE_H
#define PJRT_BRIDGE_CPU_ASSEMBLE_H

#include "xla.h"

/* Operands: arrays of one element type of whole bytes, at most 16. Result: an array of the type.
 *
 * The result consists of slabs of equal size, one behind the other, and a slab of boxes. Numbers
 * are of elements, int64. Attribute `outer`: sizes of the dimensions of slabs, at most 6 of them,
 * outermost first. Attribute `boxes`, for each box: the operand; its first place in a slab; the
 * element of the operand that is read first, in the first slab; the number of its dimensions, at
 * most 6; how far it is in the operand from one slab to the next, for each of 6 dimensions of
 * slabs; and for each of 6 dimensions of the box, of which the last one is gone through first, its
 * size, how far elements are from each other in the slab, and in the operand: 0 where one is
 * repeated, negative backwards. All boxes together have as many elements as a slab. */
Error *assemble_boxes(Frame *frame);

#endif
