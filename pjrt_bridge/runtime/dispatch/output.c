/* See output.h. */

#include "output.h"

#include "await.h"
#include "running.h"

#include <stdlib.h>

PyTypeObject *output_type;

char no_elements[64] __attribute__((aligned(64)));

bool
is_aligned(const void *data)
{
    return (uintptr_t)data % 64 == 0;
}

/* -- tensors --------------------------------------------------------------------------------- */

static union Managed *
new_managed(Output *self)
{
    union Managed *managed = self->lent ? malloc(sizeof *managed) : &self->managed;
    if (!managed) {
        PyErr_NoMemory();
        return NULL;
    }
    self->lent = true;
    Py_INCREF((PyObject *)self);
    return managed;
}

/* Called on any thread, with or without the GIL, also while an exception is set. */
static void
drop_managed(Output *output, void *managed)
{
    bool lent = managed == &output->managed;
    if (!atomic_load(&process.plugins_are_gone) && Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        if (lent)
            output->lent = false;
        Py_DECREF((PyObject *)output);
        PyGILState_Release(state);
    }
    if (!lent)
        free(managed);
}

static void
delete_plain(DLManagedTensor *managed)
{
    drop_managed(managed->manager_ctx, managed);
}

static void
delete_versioned(DLManagedTensorVersioned *managed)
{
    drop_managed(managed->manager_ctx, managed);
}

/* The destructor of a capsule that was not taken over. */
static void
delete_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, CAPSULE_NAME))
        delete_plain(PyCapsule_GetPointer(capsule, CAPSULE_NAME));
}

/* Through a capsule. */
static PyObject *
adopted(Output *self, DLTensor tensor)
{
    union Managed *managed = new_managed(self);
    if (!managed)
        return NULL;
    managed->plain = (DLManagedTensor){tensor, self, delete_plain};
    PyObject *capsule = PyCapsule_New(managed, CAPSULE_NAME, delete_capsule);
    if (!capsule) {
        drop_managed(self, managed);
        return NULL;
    }
    PyObject *adopted = PyObject_CallFunctionObjArgs(self->plan->adopt, capsule, NULL);
    Py_DECREF(capsule);
    return adopted;
}

/* Through the exchange API. */
static PyObject *
exchanged(Output *self, DLTensor tensor)
{
    union Managed *managed = new_managed(self);
    if (!managed)
        return NULL;
    managed->versioned = (DLManagedTensorVersioned){{1, 1}, self, delete_versioned, 0, tensor};
    void *exchanged = NULL;
    /* Whether a failure takes `managed` is not said, so it stays. */
    if (self->plan->exchange->object_from_managed(&managed->versioned, &exchanged))
        return NULL;
    let_resize(&self->plan->resizing, exchanged);
    return exchanged;
}

PyObject *
tensor_of(Output *self)
{
    if (!self->data) {
        PyErr_SetString(PyExc_RuntimeError, "the launch was not finished");
        return NULL;
    }
    DLTensor tensor = {
        .data = self->data,
        .device = {DL_CPU, 0},
        .ndim = self->form->rank,
        .dtype = self->form->dtype,
        .shape = self->form->tensor_shape,
        .strides = self->form->tensor_strides,
    };
    return self->plan->exchange ? exchanged(self, tensor) : adopted(self, tensor);
}

/* -- the object ------------------------------------------------------------------------------ */

Output *
new_output(Plan *plan, PyObject *lease, Form *form)
{
    Output *self = (Output *)PyType_GenericAlloc(output_type, 0);
    if (self) {
        self->plan = (Plan *)Py_NewRef((PyObject *)plan);
        self->lease = Py_NewRef(lease);
        self->form = form;
    }
    return self;
}

static void
output_dealloc(Output *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->buffer) {
        process.num_buffers--;
        if (can_give_back(self->plan->generation)) {
            PyObject *exception, *value, *traceback;
            /* A plugin that is written in Python would take it for its own. */
            PyErr_Fetch(&exception, &value, &traceback);
            PyThreadState *state = enter_plugin();
            destroy_buffer(self->plan, self->buffer);
            leave_plugin(state);
            PyErr_Restore(exception, value, traceback);
        }
    }
    Py_DECREF(self->lease);
    Py_DECREF((PyObject *)self->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *
output_tensor(Output *self, PyObject *Py_UNUSED(ignored))
{
    return tensor_of(self);
}

static PyObject *
output_wait(Output *self, PyObject *Py_UNUSED(ignored))
{
    if (check_may_call(self->plan) || await_run(self->run))
        return NULL;
    Py_RETURN_NONE;
}

/* Whether what an event is of went well; it is over, or this waits. */
static bool
ended_well(Plan *plan, void *event)
{
    ARGS(plan, Event_Await, .event = event);
    void *error = CALL(plan, Event_Await);
    destroy_error(plan, error);
    return !error;
}

/* Wait until the values are there; without the GIL. False where the plugin failed, or with an
 * exception, where a signal interrupts: then the event is to come, and left. */
static bool
await_values(Plan *plan, void *buffer, PyThreadState **state, void **left)
{
    ARGS(plan, Buffer_ReadyEvent, .buffer = buffer);
    void *event, *error = CALL(plan, Buffer_ReadyEvent);
    destroy_error(plan, error);
    if (error || !(event = args.event))
        return false;
    if (!await_event(plan, event, state)) {
        *left = event;
        return false;
    }
    bool went_well = ended_well(plan, event);
    destroy_event(plan, event);
    return went_well;
}

static PyObject *
output_address(Output *self, PyObject *Py_UNUSED(ignored))
{
    Plan *plan = self->plan;
    if (check_may_call(plan) || await_run(self->run))
        return NULL;
    if (!self->buffer)
        Py_RETURN_NONE;
    PyThreadState *state = enter_plugin();
    void *data = NULL, *left = NULL;
    if (await_values(plan, self->buffer, &state, &left)) {
        ARGS(plan, Buffer_OpaqueDeviceMemoryDataPointer, .buffer = self->buffer);
        void *error = CALL(plan, Buffer_OpaqueDeviceMemoryDataPointer);
        destroy_error(plan, error);
        data = error ? NULL : args.device_memory_ptr;
    }
    leave_plugin(state);
    if (left) {
        process.num_events++;
        note_running(plan, self->lease, left);
        return NULL;
    }
    return data ? PyLong_FromVoidPtr(data) : Py_NewRef(Py_None);
}

static PyMethodDef METHODS[] = {
    METHOD("address", output_address, METH_NOARGS,
           "Device address of the first element, once it is there; None where the plugin failed."),
    METHOD("tensor", output_tensor, METH_NOARGS, "A tensor over the result, once it is there."),
    METHOD("wait", output_wait, METH_NOARGS,
           "Wait for the execution, if it is of a shortcut; the buffer says whether it failed."),
    {NULL, NULL, 0, NULL},
};

static PyObject *
output_get_pointer(Output *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(self->buffer);
}

static PyGetSetDef GETSET[] = {
    {"pointer", (getter)output_get_pointer, NULL, "The plugin's buffer, which this keeps.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_dealloc, output_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, GETSET},
    {Py_tp_doc, "A result of a launch."},
    {0, NULL},
};

PyType_Spec output_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Output", sizeof(Output), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, SLOTS,
};
