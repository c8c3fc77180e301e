/* See operators.h. */

#include "operators.h"

#include "families.h"
#include "shortcut.h"

typedef struct {
    PyObject_HEAD
    Arguments arguments;
    PyObject *quiet;     /* A tuple of containers: a call is looked up while all are empty. */
    PyObject *deferred;      /* A tuple of containers: something is deferred while one is not. */
    PyObject *run_deferred;      /* () -> does that */
    PyObject *otherwise; /* (operator, ...) -> what it gives, of calls without a shortcut */
    Families families;
    Py_ssize_t taken;
} Operators;

/* -- calls ----------------------------------------------------------------------------------- */

/* Whether all containers are: 1 or 0; -1 with an exception. */
static int
are_empty(PyObject *containers)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(containers); i++) {
        Py_ssize_t size = PyObject_Size(PyTuple_GetItem(containers, i));
        if (size)
            return size < 0 ? -1 : 0;
    }
    return 1;
}

/* The storages and the tensors of the host that a call gives, as a new list. */
static PyObject *
given_of(const Key *key)
{
    PyObject *found = PyList_New(key->num_given);
    for (Py_ssize_t i = 0; found && i < key->num_given; i++) {
        const Given *given = &key->given[i];
        PyObject *item = given->resident ? (PyObject *)given->resident : given->tensor;
        if (PyList_SetItem(found, i, Py_NewRef(item)))
            Py_CLEAR(found);
    }
    return found;
}

/* By `record(given, numbers, values, keywords)`: NULL without an exception where the call has to go
 * another way. */
static PyObject *
call_recording(PyObject *record, const Key *key, PyObject *values, PyObject *keywords)
{
    PyObject *given = given_of(key);
    PyObject *numbers = given ? numbers_of(key) : NULL;
    PyObject *found = NULL;
    if (numbers)
        found = PyObject_CallFunctionObjArgs(record, given, numbers, values,
                                             keywords ? keywords : Py_None, NULL);
    Py_XDECREF(numbers);
    Py_XDECREF(given);
    if (found == Py_NotImplemented)
        Py_CLEAR(found);
    return found;
}

/* By what was learned: NULL without an exception where there is nothing. */
static PyObject *
call_known(Operators *self, PyObject *values, PyObject *keywords)
{
    Key *key = take_key();
    if (!key)
        return NULL;
    PyObject *found = NULL;
    if (read_call(key, &self->arguments, values, keywords) > 0) {
        PyObject *way = find_way(&self->families, key);
        if (way) {
            Py_INCREF(way);
            found = Py_TYPE(way) == shortcut_type
                        ? run_shortcut((Shortcut *)way, key, &self->arguments, values, keywords)
                        : call_recording(way, key, values, keywords);
            Py_DECREF(way);
            self->taken += found != NULL;
        }
    }
    put_key_back(key);
    return found;
}

static PyObject *
operators_call(Operators *self, PyObject *values, PyObject *keywords)
{
    int quiet = self->families.count ? are_empty(self->quiet) : 0;
    int idle = quiet > 0 ? are_empty(self->deferred) : 1;
    if (quiet < 0 || idle < 0)
        return NULL;
    if (!idle) {
        PyObject *done = PyObject_CallNoArgs(self->run_deferred);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    if (quiet) {
        PyObject *found = call_known(self, values, keywords);
        if (found || PyErr_Occurred())
            return found;
    }
    return PyObject_Call(self->otherwise, values, keywords);
}

/* Whether a tensor of the device is what a parameter takes, and lies as it does. */
static bool
is_as_taken(const DLTensor *tensor, const Resident *resident, const Form *form)
{
    if (tensor->ndim != form->rank || tensor->dtype.code != form->dtype.code ||
        tensor->dtype.bits != form->dtype.bits)
        return false;
    for (int32_t dim = 0; dim < form->rank; dim++)
        if (tensor->shape[dim] != form->shape[dim] ||
            (form->shape[dim] != 1 && tensor->strides[dim] != form->strides[dim]))
            return false;
    /* What the storage holds may be an array of another form. */
    Py_ssize_t rank = PyTuple_Size(resident->shape);
    bool same = rank == form->rank;
    for (Py_ssize_t dim = 0; same && dim < rank; dim++)
        same = PyLong_AsLongLong(PyTuple_GetItem(resident->shape, dim)) == form->dims[dim];
    PyErr_Clear();
    return same;
}

static PyObject *
operators_run(Operators *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 3 || !PyObject_TypeCheck(args[0], shortcut_type) || !PyTuple_Check(args[1]) ||
        !PyTuple_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "expected a Shortcut, element types, and values");
        return NULL;
    }
    Shortcut *shortcut = (Shortcut *)args[0];
    Plan *plan = shortcut->plan;
    Key *key = take_key();
    if (!key)
        return NULL;
    int found = PyTuple_Size(args[1]) == plan->num_parameters;
    for (Py_ssize_t i = 0; found > 0 && i < plan->num_parameters; i++) {
        DLTensor tensor;
        PyObject *value = PyTuple_GetItem(args[2], 1 + plan->parameters[i].position);
        found = value ? add_whole(key, &self->arguments, value, &tensor) : -1;
        if (found <= 0)
            break;
        Resident *resident = key->given[i].resident;
        if (resident ? resident->dtype != PyTuple_GetItem(args[1], i) ||
                           !is_as_taken(&tensor, resident, &plan->parameters[i])
                     : plan->parameters[i].rank ||
                           tensor.dtype.code != plan->parameters[i].dtype.code ||
                           tensor.dtype.bits != plan->parameters[i].dtype.bits)
            found = 0;
    }
    if (found > 0 && key->index >= 0 && key->index != shortcut->index)
        found = 0;
    PyObject *results =
        found > 0 ? run_shortcut(shortcut, key, &self->arguments, args[2], NULL) : NULL;
    put_key_back(key);
    return results || PyErr_Occurred() ? results : Py_NewRef(Py_None);
}

