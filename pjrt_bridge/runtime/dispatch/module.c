/* The module `_dispatch`: the path of one call, from tensors to tensors.
 *
 * A Plan belongs to one executable. `launch` makes buffers over the memory of tensors, which it
 * reads through the DLPack exchange API of their framework, or as the DLPack capsules that the
 * framework makes, and executes; `finish` waits. `call` does both, and makes the tensors.
 *
 *     process.c     state of the process, and the way in and out of plugins
 *     abi.c         the functions of the PJRT C API that are called
 *     plan.c        Plan: what is known of an executable
 *     arguments.c   values and kept buffers, compared with the plan
 *     idle_threads.c  threads of the framework that keep their cores without work
 *     await.c       the end of an execution, and Ctrl-C before it
 *     run.c         an execution: put, execute, wait, look where the results are
 *     output.c      Output: a result, and tensors over it
 *     pending.c     Pending: what a plugin still uses of dropped executions
 *     launch.c      Launch: a run that is waited for later
 *     call.c        Plan.launch and Plan.call
 *     resident.c    Resident: what a storage on a device holds
 *     key.c         what the program of an operator's call depends on
 *     shortcut.c    Shortcut: the program of calls of one key
 *     operators.c   Operators: calls of operators on a device, led to their shortcuts
 *     running.c     executions of these, until they are over
 *     entrance.c    Entrance: what a framework calls in place of a plan
 *     resizing.c    tensors that the framework can resize
 *     jax_guards.c  functions for JAX's copy of a plugin's table
 *
 * Nothing raises while the GIL is released. Every call into a plugin that can take time is made
 * between `enter_plugin` and `leave_plugin`. A plugin calls nothing here but the callback in
 * `await.c`, which knows nothing of Python.
 */

#include "abi.h"
#include "call.h"
#include "entrance.h"
#include "jax_guards.h"
#include "launch.h"
#include "operators.h"
#include "output.h"
#include "pending.h"
#include "resident.h"
#include "running.h"
#include "shortcut.h"

static PyObject *
module_live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    settle_running();
    return Py_BuildValue("(ll)", process.num_buffers, process.num_events);
}

static PyObject *
module_busy(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (process.calls > 0)
        Py_RETURN_TRUE;
    settle_running();
    int running = is_any_running();
    return running < 0 ? NULL : PyBool_FromLong(is_any_unqueued() || running || num_running());
}

static PyObject *
module_close(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    process.exiting = PyThread_get_thread_ident();
    Py_RETURN_NONE;
}

static PyObject *
module_end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    atomic_store(&process.plugins_are_gone, true);
    Py_RETURN_NONE;
}

static PyObject *
module_forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    process.generation++;
    process.calls = 0;
    unlist_all_launches();
    forget_running();
    Py_RETURN_NONE;
}

static PyObject *
module_settle(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    settle_running();
    Py_RETURN_NONE;
}

static PyObject *
module_wait(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (await_running())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
module_guard(PyObject *Py_UNUSED(module), PyObject *address)
{
    return guard(address);
}

static PyMethodDef METHODS[] = {
    METHOD("live", module_live, METH_NOARGS, "Number of buffers and of events."),
    METHOD("busy", module_busy, METH_NOARGS, "Whether a plugin is at work here."),
    METHOD("close", module_close, METH_NOARGS, "From now on only this thread may launch."),
    METHOD("end", module_end, METH_NOARGS, "From now on nothing is given back to plugins."),
    METHOD("forked", module_forked, METH_NOARGS, "Disown what the parent process made."),
    METHOD("settle", module_settle, METH_NOARGS, "Forget executions of shortcuts that are over."),
    METHOD("wait", module_wait, METH_NOARGS, "Wait for the executions of shortcuts."),
    METHOD("find", module_find, METH_O, "find(address) -> the Resident of a storage, or None."),
    METHOD("tensor_of", module_tensor_of, METH_VARARGS,
           "tensor_of(class, form, index, elements, exchange, numbers) -> a tensor over them."),
    METHOD("guard", module_guard, METH_O,
           "guard(address) -> address of a function that does the same, whatever exception is "
           "pending, and nothing once the process ends."),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_dispatch", "The path of one call.", -1, METHODS, NULL, NULL, NULL, NULL,
};

/* Add a value, which is taken over. */
static int
add(PyObject *module, const char *name, PyObject *value)
{
    int failed = !value || PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return failed;
}

/* Make a type and add it; where other files need it, `type` keeps it. */
static int
add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type)
{
    PyObject *made = PyType_FromSpec(spec);
    if (made && type)
        *type = (PyTypeObject *)Py_NewRef(made);
    return add(module, name, made);
}

PyMODINIT_FUNC
PyInit__dispatch(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (!module)
        return NULL;
    if (add_type(module, "Plan", &plan_spec, &plan_type) ||
        add_type(module, "Entrance", &entrance_spec, NULL) ||
        add_type(module, "Launch", &launch_spec, &launch_type) ||
        add_type(module, "Output", &output_spec, &output_type) ||
        add_type(module, "Pending", &pending_spec, &pending_type) ||
        add_type(module, "Resident", &resident_spec, &resident_type) ||
        add_type(module, "Shortcut", &shortcut_spec, &shortcut_type) ||
        add_type(module, "Operators", &operators_spec, NULL) ||
        add(module, "LAYOUTS", struct_layouts()) || add(module, "FUNCTIONS", function_names()) ||
        PyModule_AddStringConstant(module, "REVISION", REVISION)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
