/* How the framework's tensors over memory of plugins become resizable.
 *
 * A framework that resizes a tensor takes memory from the allocator that the tensor's storage names,
 * copies, and drops what was there. DLPack has no word for this, so a tensor that is made through it
 * has no allocator and cannot be resized. What says so is written here, where the framework's adapter
 * found it (`pjrt_bridge.torch_interop.compat.devices.resizing`). The plugin's memory goes back by the
 * tensor's deleter, as when the tensor is dropped.
 */

#ifndef PJRT_BRIDGE_RESIZING_H
#define PJRT_BRIDGE_RESIZING_H

#include "process.h"

#include <stdbool.h>
#include <stddef.h>

/* Where a framework keeps what lets it resize the memory of a tensor, in bytes.
 *
 * A tensor's object holds the address of its implementation, that the address of its storage, and
 * the storage an allocator and a flag: whether other memory may be taken from the allocator. */
typedef struct {
    bool known; /* Else tensors stay as they are made. */
    size_t implementation, storage, resizable, allocator;
    void *value; /* The allocator that gives other memory. */
} Resizing;

/* Read five numbers in this order, or None where nothing is known; -1 with an exception where it is
 * something else. */
int read_resizing(PyObject *numbers, Resizing *resizing);

/* Let the framework resize the memory of a tensor that was just made. */
void let_resize(const Resizing *resizing, void *tensor);

#endif
