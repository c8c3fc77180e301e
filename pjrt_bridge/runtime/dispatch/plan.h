/* Plan: all that is known of an executable before a call gives values. */

#ifndef PJRT_BRIDGE_PLAN_H
#define PJRT_BRIDGE_PLAN_H

#include "abi.h"
#include "dlpack.h"
#include "idle_threads.h"
#include "process.h"
#include "resizing.h"

#include <stdbool.h>
#include <stdint.h>

/* How the elements of an argument or a result lie in memory. */
typedef struct {
    int type; /* PJRT_Buffer_Type */
    DLDataType dtype;
    int32_t rank;
    int64_t nbytes;
    Py_ssize_t position; /* Of an argument among the values; -1: its buffer is always kept. Of a result:
                          * that of the value that it is the new value of; -1: of none. */
    Py_ssize_t parameter; /* Of such a result: the one that has this value; -1: none. */
    bool written;        /* The program writes the new value of an argument into its memory. */
    const int64_t *shape, *strides;         /* In elements, as the framework's graph sees it. */
    const int64_t *dims;                    /* Shape of the row-major array in memory. */
    int64_t *tensor_shape, *tensor_strides; /* Of the tensor over a result. */
} Form;

typedef struct Workspace Workspace;

typedef struct {
    PyObject_HEAD
    Function table[NUM_FUNCTIONS];
    void *client, *executable, *device, *options;
    PyObject *client_handle, *executable_handle;
    PyObject *options_owner;
    PyObject *failure;  /* (PJRT_Error or 0, function, what it made) -> exception */
    PyObject *refusal;  /* () -> the exception that says why nothing can be launched any more */
    PyObject *queue;    /* (Pending) -> it is asked later whether it is over */
    PyTypeObject *tensor_type;
    DLPackExchangeAPI *exchange; /* NULL: the framework has capsules. */
    PyObject *is_lazy;           /* (tensor) -> its memory does not hold its values as they are */
    PyObject *owner;             /* (tensor) -> what keeps its memory */
    PyObject *export; /* (tensor) -> a capsule, which keeps its memory; None: it cannot be read */
    PyObject *adopt;  /* (capsule) -> a tensor over what it holds, which it takes */
    PyObject *wrote;  /* (tensors) -> it is told of those that were written into */
    Resizing resizing; /* Of tensors that the exchange makes. */
    IdleThreads idle;  /* Of the framework. Several threads may note at a time what they found. */
    PyObject *numbers; /* Bytes that the forms point into. */
    Py_ssize_t num_parameters, num_results;
    Py_ssize_t num_updates; /* Results that are new values of arguments. */
    Form *parameters, *results;
    Workspace *workspace;   /* For the next run; NULL while a run has it. */
    int64_t shared, copied; /* Bytes, in the last `call`. */
    int generation;
} Plan;

/* What a capsule holds; NULL with an exception where that is of another version. */
DLPackExchangeAPI *read_exchange(PyObject *capsule);

PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
void plan_dealloc(Plan *self);

extern PyTypeObject *plan_type;

/* Set the exception that belongs to a PJRT_Error, which Python destroys; where that is NULL, the
 * function `made` something else than it has to. */
void raise_failure(Plan *plan, void *error, const char *function, const char *made);

/* 0 where this thread may call the plugin; else -1 with an exception. */
int check_may_call(Plan *plan);

/* A new reference to what keeps a handle's object from being destroyed; NULL with an exception
 * where it was closed. */
PyObject *lease_of(Plan *plan, PyObject *handle);

/* The plugin's buffer that a handle of Python owns, and a new reference to its lease; NULL, without an
 * exception, where it has none or was closed. */
void *leased_buffer(PyObject *handle, PyObject **lease);

/* The rest needs no GIL. */

/* Whether an event was signalled, or the plugin cannot tell. */
bool is_ready(Plan *plan, void *event);

void destroy_error(Plan *plan, void *error);

void destroy_event(Plan *plan, void *event);

/* False where the plugin refuses, and keeps it. */
bool destroy_buffer(Plan *plan, void *buffer);

#endif
