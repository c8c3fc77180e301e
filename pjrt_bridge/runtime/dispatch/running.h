/* Executions that nobody waits for: the events of their ends, oldest first. */

#ifndef PJRT_BRIDGE_RUNNING_H
#define PJRT_BRIDGE_RUNNING_H

#include "plan.h"

/* Keep the event of an execution, which is taken over, until it comes. `lease` is the client's. The
 * number of the execution: later ones have greater numbers, and none is 0. */
uint64_t note_running(Plan *plan, PyObject *lease, void *done);

/* Have room for one more, which waits for the oldest where there are too many: memory of what was
 * dropped is free when the program that reads it is over. -1 with an exception. */
int make_room(void);

/* Forget those that are over. */
void settle_running(void);

Py_ssize_t num_running(void);

/* Wait for one, and for those before it, unless another thread does. -1 with an exception where a
 * signal's handler raised; who reads the results is told whether it failed. */
int await_run(uint64_t number);

/* Wait for all. -1 with an exception where one failed, or a signal's handler raised. */
int await_running(void);

/* Forget those of the parent process. */
void forget_running(void);

#endif
