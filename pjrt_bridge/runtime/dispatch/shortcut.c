/* See shortcut.h. */

#include "shortcut.h"

#include "output.h"
#include "running.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *shortcut_type;

/* Of one run. */
typedef struct {
    void **arguments, **results;
    PyObject **keepers; /* Of the arguments. */
    Output **outputs;
    void **puts; /* Buffers that were made of numbers. */
    const Given **numbers;
    Py_ssize_t num_keepers, num_outputs, num_puts;
    void *executable; /* That of the plan when the lease of its handle was taken. */
    void *done, *error;
} Work;

static Work *
new_work(const Plan *plan, void *executable)
{
    size_t parameters = (size_t)plan->num_parameters, results = (size_t)plan->num_results;
    Work *self = calloc(1, sizeof *self + (4 * parameters + 2 * results) * sizeof(void *));
    if (!self) {
        PyErr_NoMemory();
        return NULL;
    }
    self->executable = executable;
    self->arguments = (void **)(self + 1);
    self->keepers = (PyObject **)(self->arguments + parameters);
    self->puts = (void **)(self->keepers + parameters);
    self->numbers = (const Given **)(self->puts + parameters);
    self->results = (void **)(self->numbers + parameters);
    self->outputs = (Output **)(self->results + results);
    return self;
}

static void
drop_keepers(Work *self)
{
    while (self->num_keepers > 0)
        Py_DECREF(self->keepers[--self->num_keepers]);
}

static void
free_work(Work *self)
{
    drop_keepers(self);
    while (self->num_outputs > 0)
        Py_DECREF((PyObject *)self->outputs[--self->num_outputs]);
    free(self);
}

/* -- arguments ------------------------------------------------------------------------------- */

/* Whether each argument has a buffer, or is a number, which may be `missing` still. Memory that the
 * program takes over must have no other reader. */
static bool
find_buffers(Shortcut *self, const Key *key, Work *work, bool missing)
{
    Plan *plan = self->plan;
    drop_keepers(work);
    for (Py_ssize_t i = 0; i < plan->num_parameters; i++) {
        if (self->sources[i] >= key->num_given) {
            if (missing)
                continue;
            return false;
        }
        const Given *given = &key->given[self->sources[i]];
        if (!given->resident) {
            work->numbers[i] = given;
            continue;
        }
        PyObject *keeper;
        work->arguments[i] = resident_buffer(given->resident, &keeper);
        if (!work->arguments[i])
            return false;
        work->keepers[work->num_keepers++] = keeper;
        if (Py_TYPE(keeper) == output_type && ((Output *)keeper)->plan->client != plan->client)
            return false;
        if (plan->parameters[i].written && !has_elements_alone(given->resident, keeper))
            return false;
    }
    return true;
}

/* Find all arguments: 1, 0 or -1 as `add_numbers`. Numbers may be drawn from a generator, so they are
 * not asked for where the call goes another way, which would draw them again. They are asked in
 * Python, where other threads may run: what was found before is not relied on. */
static int
find_arguments(Shortcut *self, Key *key, Work *work, const Arguments *arguments)
{
    if (self->numbers != Py_None) {
        int found = find_buffers(self, key, work, true);
        if (found)
            found = add_numbers(key, arguments, self->numbers);
        if (found <= 0)
            return found;
    }
    return find_buffers(self, key, work, false);
}

/* -- the execution, without the GIL ---------------------------------------------------------- */

static void *
put_number(Plan *plan, const Form *form, const void *value, Work *work)
{
    ARGS(plan, Client_BufferFromHostBuffer, .client = plan->client, .data = value,
         .type = form->type, .host_buffer_semantics = COPY_DURING_CALL, .device = plan->device);
    work->error = CALL(plan, Client_BufferFromHostBuffer);
    if (work->error)
        return NULL;
    work->puts[work->num_puts++] = args.buffer;
    if (args.done_with_host_buffer)
        destroy_event(plan, args.done_with_host_buffer);
    return args.buffer;
}

static void
execute(Plan *plan, Work *work)
{
    for (Py_ssize_t i = 0; i < plan->num_parameters; i++)
        if (work->numbers[i]) {
            work->arguments[i] = put_number(plan, &plan->parameters[i], work->numbers[i]->value, work);
            if (!work->arguments[i])
                return;
        }
    void *const *argument_lists[] = {work->arguments};
    void **output_lists[] = {work->results};
    ARGS(plan, LoadedExecutable_Execute, .executable = work->executable, .options = plan->options,
         .argument_lists = argument_lists, .num_devices = 1,
         .num_args = (size_t)plan->num_parameters, .output_lists = output_lists,
         .device_complete_events = &work->done);
    work->error = CALL(plan, LoadedExecutable_Execute);
    if (work->error) {
        work->done = NULL;
        for (Py_ssize_t i = 0; i < plan->num_results; i++)
            work->results[i] = NULL;
    }
}

