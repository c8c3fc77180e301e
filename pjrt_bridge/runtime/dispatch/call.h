/* Plan.launch and Plan.call: from values to a launch, or to tensors. */

#ifndef PJRT_BRIDGE_CALL_H
#define PJRT_BRIDGE_CALL_H

#include "plan.h"

/* A list of a tensor over each result but those that were written into their arguments, when all is
 * over; None where a value does not fit as it is, or what is kept is stale. `values` is a tuple, and
 * none that the program reads is lazy. */
PyObject *call_plan(Plan *self, PyObject *values, PyObject *kept);

extern PyType_Spec plan_spec;

#endif
