/* Run: one execution of a plan, from host memory to results. */

#ifndef PJRT_BRIDGE_RUN_H
#define PJRT_BRIDGE_RUN_H

#include "output.h"
#include "pending.h"

/* Host memory that becomes an input. */
typedef struct {
    Py_ssize_t parameter;
    const void *data;
    bool share;
} HostInput;

/* Memory of the framework that a result is copied to. */
typedef struct {
    Py_ssize_t result;
    void *data;
} Update;

/* Arrays as long as a plan's parameters, or its results, or both. */
struct Workspace {
    void **arguments;      /* Buffers of the parameters. */
    const void **memories; /* Where the values of the parameters are. */
    HostInput *host_inputs;
    Input *inputs;
    PyObject **owners; /* Of values of parameters, and of what results are copied to. */
    Update *updates;
    void **results; /* Buffers. */
    Output **outputs;
};

/* An execution, and what is made for it and with it. All zeros before it is opened. */
typedef struct {
    Execution execution;
    void *executable; /* That of the plan when the lease of its handle was taken. */
    Workspace *workspace;
    Py_ssize_t num_outputs, num_updates;
    int64_t shared, copied; /* Bytes of inputs. */
} Run;

/* Begin to own: the objects that get the results are there before the plugin is called. -1 with an
 * exception; the run has to be closed then, too. */
int open_run(Run *self, Plan *plan, PyObject *lease);

/* Own nothing any more. Outputs that were handed on stay, whether they are there or not. */
void close_run(Run *self);

/* Make buffers of the first `num_host_inputs` of the workspace and execute; wait for the end if that
 * is asked for. -1 with an exception where the plugin failed. */
int start_run(Run *self, Py_ssize_t num_host_inputs, bool wait);

/* How an execution ended. */
typedef struct {
    bool complete;
    void *error;
    const char *function; /* That failed. */
    const char *made;     /* What it made, where it gave no error. */
    bool interrupted;     /* By an exception that is set: it has not ended. */
    Dropped dropped;
} Ending;

/* Wait for the end of what was started, whose event is `done` and is taken over unless a signal
 * interrupts. Give back what is not needed any more, look where the results are, and if all are there
 * make the updates. Without the GIL; `state` is what `enter_plugin` gave. */
Ending await_end(Run *self, void *done, PyThreadState **state);

/* Count what was given back, and let go of the memory of the inputs. -1 with an exception where the
 * execution failed. */
int settle(Run *self, Ending ending);

/* A list of a tensor over each result but those that the run has copied to their places; NULL with an
 * exception. */
PyObject *tensors_of(const Run *self);

#endif
