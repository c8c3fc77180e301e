/* Resident: what the storage of a framework's tensor holds whose elements lie on a device.
 *
 * The framework is told of an address that is none of memory. It says which Resident the storage
 * has, and how far from its beginning a tensor's first element is. All is guarded by the GIL.
 */

#ifndef PJRT_BRIDGE_RESIDENT_H
#define PJRT_BRIDGE_RESIDENT_H

#include "dlpack.h"
#include "process.h"

/* `kDLExtDev`: a device that DLPack has no name for. */
enum { DL_EXTENSION = 12 };

typedef struct {
    PyObject_HEAD
    PyObject *elements; /* A Buffer, an Output, or what gives one later; None: nothing was written. */
    PyObject *type;     /* Of the array in memory: equal ones are the same object. */
    PyObject *shape, *dtype; /* Of that type, in the framework's terms. */
    int index;               /* Of the device. */
    size_t slot;             /* In the table of all that have an address; 0: it has none. */
    /* Of the call that reads it: see key.c. */
    uint64_t call;
    Py_ssize_t place;
    DLManagedTensorVersioned managed;
} Resident;

/* Make a tensor over a storage of its own, which keeps the Resident; a Resident has one storage. NULL
 * with an exception. */
PyObject *resident_tensor(Resident *self, DLPackExchangeAPI *exchange, DLDataType dtype, int rank,
                          int64_t *shape, int64_t *strides);

/* The Resident whose storage an address lies in, borrowed, and the bytes from its beginning; NULL
 * where it lies in none. */
Resident *resident_at(const void *address, int64_t *offset);

/* The plugin's buffer, and a new reference to what keeps it; NULL, without an exception, where there
 * is none yet, or it is not known how to keep it. */
void *resident_buffer(Resident *self, PyObject **keeper);

/* Whether nothing else has the elements, so that a program may take over their memory; `keeper` is
 * what `resident_buffer` gave. */
bool has_elements_alone(Resident *self, PyObject *keeper);

/* Hold other elements from now on. */
void resident_replace(Resident *self, PyObject *output, PyObject *type, PyObject *shape,
                      PyObject *dtype);

/* `find(address)`: a Resident or None. */
PyObject *module_find(PyObject *module, PyObject *address);

/* `tensor_of(class, (type, shape, dtype), index, elements, exchange, numbers)`: a tensor over a new
 * Resident of that class; see `resident_tensor`. */
PyObject *module_tensor_of(PyObject *module, PyObject *args);

extern PyTypeObject *resident_type;
extern PyType_Spec resident_spec;

#endif
