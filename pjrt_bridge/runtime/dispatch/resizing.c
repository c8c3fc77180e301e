/* See resizing.h. */

#include "resizing.h"

#include <stdint.h>
#include <string.h>

int
read_resizing(PyObject *numbers, Resizing *resizing)
{
    *resizing = (Resizing){0};
    if (numbers == Py_None)
        return 0;
    unsigned long long implementation, storage, resizable, allocator, value;
    if (!PyTuple_Check(numbers)) {
        PyErr_SetString(PyExc_TypeError, "resizing: expected a tuple of five numbers, or None");
        return -1;
    }
    if (!PyArg_ParseTuple(numbers, "KKKKK", &implementation, &storage, &resizable, &allocator,
                          &value))
        return -1;
    *resizing = (Resizing){.known = true,
                           .implementation = (size_t)implementation,
                           .storage = (size_t)storage,
                           .resizable = (size_t)resizable,
                           .allocator = (size_t)allocator,
                           .value = (void *)(uintptr_t)value};
    return 0;
}

static char *
address_at(const char *object, size_t offset)
{
    char *address;
    memcpy(&address, object + offset, sizeof address);
    return address;
}

void
let_resize(const Resizing *resizing, void *tensor)
{
    if (!resizing->known)
        return;
    char *storage = address_at(address_at(tensor, resizing->implementation), resizing->storage);
    memcpy(storage + resizing->allocator, &resizing->value, sizeof resizing->value);
    storage[resizing->resizable] = 1;
}
