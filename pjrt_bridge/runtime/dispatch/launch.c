/* See launch.h. */

#include "launch.h"

PyTypeObject *launch_type;

/* -- the list of those that were not waited for ---------------------------------------------- */

static Launch *unfinished;

void
list_launch(Launch *self)
{
    self->listed = true;
    self->previous = NULL;
    self->next = unfinished;
    if (unfinished)
        unfinished->previous = self;
    unfinished = self;
}

static void
unlist_launch(Launch *self)
{
    if (!self->listed)
        return;
    self->listed = false;
    if (self->previous)
        self->previous->next = self->next;
    else
        unfinished = self->next;
    if (self->next)
        self->next->previous = self->previous;
}

void
unlist_all_launches(void)
{
    while (unfinished)
        unlist_launch(unfinished);
}

/* -- the event of the end, which one thread uses at a time ----------------------------------- */

/* Wait until no other thread uses the event. -1 with an exception. */
static int
wait_for_claimant(Launch *self)
{
    if (!self->lock && !(self->lock = PyThread_allocate_lock())) {
        PyErr_NoMemory();
        return -1;
    }
    /* It is free, or one of the threads below is about to free it, for which it needs no GIL. */
    if (!self->awaited)
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
    self->awaited = true;
    PyThreadState *state = PyEval_SaveThread();
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    PyThread_release_lock(self->lock);
    PyEval_RestoreThread(state);
    return 0;
}

static void
unclaim(Launch *self)
{
    self->claimed = false;
    if (self->awaited)
        PyThread_release_lock(self->lock);
    self->awaited = false;
}

/* Whether nothing is under way, so far as can be told without waiting. */
static bool
is_over(Launch *self)
{
    Execution *execution = &self->run.execution;
    if (self->claimed)
        return false;
    if (!execution->done)
        return true;
    self->claimed = true;
    PyThreadState *state = enter_plugin();
    bool ready = is_ready(execution->plan, execution->done);
    leave_plugin(state);
    unclaim(self);
    return ready;
}

int
is_any_running(void)
{
    /* Launches come and go while the plugin is asked, and while a list is made. */
    PyObject *launches = PyList_New(0);
    if (!launches)
        return -1;
    bool running = false;
    int failed = 0;
    for (Launch *launch = unfinished; launch && !failed; launch = launch->next)
        failed = PyList_Append(launches, (PyObject *)launch);
    for (Py_ssize_t i = 0; !failed && !running && i < PyList_Size(launches); i++)
        running = !is_over((Launch *)PyList_GetItem(launches, i));
    Py_DECREF(launches);
    return failed ? -1 : running;
}

/* -- the object ------------------------------------------------------------------------------ */

Launch *
new_launch(void)
{
    return (Launch *)PyType_GenericAlloc(launch_type, 0);
}

static void
launch_dealloc(Launch *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    unlist_launch(self);
    close_run(&self->run);
    Py_XDECREF(self->outputs);
    if (self->lock)
        PyThread_free_lock(self->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *
launch_finish(Launch *self, PyObject *Py_UNUSED(ignored))
{
    Execution *execution = &self->run.execution;
    while (self->claimed)
        if (check_may_call(execution->plan) || wait_for_claimant(self))
            return NULL;
    if (self->failed) {
        PyErr_SetString(PyExc_RuntimeError, "the launch failed, as its first finish() said");
        return NULL;
    }
    if (!execution->done)
        Py_RETURN_NONE;
    if (check_may_call(execution->plan))
        return NULL;
    void *done = execution->done;
    execution->done = NULL;
    self->claimed = true;
    unlist_launch(self);
    PyThreadState *state = enter_plugin();
    Ending ending = await_end(&self->run, done, &state);
    leave_plugin(state);
    if (ending.interrupted) {
        /* Its end may be waited for again. */
        execution->done = done;
        unclaim(self);
        list_launch(self);
        return NULL;
    }
    self->failed = !ending.complete;
    unclaim(self);
    if (settle(&self->run, ending))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
launch_tensors(Launch *self, PyObject *Py_UNUSED(ignored))
{
    return tensors_of(&self->run);
}

static PyObject *
launch_get_outputs(Launch *self, void *Py_UNUSED(closure))
{
    if (!self->outputs) {
        Py_ssize_t count = self->run.num_outputs;
        PyObject *outputs = PyTuple_New(count);
        for (Py_ssize_t i = 0; outputs && i < count; i++)
            if (PyTuple_SetItem(outputs, i,
                                Py_NewRef((PyObject *)self->run.workspace->outputs[i])))
                Py_CLEAR(outputs);
        self->outputs = outputs;
    }
    return Py_XNewRef(self->outputs);
}

static PyObject *
launch_get_shared(Launch *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->run.shared);
}

static PyObject *
launch_get_copied(Launch *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->run.copied);
}

static PyMethodDef METHODS[] = {
    METHOD("finish", launch_finish, METH_NOARGS, "Wait for the end."),
    METHOD("tensors", launch_tensors, METH_NOARGS, "A tensor over each result, once it is there."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef GETSET[] = {
    {"outputs", (getter)launch_get_outputs, NULL, "The results, which may not be there.", NULL},
    {"shared", (getter)launch_get_shared, NULL, "Bytes that went in as they lie.", NULL},
    {"copied", (getter)launch_get_copied, NULL, "Bytes that were copied to go in.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_dealloc, launch_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, GETSET},
    {Py_tp_doc, "An execution that may not have ended."},
    {0, NULL},
};

PyType_Spec launch_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Launch", sizeof(Launch), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, SLOTS,
};
