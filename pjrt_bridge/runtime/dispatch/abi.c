/* Tables of plugin functions that Python hands over, and the sizes of structs for Python. */

#include "abi.h"

#include <string.h>

#define NAME_FUNCTION(function) #function,
static const char *const NAMES[] = {FUNCTIONS(NAME_FUNCTION)};

int
read_table(PyObject *tuple, Function *table)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count != NUM_FUNCTIONS) {
        if (count >= 0)
            PyErr_Format(PyExc_TypeError, "table: found %zd functions, expected %d", count,
                         (int)NUM_FUNCTIONS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long address;
        Py_ssize_t size;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, i), "Kn", &address, &size))
            return -1;
        if (!address || size <= 0) {
            PyErr_Format(PyExc_ValueError, "table: found address %llu and size %zd of %s", address,
                         size, NAMES[i]);
            return -1;
        }
        /* A pointer to a function cannot be made of a number otherwise without a warning. */
        uintptr_t pointer = (uintptr_t)address;
        memcpy(&table[i].call, &pointer, sizeof pointer);
        table[i].size = (size_t)size;
    }
    return 0;
}

PyObject *
function_names(void)
{
    PyObject *names = PyTuple_New(NUM_FUNCTIONS);
    for (Py_ssize_t i = 0; names && i < NUM_FUNCTIONS; i++) {
        PyObject *name = PyUnicode_FromString(NAMES[i]);
        if (!name || PyTuple_SetItem(names, i, name))
            Py_CLEAR(names);
    }
    return names;
}

static int
report_field(PyObject *fields, const char *name, size_t offset, size_t size)
{
    PyObject *place = Py_BuildValue("(nn)", (Py_ssize_t)offset, (Py_ssize_t)size);
    int failed = !place || PyDict_SetItemString(fields, name, place);
    Py_XDECREF(place);
    return failed ? -1 : 0;
}

#define REPORT_FIELD(type, name)                                                                  \
    failed = failed || report_field(fields, #name, offsetof(REPORTED, name),                      \
                                    sizeof((REPORTED *)NULL)->name);
#define REPORT(function)                                                                          \
    static PyObject *report_##function(void)                                                      \
    {                                                                                             \
        typedef function##_Args REPORTED;                                                         \
        PyObject *fields = PyDict_New();                                                          \
        bool failed = !fields;                                                                    \
        FIELDS_##function(REPORT_FIELD) if (failed) Py_CLEAR(fields);                             \
        return fields;                                                                            \
    }
FUNCTIONS(REPORT)

#define NAME_REPORT(function) report_##function,
static PyObject *(*const REPORTS[])(void) = {FUNCTIONS(NAME_REPORT)};

PyObject *
struct_layouts(void)
{
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found && i < NUM_FUNCTIONS; i++) {
        PyObject *fields = REPORTS[i]();
        if (!fields || PyDict_SetItemString(found, NAMES[i], fields))
            Py_CLEAR(found);
        Py_XDECREF(fields);
    }
    return found;
}
