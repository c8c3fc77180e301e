/* See call.h. */

#include "call.h"

#include "arguments.h"
#include "launch.h"

PyTypeObject *plan_type;

/* Start what `source` gives, and wait for the end unless it is a `launch`. The run, which is all
 * zeros, is for the caller to close. */
static enum Found
begin(Plan *self, const Source *source, Run *run, Launch *launch, Py_ssize_t *position)
{
    PyObject *executable = NULL, *client = NULL, *bundle = NULL;
    Py_ssize_t num_host_inputs;
    enum Found found = FAILED;
    /* Arguments are read in Python, and the plan may be given another executable meanwhile. */
    run->executable = self->executable;
    if ((executable = lease_of(self, self->executable_handle)) &&
        (client = lease_of(self, self->client_handle)) &&
        (source->bundle == Py_None || (bundle = lease_of(self, source->bundle))) &&
        !open_run(run, self, client)) {
        found = find_arguments(run, source, &num_host_inputs, position);
        if (found == FOUND && !launch)
            found = find_targets(run, source, position);
        if (found == FOUND && start_run(run, num_host_inputs, !launch))
            found = FAILED;
        else if (found == FOUND && launch)
            list_launch(launch);
    }
    Py_XDECREF(bundle);
    Py_XDECREF(client);
    Py_XDECREF(executable);
    return found;
}

static PyObject *
plan_launch(Plan *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 3 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of values, what is kept, and copies");
        return NULL;
    }
    Source source = {.values = args[0], .get = PyList_GetItem, .copies = args[2]};
    if (read_kept(self, args[1], &source))
        return NULL;
    Launch *launch = new_launch();
    if (!launch)
        return NULL;
    Py_ssize_t position = -1;
    enum Found found = begin(self, &source, &launch->run, launch, &position);
    if (found == FOUND)
        return (PyObject *)launch;
    Py_DECREF((PyObject *)launch);
    if (found == STALE)
        Py_RETURN_NONE;
    return found == UNFIT ? PyLong_FromSsize_t(position) : NULL;
}

/* Tell the framework which of its tensors have other elements. -1 with an exception. */
static int
tell_wrote(const Run *run, PyObject *values)
{
    const Plan *plan = run->execution.plan;
    PyObject *tensors = PyTuple_New(run->num_updates);
    for (Py_ssize_t i = 0; tensors && i < run->num_updates; i++) {
        Py_ssize_t result = run->workspace->updates[i].result;
        PyObject *value = PyTuple_GetItem(values, plan->results[result].position);
        if (!value || PyTuple_SetItem(tensors, i, Py_NewRef(value)))
            Py_CLEAR(tensors);
    }
    PyObject *told = tensors ? PyObject_CallFunctionObjArgs(plan->wrote, tensors, NULL) : NULL;
    Py_XDECREF(tensors);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

PyObject *
call_plan(Plan *self, PyObject *values, PyObject *kept)
{
    Source source = {.values = values, .get = PyTuple_GetItem, .copies = Py_None, .call = true};
    if (read_kept(self, kept, &source))
        return NULL;
    Run run = {0};
    Py_ssize_t position;
    PyObject *tensors = NULL;
    enum Found found = begin(self, &source, &run, NULL, &position);
    if (found == FOUND) {
        self->shared = run.shared;
        self->copied = run.copied;
        if (!run.num_updates || !tell_wrote(&run, values))
            tensors = tensors_of(&run);
    } else if (found != FAILED) {
        tensors = Py_NewRef(Py_None);
    }
    close_run(&run);
    return tensors;
}

static PyObject *
plan_call(Plan *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 2 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of values, and what is kept");
        return NULL;
    }
    return call_plan(self, args[0], args[1]);
}

static PyObject *
plan_replace(Plan *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a handle, and its pointer");
        return NULL;
    }
    void *executable = PyLong_AsVoidPtr(args[1]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *before = self->executable_handle;
    self->executable_handle = Py_NewRef(args[0]);
    self->executable = executable;
    Py_DECREF(before);
    Py_RETURN_NONE;
}

static PyObject *
plan_get_crossed(Plan *self, void *Py_UNUSED(closure))
{
    return Py_BuildValue("(LL)", (long long)self->shared, (long long)self->copied);
}

static PyMethodDef METHODS[] = {
    METHOD("launch", plan_launch, METH_FASTCALL,
           "launch(values, kept, copies) -> a Launch; the position of a value that does not fit "
           "as it is; None where what is kept is stale."),
    METHOD("call", plan_call, METH_FASTCALL,
           "call(values, kept) -> a tensor over each result, when all is over, but for those that "
           "were written into their arguments; None where a value does not fit as it is, or what is "
           "kept is stale. No value may be lazy."),
    METHOD("replace", plan_replace, METH_FASTCALL,
           "replace(handle, pointer): the next launches are those of another executable, of a program "
           "with the same parameters and results."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef GETSET[] = {
    {"crossed", (getter)plan_get_crossed, NULL, "Bytes shared and copied in the last `call`.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, GETSET},
    {Py_tp_doc, "Launches one executable."},
    {0, NULL},
};

PyType_Spec plan_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT, SLOTS,
};
