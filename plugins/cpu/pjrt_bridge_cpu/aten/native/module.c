/* A custom call that runs one of PyTorch's CPU kernels on the plugin's own buffers.
 *
 * XLA calls `handle` from its threads, without Python's lock. The call's attributes (written by
 * calls.py) name an operator of ATen and say how its arguments are made of operands, results and
 * numbers; the operator is reached through libtorch's stable C interface, whose functions `connect`
 * finds. A program may come from anywhere, so only the operators that `connect` was given are
 * called.
 *
 *     assemble.c   another custom call, which needs no operator: copies of elements to their places
 *     attend.c     another one: attention of few queries
 *     bags.c       another one: sums of bags of rows
 *     call.c       what a program says, compared with the operator and the buffers
 *     combine.c    another one: updates along a dimension
 *     convolve.c   another one: small convolutions
 *     depthwise.c  another one: convolutions of each channel by itself
 *     divide.c     threads for large work
 *     divisors.c   another one: a check of divisors
 *     expression.c  another one: elementwise expressions (expression_reading.c)
 *     extremes.c   another one: positions of extremes
 *     frame.c      what every custom call does with its caller
 *     gather.c     another one: elements at positions along a dimension
 *     norm.c       another one: layer norm, RMS norm and group norm
 *     parts.c      a large call on several threads
 *     pool.c       another one: maxima of windows, their gradients, and sums
 *     positions.c  another one: a check of positions
 *     recurrence.c another one: a recurrent layer over all steps of time (cells.h, panels.h)
 *     reduce.c     another one: an elementwise expression, reduced
 *     run.c        a part of a call: tensors of buffers, and the operator
 *     scan.c       another one: running sums and products
 *     sort.c       another one: sorts of rows
 *     thin.c       another one: products of few rows (thin_loops.h)
 *     torch.c      libtorch's functions
 *     total.c      another one: reductions of integers and long floats
 *     weigh.c      another one: sums along a dimension by constant weights
 *     windows.c    another one: windows of elements, written into an array
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "assemble.h"
#include "attend.h"
#include "bags.h"
#include "call.h"
#include "combine.h"
#include "convolve.h"
#include "depthwise.h"
#include "divisors.h"
#include "expression.h"
#include "extremes.h"
#include "gather.h"
#include "norm.h"
#include "pool.h"
#include "positions.h"
#include "recurrence.h"
#include "reduce.h"
#include "scan.h"
#include "sort.h"
#include "thin.h"
#include "torch.h"
#include "total.h"
#include "weigh.h"
#include "windows.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the handler ----------------------------------------------------------------------------- */

static const char OF_KERNELS[] = "a call of PyTorch's kernels";

typedef struct {
    const Call *call;
    char *message;
    int failed;
} Errand;

static void *
run_errand(void *data)
{
    Errand *errand = data;
    errand->failed = run_in_parts(errand->call, errand->message);
    return NULL;
}

/* A mode of Python's that is on for this thread, such as one of fake tensors, would see the
 * operator and could do anything in its place. It is of no concern to a program that is compiled:
 * that goes to a thread where no mode is on. */
static int
run_beside_modes(const Call *call, char *message)
{
    Errand errand = {call, message, 0};
    pthread_t thread;
    if (!torch.any_modes || !torch.any_modes(false))
        return run_in_parts(call, message);
    if (pthread_create(&thread, NULL, run_errand, &errand))
        return fail(message, "there is no thread on which no mode of PyTorch is on");
    pthread_join(thread, NULL);
    return errand.failed;
}

static Error *
handle(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, OF_KERNELS, &answer))
        return answer;
    char message[MESSAGE] = "";
    Call call = {0};
    int code = INVALID_ARGUMENT;
    if (!check_caller(frame, message) && !read_call(frame, &call, message)) {
        if (!run_beside_modes(&call, message))
            return NULL;
        code = INTERNAL;
    }
    return refuse(frame, code, call.operator ? call.operator->name : OF_KERNELS, message);
}

/* -- the module ------------------------------------------------------------------------------ */

static bool
read_operator(PyObject *item, Operator *operator)
{
    const char *name, *overload, *kinds, *lengths;
    int returns;
    if (!PyArg_ParseTuple(item, "ssssi", &name, &overload, &kinds, &lengths, &returns))
        return false;
    if (strlen(name) >= sizeof operator->name || strlen(overload) >= sizeof operator->overload ||
        strlen(kinds) >= sizeof operator->kinds || strlen(lengths) >= sizeof operator->lengths ||
        returns < 0 || returns > MOST_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError, "operator %s.%s is longer than there is room", name,
                     overload);
        return false;
    }
    strcpy(operator->name, name);
    strcpy(operator->overload, overload);
    strcpy(operator->kinds, kinds);
    strcpy(operator->lengths, lengths);
    operator->returns = returns;
    return true;
}

