/* Custom calls that run a recurrent layer over all steps of time, and its gradients back. */

#ifndef PJRT_BRIDGE_CPU_RECURRENCE_H
#define PJRT_BRIDGE_CPU_RECURRENCE_H

#include "xla.h"

#include <stdbool.h>

/* Kinds of cells, as `torch_interop/recurrent/operators.py` states them. */
typedef enum { OF_TANH, OF_RELU, OF_GRU, OF_LSTM, KINDS } Kind;

/* Numbers of the attribute `how`, int64: the kind, and whether it goes from the last step to the
 * first. */
enum { RECURRENCE_NUMBERS = 2 };

/* Arrays are float32, but for the count of steps that are no padding, one int64. Of a layer:
 *
 *     given (steps, batch, gates * size)   the products of the inputs
 *     state, cells (batch, size)           the first ones
 *     weight (gates * size, size)          of the state
 *     bias (gates * size)                  of it, or of size 0
 *     states, all_cells (steps, batch, size)
 *     saved (steps, batch, 4 * size)       what gradients need of a GRU or an LSTM
 *
 * Only an LSTM has cells: those of others are of size 0.
 *
 * Operands: given, state, cells, weight, bias, count. Results: states, all_cells, saved, which is of
 * size 0 where gradients need nothing. */
Error *run_recurrence(Frame *frame);

/* Operands: gradients of states and of all_cells, states, all_cells, saved, state, cells, weight,
 * count. Results: gradients of what is given; for a GRU those of the products of the state, for
 * others of size 0; those of the first state and of the first cells. */
Error *run_recurrence_backward(Frame *frame);

#endif
