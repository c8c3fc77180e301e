/* See jax_guards.h. */

#include "jax_guards.h"

/* PJRT functions carry nothing that would tell one table from another, so each guarded function
 * has a C function of its own. */
#define SIXTEEN(X, digit)                                                                         \
    X(digit##0) X(digit##1) X(digit##2) X(digit##3) X(digit##4) X(digit##5) X(digit##6)           \
    X(digit##7) X(digit##8) X(digit##9) X(digit##a) X(digit##b) X(digit##c) X(digit##d)           \
    X(digit##e) X(digit##f)
#define GUARDS(X)                                                                                 \
    SIXTEEN(X, 0) SIXTEEN(X, 1) SIXTEEN(X, 2) SIXTEEN(X, 3) SIXTEEN(X, 4) SIXTEEN(X, 5)           \
    SIXTEEN(X, 6) SIXTEEN(X, 7) SIXTEEN(X, 8) SIXTEEN(X, 9) SIXTEEN(X, a) SIXTEEN(X, b)           \
    SIXTEEN(X, c) SIXTEEN(X, d) SIXTEEN(X, e) SIXTEEN(X, f)
#define COUNT_GUARD(number) +1
enum { NUM_GUARDS = 0 GUARDS(COUNT_GUARD) };

typedef void *(*Guarded)(void *args);

/* Tables that a guard was made for are never unloaded. */
static Guarded guarded[NUM_GUARDS];
static Py_ssize_t num_guarded;

/* Called on any thread, with or without the GIL, also while an exception is set. */
static void *
call_guarded(int number, void *args)
{
    if (atomic_load(&process.plugins_are_gone) || !Py_IsInitialized())
        return NULL;
    PyObject *exception, *value, *traceback;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyErr_Fetch(&exception, &value, &traceback);
    PyThreadState *state = enter_plugin();
    void *error = guarded[number](args);
    leave_plugin(state);
    PyErr_Restore(exception, value, traceback);
    PyGILState_Release(gil);
    return error;
}

#define DEFINE_GUARD(number)                                                                      \
    static void *guard_##number(void *args) { return call_guarded(0x##number, args); }
#define NAME_GUARD(number) guard_##number,
GUARDS(DEFINE_GUARD)
static const Guarded guards[NUM_GUARDS] = {GUARDS(NAME_GUARD)};

PyObject *
guard(PyObject *address)
{
    Guarded function = (Guarded)PyLong_AsVoidPtr(address);
    if (!function) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "expected the address of a function, found NULL");
        return NULL;
    }
    Py_ssize_t number = 0;
    while (number < num_guarded && guarded[number] != function)
        number++;
    if (number == NUM_GUARDS)
        return PyErr_Format(PyExc_OverflowError, "there are %d guards, and all are in use",
                            (int)NUM_GUARDS);
    if (number == num_guarded)
        guarded[num_guarded++] = function;
    return PyLong_FromVoidPtr((void *)guards[number]);
}
