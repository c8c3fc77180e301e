/* Tensors over memory of plugins that the framework can resize.

   A framework that resizes a tensor takes memory from the allocator that the tensor's storage names,
   copies, and drops what was there. DLPack has no word for this, so a tensor that is made through it
   has no allocator and cannot be resized. What says so is written here, where the framework's adapter
   found it (`pjrt_bridge.torch_interop.compat.resizing`). The plugin's memory goes back by the
   tensor's deleter, as when the tensor is dropped. */

#include "_resizing.h"

#include <stdint.h>
#include <string.h>

int read_resizing(PyObject *numbers, Resizing *resizing) {
    *resizing = (Resizing){0};
    if (numbers == Py_None) {
        return 0;
    }
    unsigned long long implementation, storage, resizable, allocator, value;
    if (!PyArg_ParseTuple(numbers, "KKKKK", &implementation, &storage, &resizable, &allocator,
                          &value)) {
        return -1;
    }
    *resizing = (Resizing){.known = true,
                           .implementation = (size_t)implementation,
                           .storage = (size_t)storage,
                           .resizable = (size_t)resizable,
                           .allocator = (size_t)allocator,
                           .value = (void *)(uintptr_t)value};
    return 0;
}

static char *address_at(const char *object, size_t offset) {
    char *address;
    memcpy(&address, object + offset, sizeof(address));
    return address;
}

void let_resize(const Resizing *resizing, void *tensor) {
    if (!resizing->known) {
        return;
    }
    char *storage = address_at(address_at(tensor, resizing->implementation), resizing->storage);
    memcpy(storage + resizing->allocator, &resizing->value, sizeof(resizing->value));
    storage[resizing->resizable] = 1;
}