/* 1 where all results are there; 0 where the plugin failed; -1 with an exception. */
static int
start(Plan *plan, PyObject *lease, Work *work)
{
    if (make_room() || check_may_call(plan))
        return -1;
    PyThreadState *state = enter_plugin();
    execute(plan, work);
    while (work->num_puts > 0)
        destroy_buffer(plan, work->puts[--work->num_puts]);
    destroy_error(plan, work->error);
    leave_plugin(state);
    bool complete = !work->error && work->done;
    for (Py_ssize_t i = 0; i < work->num_outputs; i++) {
        work->outputs[i]->buffer = work->results[i];
        process.num_buffers += work->results[i] != NULL;
        complete = complete && work->results[i];
    }
    if (work->done) {
        process.num_events++;
        uint64_t number = note_running(plan, lease, work->done);
        for (Py_ssize_t i = 0; i < work->num_outputs; i++)
            work->outputs[i]->run = number;
    }
    return complete;
}

/* -- results --------------------------------------------------------------------------------- */

static PyObject *
new_tensor(Shortcut *self, Work *work, Py_ssize_t result, DLPackExchangeAPI *exchange)
{
    Resident *contents = (Resident *)PyType_GenericAlloc(self->contents_type, 0);
    if (!contents)
        return NULL;
    PyObject *types = PyTuple_GetItem(self->types, result);
    contents->index = self->index;
    resident_replace(contents, (PyObject *)work->outputs[result], PyTuple_GetItem(types, 0),
                     PyTuple_GetItem(types, 1), PyTuple_GetItem(types, 2));
    const Form *form = &self->plan->results[result];
    PyObject *tensor = resident_tensor(contents, exchange, form->dtype, form->rank,
                                       form->tensor_shape, form->tensor_strides);
    Py_DECREF((PyObject *)contents);
    return tensor;
}

/* An argument of a call by (name, position); a new reference. */
static PyObject *
argument(PyObject *where, PyObject *values, PyObject *keywords)
{
    Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GetItem(where, 1));
    PyObject *found = NULL;
    if (at + 1 < PyTuple_Size(values))
        found = PyTuple_GetItem(values, at + 1);
    else if (keywords)
        found = PyDict_GetItemWithError(keywords, PyTuple_GetItem(where, 0));
    if (!found && !PyErr_Occurred())
        found = Py_None;
    return Py_XNewRef(found);
}

/* What the operator gives: a number is that of a result, a tuple an argument, None
 * itself, a list some of these. */
static PyObject *
laid_out(Shortcut *self, PyObject *where, Work *work, DLPackExchangeAPI *exchange, PyObject *values,
         PyObject *keywords)
{
    if (where == Py_None)
        Py_RETURN_NONE;
    if (PyTuple_Check(where))
        return argument(where, values, keywords);
    if (!PyList_Check(where))
        return new_tensor(self, work, PyLong_AsSsize_t(where), exchange);
    Py_ssize_t count = PyList_Size(where);
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        PyObject *item =
            laid_out(self, PyList_GetItem(where, i), work, exchange, values, keywords);
        if (!item || PyList_SetItem(found, i, item))
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *
returned(Shortcut *self, Work *work, DLPackExchangeAPI *exchange, PyObject *values,
         PyObject *keywords)
{
    Py_ssize_t count = PyTuple_Size(self->returns);
    if (!count)
        Py_RETURN_NONE;
    if (count == 1)
        return laid_out(self, PyTuple_GetItem(self->returns, 0), work, exchange, values, keywords);
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        PyObject *item =
            laid_out(self, PyTuple_GetItem(self->returns, i), work, exchange, values, keywords);
        if (!item || PyTuple_SetItem(found, i, item))
            Py_CLEAR(found);
    }
    return found;
}

/* -- a run ----------------------------------------------------------------------------------- */

