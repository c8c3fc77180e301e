/* See plan.h. */

#include "plan.h"

#include <stdlib.h>

/* -- forms ----------------------------------------------------------------------------------- */

/* Of each form there are type, code and bits of its DLPack type, nbytes, position, written and rank,
 * then five lists as long as the rank: shape, strides, dims, shape and strides of the tensor. */
enum { FORM_HEAD = 7, FORM_LISTS = 5 };

/* Read `count` forms at `*numbers`, and move it behind them. NULL with an exception. */
static Form *
read_forms(const int64_t **numbers, const int64_t *end, Py_ssize_t count)
{
    if (count < 0 || count > (end - *numbers) / FORM_HEAD) {
        PyErr_Format(PyExc_ValueError, "numbers: found %zd for %zd forms",
                     (Py_ssize_t)(end - *numbers), count);
        return NULL;
    }
    Form *forms = calloc((size_t)count + 1, sizeof *forms);
    if (!forms) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const int64_t *head = *numbers, *lists = head + FORM_HEAD;
        int64_t left = end - head - FORM_HEAD;
        if (left < 0 || head[6] < 0 || head[6] > INT32_MAX || head[6] > left / FORM_LISTS ||
            head[3] < 0) {
            PyErr_Format(PyExc_ValueError, "numbers: form %zd of %zd ends early, or is none", i,
                         count);
            free(forms);
            return NULL;
        }
        int64_t rank = head[6];
        forms[i] = (Form){
            .type = (int)head[0],
            .dtype = {(uint8_t)head[1], (uint8_t)head[2], 1},
            .nbytes = head[3],
            .position = (Py_ssize_t)head[4],
            .parameter = -1,
            .written = head[5] != 0,
            .rank = (int32_t)rank,
            .shape = lists,
            .strides = lists + rank,
            .dims = lists + 2 * rank,
            /* DLPack's pointers are not const, but what they point to is not written. */
            .tensor_shape = (int64_t *)(uintptr_t)(lists + 3 * rank),
            .tensor_strides = (int64_t *)(uintptr_t)(lists + 4 * rank),
        };
        *numbers = lists + FORM_LISTS * rank;
    }
    return forms;
}

/* Find the parameters whose values the results become. */
static void
find_updates(Plan *self)
{
    for (Py_ssize_t i = 0; i < self->num_results; i++) {
        Form *result = &self->results[i];
        if (result->position < 0)
            continue;
        self->num_updates++;
        for (Py_ssize_t at = 0; at < self->num_parameters; at++)
            if (self->parameters[at].position == result->position)
                result->parameter = at;
    }
}

static int
read_all_forms(Plan *self)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(self->numbers, &bytes, &size))
        return -1;
    /* The bytes of a bytes object are aligned as its header is. */
    const int64_t *numbers = (const int64_t *)(const void *)bytes;
    const int64_t *end = numbers + size / (Py_ssize_t)sizeof *numbers;
    self->parameters = read_forms(&numbers, end, self->num_parameters);
    if (!self->parameters)
        return -1;
    self->results = read_forms(&numbers, end, self->num_results);
    if (!self->results)
        return -1;
    if (numbers != end) {
        PyErr_Format(PyExc_ValueError, "numbers: found %zd after the last form",
                     (Py_ssize_t)(end - numbers));
        return -1;
    }
    find_updates(self);
    return 0;
}

/* -- the object ------------------------------------------------------------------------------ */

DLPackExchangeAPI *
read_exchange(PyObject *capsule)
{
    DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!api)
        return NULL;
    if (api->version.major != 1) {
        PyErr_Format(PyExc_ValueError, "DLPack exchange API: found version %u.%u, expected 1",
                     api->version.major, api->version.minor);
        return NULL;
    }
    if (!api->tensor_from_object || !api->object_from_managed) {
        PyErr_SetString(PyExc_ValueError,
                        "DLPack exchange API: a function that describes or makes tensors is NULL");
        return NULL;
    }
    return api;
}

