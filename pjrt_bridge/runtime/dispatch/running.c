/* See running.h. */

#include "running.h"

#include "await.h"

#include <string.h>

/* How many may run, and how many are known while threads are about to wait for some. */
enum { MOST = 64, CAPACITY = 1024 };

typedef struct {
    Plan *plan;
    PyObject *lease;
    void *done;
    uint64_t number;
} Running;

/* A thread that looks at one takes it out meanwhile. */
static Running running[CAPACITY];
static Py_ssize_t count;
static uint64_t last_number;

static Running
take_first(void)
{
    Running first = running[0];
    memmove(running, running + 1, (size_t)--count * sizeof *running);
    return first;
}

static void
put_back(Running first)
{
    memmove(running + 1, running, (size_t)count++ * sizeof *running);
    running[0] = first;
}

static void
drop(Running one)
{
    process.num_events--;
    Py_DECREF(one.lease);
    Py_DECREF((PyObject *)one.plan);
}

uint64_t
note_running(Plan *plan, PyObject *lease, void *done)
{
    if (count == CAPACITY) {
        /* It goes on, and nobody knows. */
        destroy_event(plan, done);
        process.num_events--;
        return ++last_number;
    }
    running[count++] =
        (Running){(Plan *)Py_NewRef((PyObject *)plan), Py_NewRef(lease), done, ++last_number};
    return last_number;
}

/* 1 where the oldest was over, and is out; 0 where it is not; -1 with an exception, while waiting. */
static int
look_at_first(bool wait, bool raise)
{
    Running first = take_first();
    Plan *plan = first.plan;
    void *error = NULL;
    bool interrupted = false;
    PyThreadState *state = enter_plugin();
    bool over = is_ready(plan, first.done);
    if (!over && wait) {
        interrupted = !await_event(plan, first.done, &state);
        over = !interrupted;
    }
    if (over) {
        if (wait) {
            ARGS(plan, Event_Await, .event = first.done);
            error = CALL(plan, Event_Await);
            if (error && !raise) {
                /* Who reads the results gets it again. */
                destroy_error(plan, error);
                error = NULL;
            }
        }
        destroy_event(plan, first.done);
    }
    leave_plugin(state);
    if (!over) {
        put_back(first);
        return interrupted ? -1 : 0;
    }
    if (error)
        raise_failure(plan, error, "Event_Await", "an error");
    drop(first);
    return error ? -1 : 1;
}

int
make_room(void)
{
    /* Two at a time, so that a backlog gets shorter. */
    for (int i = 0; i < 2 && count; i++) {
        int over = look_at_first(false, false);
        if (over <= 0)
            break;
    }
    while (count >= MOST)
        if (look_at_first(true, false) < 0)
            return -1;
    return 0;
}

void
settle_running(void)
{
    while (count && look_at_first(false, false) > 0)
        ;
}

Py_ssize_t
num_running(void)
{
    return count;
}

int
await_run(uint64_t number)
{
    while (count && running[0].number <= number)
        if (look_at_first(true, false) < 0)
            return -1;
    return 0;
}

int
await_running(void)
{
    while (count)
        if (look_at_first(true, true) < 0)
            return -1;
    return 0;
}

void
forget_running(void)
{
    /* What they refer to is never freed. */
    count = 0;
}