static PyObject *
operators_learn(Operators *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 4 || !PyTuple_Check(args[0]) || !PyDict_Check(args[1]) ||
        !(PyObject_TypeCheck(args[2], shortcut_type) || PyCallable_Check(args[2])) ||
        !PyBool_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected values, keywords, a Shortcut or a function, and a bool");
        return NULL;
    }
    Key *key = take_key();
    if (!key)
        return NULL;
    int found = read_call(key, &self->arguments, args[0], args[1]);
    if (found > 0) {
        PyObject *op = PyTuple_GetItem(args[0], 0);
        if (!add_way(&self->families, key, op, args[2], args[3] == Py_True)) {
            PyErr_NoMemory();
            found = -1;
        }
    }
    put_key_back(key);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

static PyObject *
operators_forget(Operators *self, PyObject *Py_UNUSED(ignored))
{
    forget_families(&self->families);
    Py_RETURN_NONE;
}

/* -- the object ------------------------------------------------------------------------------ */

static PyObject *
operators_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *tensor_type, *device_type, *singletons, *device, *default_dtype, *places, *exchange;
    PyObject *quiet, *deferred, *run_deferred, *otherwise;
    if (!PyArg_ParseTuple(args, "O!O!O!UOO!OO!O!OO", &PyType_Type, &tensor_type, &PyType_Type,
                          &device_type, &PyTuple_Type, &singletons, &device, &default_dtype,
                          &PyDict_Type, &places, &exchange, &PyTuple_Type, &quiet, &PyTuple_Type,
                          &deferred, &run_deferred, &otherwise))
        return NULL;
    DLPackExchangeAPI *api = read_exchange(exchange);
    if (!api)
        return NULL;
    Operators *self = (Operators *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->arguments = (Arguments){
            .tensor_type = (PyTypeObject *)Py_NewRef(tensor_type),
            .device_type = (PyTypeObject *)Py_NewRef(device_type),
            .singletons = Py_NewRef(singletons),
            .device = Py_NewRef(device),
            .default_dtype = Py_NewRef(default_dtype),
            .places = Py_NewRef(places),
            .exchange = api,
        };
        self->quiet = Py_NewRef(quiet);
        self->deferred = Py_NewRef(deferred);
        self->run_deferred = Py_NewRef(run_deferred);
        self->otherwise = Py_NewRef(otherwise);
    }
    return (PyObject *)self;
}

static void
operators_dealloc(Operators *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    forget_families(&self->families);
    Py_XDECREF((PyObject *)self->arguments.tensor_type);
    Py_XDECREF((PyObject *)self->arguments.device_type);
    Py_XDECREF(self->arguments.singletons);
    Py_XDECREF(self->arguments.device);
    Py_XDECREF(self->arguments.default_dtype);
    Py_XDECREF(self->arguments.places);
    Py_XDECREF(self->quiet);
    Py_XDECREF(self->deferred);
    Py_XDECREF(self->run_deferred);
    Py_XDECREF(self->otherwise);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *
operators_get_taken(Operators *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->taken);
}

static PyMethodDef METHODS[] = {
    METHOD("learn", operators_learn, METH_FASTCALL,
           "learn(values, keywords, way, any_numbers) -> whether calls like this one go that way now."),
    METHOD("run", operators_run, METH_FASTCALL,
           "run(shortcut, types, values) -> what a graph gives; None where it goes another way."),
    METHOD("forget", operators_forget, METH_NOARGS, "Forget what was learned."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef GETSET[] = {
    {"taken", (getter)operators_get_taken, NULL, "Calls that went a way that was learned.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, operators_new},
    {Py_tp_dealloc, operators_dealloc},
    {Py_tp_call, operators_call},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, GETSET},
    {Py_tp_doc, "Calls of operators on a device."},
    {0, NULL},
};

PyType_Spec operators_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Operators", sizeof(Operators), 0, Py_TPFLAGS_DEFAULT,
    SLOTS,
};