PyObject *
plan_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *table, *client_handle, *executable_handle, *options_owner, *failure, *refusal, *queue;
    PyObject *tensor_type, *exchange, *is_lazy, *owner, *export, *adopt, *resizing, *wrote, *idle;
    PyObject *numbers;
    unsigned long long client, executable, device, options;
    Py_ssize_t num_parameters, num_results;
    if (!PyArg_ParseTuple(args, "O!OOKKKKOOOO(O!OOOOOOOO)nnS", &PyTuple_Type, &table, &client_handle,
                          &executable_handle, &client, &executable, &device, &options,
                          &options_owner, &failure, &refusal, &queue, &PyType_Type, &tensor_type,
                          &exchange, &is_lazy, &owner, &export, &adopt, &resizing, &wrote,
                          &idle, &num_parameters, &num_results, &numbers))
        return NULL;
    DLPackExchangeAPI *api = NULL;
    if (exchange != Py_None) {
        api = read_exchange(exchange);
        if (!api)
            return NULL;
    }
    Plan *self = (Plan *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->client_handle = Py_NewRef(client_handle);
    self->executable_handle = Py_NewRef(executable_handle);
    self->options_owner = Py_NewRef(options_owner);
    self->failure = Py_NewRef(failure);
    self->refusal = Py_NewRef(refusal);
    self->queue = Py_NewRef(queue);
    self->tensor_type = (PyTypeObject *)Py_NewRef(tensor_type);
    self->is_lazy = Py_NewRef(is_lazy);
    self->owner = Py_NewRef(owner);
    self->export = Py_NewRef(export);
    self->adopt = Py_NewRef(adopt);
    self->wrote = Py_NewRef(wrote);
    self->numbers = Py_NewRef(numbers);
    self->exchange = api;
    self->client = (void *)(uintptr_t)client;
    self->executable = (void *)(uintptr_t)executable;
    self->device = (void *)(uintptr_t)device;
    self->options = (void *)(uintptr_t)options;
    self->generation = process.generation;
    self->num_parameters = num_parameters;
    self->num_results = num_results;
    if (read_table(table, self->table) || read_resizing(resizing, &self->resizing) ||
        read_idle_threads(idle, &self->idle) || read_all_forms(self)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

void
plan_dealloc(Plan *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->parameters);
    free(self->results);
    free(self->workspace);
    Py_XDECREF(self->client_handle);
    Py_XDECREF(self->executable_handle);
    Py_XDECREF(self->options_owner);
    Py_XDECREF(self->failure);
    Py_XDECREF(self->refusal);
    Py_XDECREF(self->queue);
    Py_XDECREF((PyObject *)self->tensor_type);
    Py_XDECREF(self->is_lazy);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->export);
    Py_XDECREF(self->adopt);
    Py_XDECREF(self->wrote);
    Py_XDECREF(self->numbers);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* -- what forbids a call --------------------------------------------------------------------- */

/* Takes the exception. */
static void
raise_made(PyObject *exception)
{
    if (exception) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
}

void
raise_failure(Plan *plan, void *error, const char *function, const char *made)
{
    raise_made(PyObject_CallFunction(plan->failure, "Kss", (unsigned long long)(uintptr_t)error,
                                     function, made));
}

int
check_may_call(Plan *plan)
{
    if (process.exiting && process.exiting != PyThread_get_thread_ident()) {
        PyErr_SetNone(PyExc_SystemExit);
        return -1;
    }
    if (plan->generation != process.generation) {
        raise_made(PyObject_CallNoArgs(plan->refusal));
        return -1;
    }
    return 0;
}

PyObject *
lease_of(Plan *plan, PyObject *handle)
{
    static PyObject *name;
    if (!name && !(name = PyUnicode_InternFromString("lease")))
        return NULL;
    PyObject *lease = PyObject_GetAttr(handle, name);
    if (lease == Py_None) {
        Py_DECREF(lease);
        raise_made(PyObject_CallNoArgs(plan->refusal));
        return NULL;
    }
    return lease;
}

void *
leased_buffer(PyObject *handle, PyObject **lease)
{
    static PyObject *names[2];
    static const char *const texts[2] = {"lease", "pointer"};
    for (int i = 0; i < 2; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(texts[i])))
            break;
    void *buffer = NULL;
    PyObject *found = names[1] ? PyObject_GetAttr(handle, names[0]) : NULL;
    PyObject *pointer = found && found != Py_None ? PyObject_GetAttr(handle, names[1]) : NULL;
    if (pointer) {
        buffer = PyLong_AsVoidPtr(pointer);
        if (buffer)
            *lease = Py_NewRef(found);
    }
    PyErr_Clear();
    Py_XDECREF(pointer);
    Py_XDECREF(found);
    return buffer;
}

/* -- without the GIL ------------------------------------------------------------------------- */

/* Destroys an error that cannot be reported. */
void
destroy_error(Plan *plan, void *error)
{
    if (error) {
        ARGS(plan, Error_Destroy, .error = error);
        CALL(plan, Error_Destroy);
    }
}

bool
is_ready(Plan *plan, void *event)
{
    ARGS(plan, Event_IsReady, .event = event);
    void *error = CALL(plan, Event_IsReady);
    destroy_error(plan, error);
    return error || args.is_ready;
}

void
destroy_event(Plan *plan, void *event)
{
    ARGS(plan, Event_Destroy, .event = event);
    destroy_error(plan, CALL(plan, Event_Destroy));
}

bool
destroy_buffer(Plan *plan, void *buffer)
{
    ARGS(plan, Buffer_Destroy, .buffer = buffer);
    void *error = CALL(plan, Buffer_Destroy);
    destroy_error(plan, error);
    return !error;
}
