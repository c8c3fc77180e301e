/* See arguments.h. */

#include "arguments.h"

#include <string.h>

int
read_kept(const Plan *plan, PyObject *parts, Source *source)
{
    char *kept, *addresses;
    Py_ssize_t kept_size, addresses_size;
    Py_ssize_t size = plan->num_parameters * (Py_ssize_t)sizeof(void *);
    if (!PyTuple_Check(parts) || PyTuple_Size(parts) != 4 ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(parts, 1), &kept, &kept_size) ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(parts, 2), &addresses, &addresses_size) ||
        kept_size != size || addresses_size != size) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "expected what is kept of each parameter");
        return -1;
    }
    source->bundle = PyTuple_GetItem(parts, 0);
    source->kept = (void *const *)(void *)kept;
    source->addresses = (void *const *)(void *)addresses;
    return 0;
}

/* -- forms ----------------------------------------------------------------------------------- */

static const char *
address_of(const DLTensor *tensor)
{
    return (const char *)tensor->data + tensor->byte_offset;
}

/* Whether a tensor lies in memory as the program takes it. */
static bool
fits(const DLTensor *tensor, const Form *form)
{
    if (tensor->ndim != form->rank || tensor->dtype.code != form->dtype.code ||
        tensor->dtype.bits != form->dtype.bits || tensor->dtype.lanes != 1)
        return false;
    for (int32_t dim = 0; dim < form->rank; dim++)
        if (tensor->shape[dim] != form->shape[dim])
            return false;
    if (!form->nbytes)
        return true;
    /* Without strides it is row-major. */
    int64_t row_major = 1;
    for (int32_t dim = form->rank - 1; dim >= 0; dim--) {
        int64_t stride = tensor->strides ? tensor->strides[dim] : row_major;
        if (form->shape[dim] != 1 && stride != form->strides[dim])
            return false;
        row_major *= form->shape[dim];
    }
    return true;
}

static bool
is_same_form(const Form *one, const Form *other)
{
    return one->type == other->type && one->rank == other->rank &&
           !memcmp(one->shape, other->shape, (size_t)one->rank * 3 * sizeof *one->shape);
}

/* -- values ---------------------------------------------------------------------------------- */

/* After a call of the framework's: UNFIT, for the caller to understand, unless the exception is to
 * end the program. */
static enum Found
refused(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return FAILED;
    PyErr_Clear();
    return UNFIT;
}

static enum Found
check_device(const DLTensor *tensor)
{
    return tensor->device.device_type == DL_CPU ? FOUND : UNFIT;
}

/* Have `tensor` describe a value of the framework's class, as it is at this moment. */
static enum Found
describe(Plan *plan, PyObject *value, DLTensor *tensor)
{
    return plan->exchange->tensor_from_object(value, tensor) ? refused() : check_device(tensor);
}

/* What keeps the memory of a tensor; NULL where that memory does not hold its values. */
static PyObject *
owner_of(Plan *plan, PyObject *value, bool call)
{
    if (!call) {
        PyObject *lazy = PyObject_CallFunctionObjArgs(plan->is_lazy, value, NULL);
        Py_XDECREF(lazy);
        if (lazy != Py_False)
            return NULL;
    }
    return PyObject_CallFunctionObjArgs(plan->owner, value, NULL);
}

static PyObject *
capsule_of(Plan *plan, PyObject *value)
{
    PyObject *capsule = PyObject_CallFunctionObjArgs(plan->export, value, NULL);
    if (capsule && !PyCapsule_IsValid(capsule, CAPSULE_NAME))
        Py_CLEAR(capsule);
    return capsule;
}

/* `describe`, and have the run own what keeps the memory. */
static enum Found
borrow(Run *run, PyObject *value, bool call, DLTensor *tensor)
{
    Execution *execution = &run->execution;
    Plan *plan = execution->plan;
    /* Not the tensor itself: another thread may give it other memory while the plugin reads. */
    PyObject *owner = plan->exchange ? owner_of(plan, value, call) : capsule_of(plan, value);
    if (!owner)
        return refused();
    execution->owners[execution->num_owners++] = owner;
    if (plan->exchange)
        return describe(plan, value, tensor);
    *tensor = ((DLManagedTensor *)PyCapsule_GetPointer(owner, CAPSULE_NAME))->tensor;
    return check_device(tensor);
}

/* Whether the value of a kept buffer is where it was. */
static enum Found
check_kept(Run *run, const Source *source, Py_ssize_t index, PyObject *value)
{
    Plan *plan = run->execution.plan;
    DLTensor tensor;
    if (!PyObject_TypeCheck(value, plan->tensor_type))
        return STALE;
    /* A capsule may be all that keeps what it describes. */
    enum Found found = plan->exchange ? describe(plan, value, &tensor)
                                      : borrow(run, value, true, &tensor);
    if (found == FAILED)
        return FAILED;
    if (found != FOUND || address_of(&tensor) != source->addresses[index] ||
        !fits(&tensor, &plan->parameters[index]))
        return STALE;
    run->workspace->memories[index] = source->addresses[index];
    return FOUND;
}

