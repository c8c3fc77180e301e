/* Launch: a run that is waited for later. */

#ifndef PJRT_BRIDGE_LAUNCH_H
#define PJRT_BRIDGE_LAUNCH_H

#include "run.h"

typedef struct Launch {
    PyObject_HEAD
    Run run;
    PyObject *outputs;       /* A tuple, once it was asked for. */
    bool failed;             /* Its end was waited for, and it has no results. */
    bool claimed;            /* A thread uses the event of the end, without the GIL. */
    bool awaited;            /* Other threads wait for that thread, which has `lock` meanwhile. */
    PyThread_type_lock lock; /* NULL as long as no thread has waited for another. */
    bool listed;             /* In the list of those that were not waited for. */
    struct Launch *previous, *next;
} Launch;

/* A launch whose run is not opened; NULL with an exception. */
Launch *new_launch(void);

/* Put what was started into the list of launches that were not waited for. */
void list_launch(Launch *self);

/* Forget the launches of the parent process. */
void unlist_all_launches(void);

/* Whether an execution is under way that was not waited for: 1 or 0; -1 with an exception. */
int is_any_running(void);

extern PyTypeObject *launch_type;
extern PyType_Spec launch_spec;

#endif
