/* Shortcut: the program of calls of one key, on arrays that are on the device. */

#ifndef PJRT_BRIDGE_SHORTCUT_H
#define PJRT_BRIDGE_SHORTCUT_H

#include "key.h"
#include "plan.h"

typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyTypeObject *contents_type; /* Of what results are; a Resident. */
    PyObject *types; /* For each result (type, shape, element type) of its array. */
    PyObject *returns; /* For each result of the operator where it is: see `laid_out`. */
    PyObject *before;  /* () -> what has to happen before; None: nothing. */
    PyObject *numbers; /* (those of the call) -> a list of 0-d tensors of the host behind what a call
                        * gives, or None where the program does not serve these; None: there are none. */
    int64_t *sources;  /* For each parameter the place of what it is among what a call gives. */
    int64_t *updates;  /* Pairs: a place, and the result that it becomes. */
    Py_ssize_t num_updates;
    int index; /* Of the device. */
} Shortcut;

/* Run it. The key gets the numbers. A tuple of the values of `call_operator`, and its keywords or NULL. What the operator
 * gives; NULL without an exception where the call has to go another way. */
PyObject *run_shortcut(Shortcut *self, Key *key, const Arguments *arguments, PyObject *values,
                       PyObject *keywords);

extern PyTypeObject *shortcut_type;
extern PyType_Spec shortcut_spec;

#endif
