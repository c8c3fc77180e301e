/* The arguments of a run: buffers that are kept, and values that a call gives. */

#ifndef PJRT_BRIDGE_ARGUMENTS_H
#define PJRT_BRIDGE_ARGUMENTS_H

#include "run.h"

/* Where arguments come from. */
typedef struct {
    PyObject *values;                         /* A list or a tuple. */
    PyObject *(*get)(PyObject *, Py_ssize_t); /* A borrowed item of it. */
    PyObject *bundle; /* Handle that keeps the kept buffers; None where there are none. */
    void *const *kept, *const *addresses; /* For each parameter its buffer, and where its value is. */
    PyObject *copies;                     /* Positions of values that were copied, or None. */
    bool call; /* No value is lazy, and the values stay until the end. */
} Source;

/* What became of the arguments.
 *
 * STALE: a value is in other memory than when it was kept, or lies there otherwise. UNFIT: a value
 * cannot go in as it is. FAILED: there is an exception. */
enum Found { FOUND, STALE, UNFIT, FAILED };

/* Read what is kept, which has to outlive `source`; -1 with an exception where it is not that.
 *
 * It is `PinnedBuffers.parts`: a handle or None, buffers and addresses as bytes, and what keeps the
 * handle. */
int read_kept(const Plan *plan, PyObject *parts, Source *source);

/* Find the buffer or the host memory of each parameter of an open run: the arguments in its workspace
 * get the buffers that there are, `num_host_inputs` host inputs describe the others. `position` is
 * that of the value that is UNFIT. */
enum Found find_arguments(Run *run, const Source *source, Py_ssize_t *num_host_inputs,
                          Py_ssize_t *position);

/* After that: have the run copy the results that are new values of arguments to where these are. */
enum Found find_targets(Run *run, const Source *source, Py_ssize_t *position);

#endif
