/* State of the process, and the way in and out of plugins. */

#ifndef PJRT_BRIDGE_PROCESS_H
#define PJRT_BRIDGE_PROCESS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>

#ifdef Py_GIL_DISABLED
#error "What this module knows is guarded by the GIL: it cannot be built for free-threaded Python."
#endif

/* Guarded by the GIL, where nothing else is said. */
extern struct Process {
    long calls;       /* Calls into plugins that are under way. */
    long num_buffers; /* Plugin objects that belong to runs, outputs and what is pending. */
    long num_events;
    int generation;              /* Raised by a fork: what was made before is the parent's. */
    unsigned long exiting;       /* The thread that runs the exit handlers; 0 before these run. */
    atomic_bool plugins_are_gone; /* Nothing is given back any more. Read without the GIL, too. */
} process;

/* An entry of a list of methods, of whatever type its function is. */
#define METHOD(name, function, flags, doc) \
    {name, (PyCFunction)(void (*)(void))(function), flags, doc}

/* Release the GIL for calls into a plugin, during which the interpreter does not exit. Nothing that
 * is done until `leave_plugin` may raise. */
PyThreadState *enter_plugin(void);
void leave_plugin(PyThreadState *state);

/* Whether plugin objects that were made in some generation may be given back. */
bool can_give_back(int generation);

#endif
