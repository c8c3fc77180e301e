/* See entrance.h. */

#include "entrance.h"

#include "call.h"

typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyObject *blockers;      /* A tuple of containers; calls go on in C while all are empty. */
    PyObject *failures;      /* Exceptions that `failed_call` gets. */
    PyObject *checked_call;  /* (values) -> results, where a container is not empty */
    PyObject *declined_call; /* (values) -> results, where the plan declined the values */
    PyObject *failed_call;   /* (exception, values) -> results, where the plan failed */
    PyObject *pinned;        /* `PinnedBuffers.parts`; None: `checked_call` gets all calls. */
    bool taken;              /* The last call came this way. */
} Entrance;

static PyObject *
entrance_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *plan, *blockers, *failures, *checked_call, *declined_call, *failed_call;
    if (!PyArg_ParseTuple(args, "O!O!OOOO", plan_type, &plan, &PyTuple_Type, &blockers, &failures,
                          &checked_call, &declined_call, &failed_call))
        return NULL;
    Entrance *self = (Entrance *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->plan = (Plan *)Py_NewRef(plan);
        self->blockers = Py_NewRef(blockers);
        self->failures = Py_NewRef(failures);
        self->checked_call = Py_NewRef(checked_call);
        self->declined_call = Py_NewRef(declined_call);
        self->failed_call = Py_NewRef(failed_call);
        self->pinned = Py_NewRef(Py_None);
    }
    return (PyObject *)self;
}

static int
entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->plan);
    Py_VISIT(self->blockers);
    Py_VISIT(self->failures);
    Py_VISIT(self->checked_call);
    Py_VISIT(self->declined_call);
    Py_VISIT(self->failed_call);
    Py_VISIT(self->pinned);
    return 0;
}

/* The functions alone are parts of cycles. */
static int
entrance_clear(Entrance *self)
{
    Py_CLEAR(self->checked_call);
    Py_CLEAR(self->declined_call);
    Py_CLEAR(self->failed_call);
    return 0;
}

static void
entrance_dealloc(Entrance *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack((PyObject *)self);
    entrance_clear(self);
    Py_XDECREF(self->pinned);
    Py_XDECREF(self->failures);
    Py_XDECREF(self->blockers);
    Py_XDECREF((PyObject *)self->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* 1 or 0; -1 with an exception. */
static int
are_blockers_empty(const Entrance *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->blockers); i++) {
        Py_ssize_t size = PyObject_Size(PyTuple_GetItem(self->blockers, i));
        if (size)
            return size < 0 ? -1 : 0;
    }
    return 1;
}

/* Call the plan: None where it declined the values. */
static PyObject *
call_directly(Entrance *self, PyObject *values)
{
    /* Another thread may replace it meanwhile. */
    PyObject *pinned = Py_NewRef(self->pinned);
    PyObject *results = call_plan(self->plan, values, pinned);
    Py_DECREF(pinned);
    self->taken = self->taken || (results && results != Py_None);
    return results;
}

/* Call one of the functions, which may be gone: the collector clears cycles. */
static PyObject *
call_function(PyObject *function, PyObject *values, PyObject *keywords)
{
    if (!function) {
        PyErr_SetString(PyExc_RuntimeError, "what is called here was collected");
        return NULL;
    }
    Py_INCREF(function);
    PyObject *results = PyObject_Call(function, values, keywords);
    Py_DECREF(function);
    return results;
}

/* Hand on the exception that is set. */
static PyObject *
hand_failure_on(Entrance *self, PyObject *values)
{
    PyObject *type, *error, *traceback, *results = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *arguments = PyTuple_Pack(2, error, values);
    if (arguments)
        results = call_function(self->failed_call, arguments, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return results;
}

static PyObject *
entrance_call(Entrance *self, PyObject *values, PyObject *keywords)
{
    PyObject *function = self->checked_call;
    bool named = keywords && PyDict_Size(keywords);
    int may_go_on = named || self->pinned == Py_None ? 0 : are_blockers_empty(self);
    if (may_go_on < 0)
        return NULL;
    if (may_go_on) {
        PyObject *results = call_directly(self, values);
        if (!results && PyErr_ExceptionMatches(self->failures))
            return hand_failure_on(self, values);
        if (results != Py_None)
            return results;
        Py_DECREF(results);
        function = self->declined_call;
    }
    return call_function(function, values, keywords);
}

static PyObject *
entrance_get_pinned(Entrance *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->pinned);
}

static int
entrance_set_pinned(Entrance *self, PyObject *pinned, void *Py_UNUSED(closure))
{
    PyObject *before = self->pinned;
    self->pinned = Py_NewRef(pinned ? pinned : Py_None);
    Py_DECREF(before);
    return 0;
}

static PyObject *
entrance_get_taken(Entrance *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->taken);
}

static int
entrance_set_taken(Entrance *self, PyObject *taken, void *Py_UNUSED(closure))
{
    self->taken = taken == Py_True;
    return 0;
}

static PyGetSetDef GETSET[] = {
    {"pinned", (getter)entrance_get_pinned, (setter)entrance_set_pinned,
     "What `Plan.call` takes beside the values; None: `checked_call` gets all calls.", NULL},
    {"taken", (getter)entrance_get_taken, (setter)entrance_set_taken,
     "Whether a call came this way since this was set to False.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, entrance_new},
    {Py_tp_dealloc, entrance_dealloc},
    {Py_tp_traverse, entrance_traverse},
    {Py_tp_clear, entrance_clear},
    {Py_tp_call, entrance_call},
    {Py_tp_getset, GETSET},
    {Py_tp_doc, "Leads calls into a plan."},
    {0, NULL},
};

PyType_Spec entrance_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Entrance", sizeof(Entrance), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, SLOTS,
};
