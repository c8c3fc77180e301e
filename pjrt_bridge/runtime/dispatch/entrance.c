/* See entrance.h. */

#include "entrance.h"

#include "call.h"

typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyObject *quiet;     /* A tuple of containers: nothing is to be seen to while all are empty. */
    PyObject *failures;  /* Exceptions after which a call may be tried in another way. */
    PyObject *attentive; /* (values) -> results, where something is to be seen to */
    PyObject *refused;   /* (values) -> results, of values that did not go in, or failed */
    PyObject *kept;      /* `Kept.parts`; None: `attentive` gets all calls. */
    bool taken;          /* The last call came this way. */
} Entrance;

static PyObject *
entrance_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *plan, *quiet, *failures, *attentive, *refused;
    if (!PyArg_ParseTuple(args, "O!O!OOO", plan_type, &plan, &PyTuple_Type, &quiet, &failures,
                          &attentive, &refused))
        return NULL;
    Entrance *self = (Entrance *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->plan = (Plan *)Py_NewRef(plan);
        self->quiet = Py_NewRef(quiet);
        self->failures = Py_NewRef(failures);
        self->attentive = Py_NewRef(attentive);
        self->refused = Py_NewRef(refused);
        self->kept = Py_NewRef(Py_None);
    }
    return (PyObject *)self;
}

static int
entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->plan);
    Py_VISIT(self->quiet);
    Py_VISIT(self->failures);
    Py_VISIT(self->attentive);
    Py_VISIT(self->refused);
    Py_VISIT(self->kept);
    return 0;
}

/* The functions are what makes a cycle; the rest is there as long as anybody may call. */
static int
entrance_clear(Entrance *self)
{
    Py_CLEAR(self->attentive);
    Py_CLEAR(self->refused);
    return 0;
}

static void
entrance_dealloc(Entrance *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack((PyObject *)self);
    entrance_clear(self);
    Py_XDECREF(self->kept);
    Py_XDECREF(self->failures);
    Py_XDECREF(self->quiet);
    Py_XDECREF((PyObject *)self->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* 1 or 0; -1 with an exception. */
static int
is_quiet(const Entrance *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->quiet); i++) {
        Py_ssize_t size = PyObject_Size(PyTuple_GetItem(self->quiet, i));
        if (size)
            return size < 0 ? -1 : 0;
    }
    return 1;
}

/* Call the plan: NULL without an exception where it has to be tried in another way. */
static PyObject *
call_directly(Entrance *self, PyObject *values)
{
    /* Meanwhile something else may be kept. */
    PyObject *kept = Py_NewRef(self->kept);
    PyObject *results = call_plan(self->plan, values, kept);
    Py_DECREF(kept);
    if (results && results != Py_None) {
        self->taken = true;
        return results;
    }
    Py_XDECREF(results);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(self->failures))
        PyErr_Clear();
    return NULL;
}

static PyObject *
entrance_call(Entrance *self, PyObject *values, PyObject *keywords)
{
    PyObject *function = self->attentive;
    bool named = keywords && PyDict_Size(keywords);
    int quiet = named || self->kept == Py_None ? 0 : is_quiet(self);
    if (quiet < 0)
        return NULL;
    if (quiet) {
        PyObject *results = call_directly(self, values);
        if (results || PyErr_Occurred())
            return results;
        function = self->refused;
    }
    if (!function) {
        PyErr_SetString(PyExc_RuntimeError, "what is called here was collected");
        return NULL;
    }
    Py_INCREF(function);
    PyObject *results = PyObject_Call(function, values, keywords);
    Py_DECREF(function);
    return results;
}

static PyObject *
entrance_get_kept(Entrance *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->kept);
}

static int
entrance_set_kept(Entrance *self, PyObject *kept, void *Py_UNUSED(closure))
{
    PyObject *before = self->kept;
    self->kept = Py_NewRef(kept ? kept : Py_None);
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
    {"kept", (getter)entrance_get_kept, (setter)entrance_set_kept,
     "What `Plan.call` takes beside the values; None: `attentive` gets all calls.", NULL},
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
