/* Guards: functions for JAX's copy of a plugin's table, where the plugin's own may be Python's.
 *
 * JAX destroys its objects wherever Python drops them, also while an exception is set, and Python code
 * that ran then would fail at its first call. A guard sets the exception aside for the length of a
 * call.
 */

#ifndef PJRT_BRIDGE_JAX_GUARDS_H
#define PJRT_BRIDGE_JAX_GUARDS_H

#include "process.h"

/* The address of the guard of a function, as Python's numbers; NULL with an exception. */
PyObject *guard(PyObject *address);

#endif