/* Take the result of another run as it is. */
static enum Found
take_output(Run *run, Py_ssize_t index, Output *output)
{
    Execution *execution = &run->execution;
    if (output->plan->client != execution->plan->client || !output->buffer ||
        !is_same_form(output->form, &execution->plan->parameters[index]))
        return UNFIT;
    run->workspace->arguments[index] = output->buffer;
    run->workspace->memories[index] = NULL;
    execution->owners[execution->num_owners++] = Py_NewRef((PyObject *)output);
    return FOUND;
}

/* Take the buffer of a handle of Python, which whoever gives a handle has compared with the form. */
static enum Found
take_handle(Run *run, Py_ssize_t index, PyObject *handle)
{
    Execution *execution = &run->execution;
    PyObject *lease;
    if (!PyObject_TypeCheck(handle, Py_TYPE(execution->plan->client_handle)))
        return UNFIT;
    void *buffer = leased_buffer(handle, &lease);
    if (!buffer)
        return UNFIT;
    run->workspace->arguments[index] = buffer;
    run->workspace->memories[index] = NULL;
    execution->owners[execution->num_owners++] = lease;
    return FOUND;
}

/* 1 or 0; -1 with an exception. */
static int
is_copied(const Source *source, Py_ssize_t position)
{
    if (source->copies == Py_None)
        return 0;
    PyObject *number = PyLong_FromSsize_t(position);
    int copied = number ? PySet_Contains(source->copies, number) : -1;
    Py_XDECREF(number);
    return copied;
}

static enum Found
take_tensor(Run *run, const Source *source, Py_ssize_t index, PyObject *value,
            Py_ssize_t *num_host_inputs)
{
    Plan *plan = run->execution.plan;
    const Form *form = &plan->parameters[index];
    DLTensor tensor;
    if (!PyObject_TypeCheck(value, plan->tensor_type))
        return take_handle(run, index, value);
    enum Found found = borrow(run, value, source->call, &tensor);
    if (found != FOUND)
        return found;
    if (!fits(&tensor, form))
        return UNFIT;
    int copied = is_copied(source, form->position);
    if (copied < 0)
        return FAILED;
    const char *data = form->nbytes ? address_of(&tensor) : no_elements;
    bool share = form->nbytes && is_aligned(data);
    *(share && !copied ? &run->shared : &run->copied) += form->nbytes;
    run->workspace->memories[index] = data;
    run->workspace->host_inputs[(*num_host_inputs)++] = (HostInput){index, data, share};
    return FOUND;
}

enum Found
find_arguments(Run *run, const Source *source, Py_ssize_t *num_host_inputs, Py_ssize_t *position)
{
    Plan *plan = run->execution.plan;
    *num_host_inputs = 0;
    for (Py_ssize_t i = 0; i < plan->num_parameters; i++) {
        void *kept = source->kept[i];
        run->workspace->arguments[i] = kept;
        *position = plan->parameters[i].position;
        if (*position < 0 && kept)
            continue;
        PyObject *value = source->get(source->values, *position);
        if (!value)
            return FAILED;
        /* What the framework runs may take it out of the list. */
        Py_INCREF(value);
        enum Found found = kept                           ? check_kept(run, source, i, value)
                           : Py_TYPE(value) == output_type ? take_output(run, i, (Output *)value)
                                                          : take_tensor(run, source, i, value,
                                                                        num_host_inputs);
        Py_DECREF(value);
        if (found != FOUND)
            return found;
    }
    return FOUND;
}

/* Of a result that is the new value of an argument which the program does not read. */
static enum Found
find_unread(Run *run, const Source *source, const Form *form, void **data)
{
    DLTensor tensor;
    PyObject *value = source->get(source->values, form->position);
    if (!value)
        return FAILED;
    if (!PyObject_TypeCheck(value, run->execution.plan->tensor_type))
        return UNFIT;
    enum Found found = borrow(run, value, false, &tensor);
    if (found == FOUND && !fits(&tensor, form))
        found = UNFIT;
    if (found == FOUND)
        *data = (char *)tensor.data + tensor.byte_offset;
    return found;
}

enum Found
find_targets(Run *run, const Source *source, Py_ssize_t *position)
{
    const Plan *plan = run->execution.plan;
    for (Py_ssize_t i = 0; run->num_updates < plan->num_updates; i++) {
        const Form *form = &plan->results[i];
        if (form->position < 0)
            continue;
        *position = form->position;
        void *data;
        if (form->parameter < 0) {
            enum Found found = find_unread(run, source, form, &data);
            if (found != FOUND)
                return found;
        } else {
            data = (void *)(uintptr_t)run->workspace->memories[form->parameter];
            if (!data)
                return UNFIT;
        }
        run->workspace->updates[run->num_updates++] = (Update){i, data};
    }
    return FOUND;
}
