/* See pending.h. */

#include "pending.h"

#include <stdlib.h>
#include <string.h>

typedef struct Pending {
    PyObject_HEAD
    Execution execution;
    bool asked;           /* A thread asks the plugin about it. */
    struct Pending *next; /* Among those that are not in the queue. */
} Pending;

PyTypeObject *pending_type;

/* What the queue did not take; each with a reference. */
static Pending *unqueued;

/* -- executions ------------------------------------------------------------------------------ */

Dropped
drop_inputs(Execution *execution)
{
    Dropped dropped = {0, 0};
    Py_ssize_t left = 0;
    for (Py_ssize_t i = 0; i < execution->num_inputs; i++) {
        Input *input = &execution->inputs[i];
        bool refused = false;
        if (input->buffer) {
            refused = !destroy_buffer(execution->plan, input->buffer);
            input->buffer = NULL;
            dropped.buffers++;
        }
        /* Of a buffer that the plugin keeps the event would never come. */
        if (input->done && (refused || is_ready(execution->plan, input->done))) {
            destroy_event(execution->plan, input->done);
            input->done = NULL;
            dropped.events++;
        }
        if (input->done)
            execution->inputs[left++] = *input;
    }
    execution->num_inputs = left;
    return dropped;
}

void
count_dropped(Dropped dropped)
{
    process.num_buffers -= dropped.buffers;
    process.num_events -= dropped.events;
}

void
drop_owners(Execution *execution)
{
    while (execution->num_owners > 0)
        Py_DECREF(execution->owners[--execution->num_owners]);
}

/* -- the queue ------------------------------------------------------------------------------- */

/* NULL, without an exception, where there is no memory. */
static Pending *
new_pending(const Execution *execution)
{
    size_t inputs = (size_t)execution->num_inputs * sizeof *execution->inputs;
    size_t owners = (size_t)execution->num_owners * sizeof *execution->owners;
    char *memory = malloc(inputs + owners + 1);
    Pending *self = memory ? (Pending *)PyType_GenericAlloc(pending_type, 0) : NULL;
    if (!self) {
        PyErr_Clear();
        free(memory);
        return NULL;
    }
    self->execution = *execution;
    self->execution.plan = (Plan *)Py_NewRef((PyObject *)execution->plan);
    self->execution.lease = Py_NewRef(execution->lease);
    self->execution.inputs = (Input *)(void *)memory;
    self->execution.owners = (PyObject **)(void *)(memory + inputs);
    memcpy(memory, execution->inputs, inputs);
    memcpy(memory + inputs, execution->owners, owners);
    return self;
}

/* Put into the queue what is not in it. What it does not take stays, and is tried again with what
 * comes next: it may be the limit of recursion that stood in the way. */
static void
fill_queue(void)
{
    while (unqueued) {
        Pending *first = unqueued;
        unqueued = first->next;
        PyObject *done = PyObject_CallFunctionObjArgs(first->execution.plan->queue, first, NULL);
        if (!done) {
            PyErr_Clear();
            first->next = unqueued;
            unqueued = first;
            return;
        }
        Py_DECREF(done);
        Py_DECREF((PyObject *)first);
    }
}

void
hand_over(Execution *execution)
{
    if (!execution->done && !execution->num_inputs)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Pending *pending = new_pending(execution);
    /* Without memory for it, what the plugin uses is never freed. */
    execution->num_inputs = execution->num_owners = 0;
    execution->done = NULL;
    if (pending) {
        pending->next = unqueued;
        unqueued = pending;
        fill_queue();
    }
    PyErr_Restore(type, value, traceback);
}

void
close_execution(Execution *execution)
{
    if (can_give_back(execution->plan->generation))
        hand_over(execution);
    process.num_events -= execution->done != NULL;
    for (Py_ssize_t i = 0; i < execution->num_inputs; i++) {
        process.num_buffers -= execution->inputs[i].buffer != NULL;
        process.num_events -= execution->inputs[i].done != NULL;
    }
    drop_owners(execution);
    Py_DECREF(execution->lease);
    Py_DECREF((PyObject *)execution->plan);
}

/* Whether the plugin has done with everything. */
static bool
is_over(Pending *self)
{
    Execution *execution = &self->execution;
    Plan *plan = execution->plan;
    if (plan->generation != process.generation)
        return true;
    if (self->asked)
        return false;
    self->asked = true;
    void *done = execution->done;
    Dropped dropped = {0, 0};
    PyThreadState *state = enter_plugin();
    bool ended = !done || is_ready(plan, done);
    if (ended) {
        if (done)
            destroy_event(plan, done);
        dropped = drop_inputs(execution);
        dropped.events += done != NULL;
    }
    leave_plugin(state);
    if (ended)
        execution->done = NULL;
    count_dropped(dropped);
    self->asked = false;
    return ended && !execution->num_inputs;
}

bool
is_any_unqueued(void)
{
    fill_queue();
    /* To ask releases the GIL, so those that are asked are taken out of the list before. */
    Pending *asked = unqueued;
    bool found = false;
    unqueued = NULL;
    while (asked) {
        Pending *pending = asked;
        asked = pending->next;
        if (is_over(pending)) {
            Py_DECREF((PyObject *)pending);
            continue;
        }
        pending->next = unqueued;
        unqueued = pending;
        found = true;
    }
    return found;
}

/* -- the object ------------------------------------------------------------------------------ */

static void
pending_dealloc(Pending *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    close_execution(&self->execution);
    free(self->execution.inputs);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *
pending_over(Pending *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_over(self));
}

static PyObject *
pending_end(Pending *self, PyObject *Py_UNUSED(ignored))
{
    if (!self->execution.done && !self->execution.num_inputs)
        drop_owners(&self->execution);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    METHOD("over", pending_over, METH_NOARGS, "Whether the plugin has done with all of it."),
    METHOD("end", pending_end, METH_NOARGS, "Let go of the memory, once it is over."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_dealloc, pending_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_doc, "What a plugin uses of an execution that no call waits for."},
    {0, NULL},
};

PyType_Spec pending_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Pending", sizeof(Pending), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, SLOTS,
};