/* 1, 0 or -1 as `start`. */
static int
run(Shortcut *self, Key *key, Work *work, const Arguments *arguments, PyObject *client)
{
    Plan *plan = self->plan;
    for (Py_ssize_t i = 0; i < self->num_updates; i++)
        if (self->updates[2 * i] >= key->num_given || !key->given[self->updates[2 * i]].resident)
            return 0;
    int found = find_arguments(self, key, work, arguments);
    if (found <= 0)
        return found;
    while (work->num_outputs < plan->num_results) {
        Output *output = new_output(plan, client, &plan->results[work->num_outputs]);
        if (!output)
            return -1;
        work->outputs[work->num_outputs++] = output;
    }
    int started = start(plan, client, work);
    for (Py_ssize_t i = 0; started > 0 && i < self->num_updates; i++) {
        Py_ssize_t result = (Py_ssize_t)self->updates[2 * i + 1];
        PyObject *types = PyTuple_GetItem(self->types, result);
        resident_replace(key->given[self->updates[2 * i]].resident,
                         (PyObject *)work->outputs[result], PyTuple_GetItem(types, 0),
                         PyTuple_GetItem(types, 1), PyTuple_GetItem(types, 2));
    }
    return started;
}

PyObject *
run_shortcut(Shortcut *self, Key *key, const Arguments *arguments, PyObject *values,
             PyObject *keywords)
{
    Plan *plan = self->plan;
    if (self->before != Py_None) {
        PyObject *done = PyObject_CallNoArgs(self->before);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    PyObject *found = NULL, *client = NULL;
    void *pointer = plan->executable;
    PyObject *executable = lease_of(plan, plan->executable_handle);
    Work *work = NULL;
    if (!executable || !(client = lease_of(plan, plan->client_handle)))
        /* It was closed. The other way says so, if it matters. */
        PyErr_Clear();
    else if ((work = new_work(plan, pointer)) && run(self, key, work, arguments, client) > 0)
        found = returned(self, work, arguments->exchange, values, keywords);
    if (work)
        free_work(work);
    Py_XDECREF(client);
    Py_XDECREF(executable);
    return found;
}

/* -- the object ------------------------------------------------------------------------------ */

/* The numbers in a tuple, behind each other; NULL with an exception. */
static int64_t *
read_numbers(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    int64_t *numbers = calloc((size_t)count + 1, sizeof *numbers);
    for (Py_ssize_t i = 0; numbers && i < count; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (numbers[i] < 0) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "expected places, which are not negative");
            free(numbers);
            return NULL;
        }
    }
    if (!numbers && !PyErr_Occurred())
        PyErr_NoMemory();
    return numbers;
}

static PyObject *
shortcut_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *plan, *contents_type, *types, *returns, *before, *numbers, *sources, *updates;
    int index;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OOO!O!i", plan_type, &plan, &PyType_Type, &contents_type,
                          &PyTuple_Type, &types, &PyTuple_Type, &returns, &before, &numbers,
                          &PyTuple_Type, &sources, &PyTuple_Type, &updates, &index))
        return NULL;
    Plan *launched = (Plan *)plan;
    if (PyTuple_Size(sources) != launched->num_parameters ||
        PyTuple_Size(types) != launched->num_results || PyTuple_Size(updates) % 2) {
        PyErr_SetString(PyExc_ValueError, "expected as many sources and types as the plan has");
        return NULL;
    }
    Shortcut *self = (Shortcut *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->plan = (Plan *)Py_NewRef(plan);
    self->contents_type = (PyTypeObject *)Py_NewRef(contents_type);
    self->types = Py_NewRef(types);
    self->returns = Py_NewRef(returns);
    self->before = Py_NewRef(before);
    self->numbers = Py_NewRef(numbers);
    self->sources = read_numbers(sources);
    self->updates = self->sources ? read_numbers(updates) : NULL;
    self->num_updates = PyTuple_Size(updates) / 2;
    self->index = index;
    if (!self->updates) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
shortcut_dealloc(Shortcut *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->sources);
    free(self->updates);
    Py_XDECREF((PyObject *)self->plan);
    Py_XDECREF((PyObject *)self->contents_type);
    Py_XDECREF(self->types);
    Py_XDECREF(self->returns);
    Py_XDECREF(self->before);
    Py_XDECREF(self->numbers);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot SLOTS[] = {
    {Py_tp_new, shortcut_new},
    {Py_tp_dealloc, shortcut_dealloc},
    {Py_tp_doc, "The program of calls of one operator."},
    {0, NULL},
};

PyType_Spec shortcut_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Shortcut", sizeof(Shortcut), 0, Py_TPFLAGS_DEFAULT, SLOTS,
};
