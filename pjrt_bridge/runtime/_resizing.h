/* How the framework's tensors over memory of plugins become resizable. */

#ifndef PJRT_BRIDGE_RESIZING_H
#define PJRT_BRIDGE_RESIZING_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>

/* Where a framework keeps what lets it resize the memory of a tensor, in bytes.

   A tensor's object holds the address of its implementation, that the address of its storage, and
   the storage an allocator and a flag: whether other memory may be taken from the allocator. */
typedef struct {
    bool known; /* Else tensors stay as they are made. */
    size_t implementation, storage, resizable, allocator;
    void *value; /* The allocator that gives other memory. */
} Resizing;

/* Read five numbers in this order, or None where nothing is known; -1 with an exception where it is
   something else. */
int read_resizing(PyObject *numbers, Resizing *resizing);

/* Let the framework resize the memory of a tensor that nobody else has yet. */
void let_resize(const Resizing *resizing, void *tensor);

#endif
