/* What a plugin uses of an execution, kept until its end where no call waits for that.
 *
 * A plugin may read host memory, and write into it, until its events say that it has done with it.
 * What is left of an execution then goes into the queue of `pjrt_bridge.runtime.ownership.pending`,
 * as a Pending.
 */

#ifndef PJRT_BRIDGE_PENDING_H
#define PJRT_BRIDGE_PENDING_H

#include "plan.h"

typedef struct {
    void *buffer;
    void *done; /* The event by which the plugin has done with the host memory, or NULL. */
} Input;

/* An execution as the plugin sees it. All zeros: none. */
typedef struct {
    Plan *plan;
    PyObject *lease; /* The client's. */
    void *done;      /* The event of the end; NULL once it was waited for. */
    int64_t began;   /* When, in nanoseconds; 0: how long it took is known, or nobody asks. */
    Py_ssize_t num_inputs, num_owners;
    Input *inputs;
    PyObject **owners; /* Keep the memory of the inputs. */
} Execution;

/* What `drop_inputs` took off the counts. */
typedef struct {
    long buffers, events;
} Dropped;

/* Give the input buffers back, and the events of those whose memory the plugin has done with.
 * Without the GIL. */
Dropped drop_inputs(Execution *execution);

void count_dropped(Dropped dropped);

void drop_owners(Execution *execution);

/* Leave to the queue what the plugin has not done with, if there is anything. An exception that is
 * set stays. */
void hand_over(Execution *execution);

/* Let go of everything: hand over what plugins use, and forget what cannot be given back. */
void close_execution(Execution *execution);

/* Whether plugins are at work on what could not be put into the queue. */
bool is_any_unqueued(void);

extern PyTypeObject *pending_type;
extern PyType_Spec pending_spec;

#endif
