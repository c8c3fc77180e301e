/* Output: a result of a run, and the framework's tensors over it. */

#ifndef PJRT_BRIDGE_OUTPUT_H
#define PJRT_BRIDGE_OUTPUT_H

#include "dlpack.h"
#include "plan.h"

/* A buffer that goes back to the plugin with this object. */
typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyObject *lease; /* The client's. */
    Form *form;
    void *buffer; /* NULL where the plugin made none. */
    void *data;   /* NULL until the values are there. */
    uint64_t run; /* The number of its execution, if nobody waits for that; else 0. */
    bool lent;    /* A tensor uses `managed`; each further one gets one of its own. */
    union Managed {
        DLManagedTensor plain;
        DLManagedTensorVersioned versioned;
    } managed;
} Output;

/* Address of an array without elements: plugins and consumers of DLPack take NULL for an error. */
extern char no_elements[64];

/* As XLA demands of memory that it uses in place, and TensorFlow of all memory: plugins copy in
 * silence what is aligned to less, TensorFlow takes it and aborts later. */
bool is_aligned(const void *data);

/* A result of a form, still without a buffer; NULL with an exception. */
Output *new_output(Plan *plan, PyObject *lease, Form *form);

/* A new tensor; NULL with an exception, also where the values are not there. */
PyObject *tensor_of(Output *self);

extern PyTypeObject *output_type;
extern PyType_Spec output_spec;

#endif
