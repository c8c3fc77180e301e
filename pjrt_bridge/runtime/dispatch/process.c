/* See process.h. */

#include "process.h"

struct Process process;

PyThreadState *
enter_plugin(void)
{
    process.calls++;
    return PyEval_SaveThread();
}

void
leave_plugin(PyThreadState *state)
{
    PyEval_RestoreThread(state);
    process.calls--;
}

bool
can_give_back(int generation)
{
    return !atomic_load(&process.plugins_are_gone) && generation == process.generation;
}