static Operators *
read_operators(PyObject *given)
{
    Py_ssize_t count = PyTuple_Size(given);
    if (count > MOST_OPERATORS)
        PyErr_Format(PyExc_ValueError, "found %zd operators, expected at most %d", count,
                     MOST_OPERATORS);
    if (count < 0 || count > MOST_OPERATORS)
        return NULL;
    Operators *found = calloc(1, sizeof *found);
    if (!found) {
        PyErr_NoMemory();
        return NULL;
    }
    for (; found->count < count; found->count++)
        if (!read_operator(PyTuple_GetItem(given, found->count), &found->items[found->count])) {
            free(found);
            return NULL;
        }
    return found;
}

static PyObject *
connect(PyObject *self, PyObject *arguments)
{
    PyObject *path, *given, *name = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OO!", &path, &PyTuple_Type, &given) ||
        !PyUnicode_FSConverter(path, &name))
        return NULL;
    void *library = dlopen(PyBytes_AsString(name), RTLD_NOW | RTLD_LOCAL);
    Py_DECREF(name);
    if (!library)
        return PyErr_Format(PyExc_OSError, "%s", dlerror());
    Operators *found = read_operators(given);
    if (!found)
        return NULL;
    const char *missing = find_torch(library);
    if (missing) {
        free(found);
        return PyErr_Format(PyExc_LookupError, "%R has no function %s", path, missing);
    }
    /* The list before, if any, stays: a call may be reading it. */
    atomic_store(&operators, found);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"connect", connect, METH_VARARGS,
     "Find the functions of libtorch_cpu at a path; call these operators."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_aten", "PyTorch's CPU kernels as custom calls.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

static int
add_address(PyObject *module, const char *name, void *function)
{
    PyObject *address = PyLong_FromVoidPtr(function);
    int failed = address ? PyModule_AddObjectRef(module, name, address) : -1;
    Py_XDECREF(address);
    return failed;
}

PyMODINIT_FUNC
PyInit__aten(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (!module)
        return NULL;
    if (add_address(module, "HANDLER", (void *)handle) ||
        add_address(module, "ASSEMBLE_BOXES", (void *)assemble_boxes) ||
        add_address(module, "ATTEND_FEW", (void *)attend_few) ||
        add_address(module, "CHECK_DIVISORS", (void *)check_divisors) ||
        add_address(module, "CHECK_POSITIONS", (void *)check_positions) ||
        add_address(module, "COMBINE_ALONG", (void *)combine_along) ||
        add_address(module, "COMPUTE_EXPRESSION", (void *)compute_expression) ||
        add_address(module, "CONVOLVE_DEPTHWISE", (void *)convolve_depthwise) ||
        add_address(module, "CONVOLVE_SMALL", (void *)convolve_small) ||
        add_address(module, "FIND_EXTREMES", (void *)find_extremes) ||
        add_address(module, "GATHER_ALONG", (void *)gather_along) ||
        add_address(module, "MULTIPLY_THIN", (void *)multiply_thin) ||
        add_address(module, "NORMALIZE_ROWS", (void *)normalize_rows) ||
        add_address(module, "POOL_AVERAGES", (void *)pool_averages) ||
        add_address(module, "POOL_GRADIENTS", (void *)pool_gradients) ||
        add_address(module, "POOL_MAXIMA", (void *)pool_maxima) ||
        add_address(module, "POOL_POSITIONS", (void *)pool_positions) ||
        add_address(module, "RUN_RECURRENCE", (void *)run_recurrence) ||
        add_address(module, "RUN_RECURRENCE_BACKWARD", (void *)run_recurrence_backward) ||
        add_address(module, "SCAN_ALONG", (void *)scan_along) ||
        add_address(module, "SORT_ROWS", (void *)sort_rows) ||
        add_address(module, "SUM_BAGS", (void *)sum_bags) ||
        add_address(module, "TOTAL_ALONG", (void *)total_along) ||
        add_address(module, "REDUCE_EXPRESSION", (void *)reduce_expression) ||
        add_address(module, "WEIGH_ALONG", (void *)weigh_along) ||
        add_address(module, "WRITE_WINDOWS", (void *)write_windows) ||
        PyModule_AddStringConstant(module, "REVISION", REVISION)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
