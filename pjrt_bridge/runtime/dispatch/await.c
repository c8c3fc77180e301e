/* See await.h.
 *
 * Python handles signals in its main thread, between two instructions. A thread that blocks within a
 * plugin comes to none, so the main thread blocks on a condition variable of its own, which the
 * plugin signals by the event's callback, and looks for signals every tenth of a second.
 */

#include "await.h"

#include "wait.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#define PERIOD_NANOSECONDS 100000000

/* What a thread and the callback of an event share; the later of the two frees it. */
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    bool over; /* The callback was called. */
    bool left; /* The thread waits no more. */
    Function destroy_error;
} Meeting;

static bool
is_main_thread(void)
{
#if defined(__linux__)
    return syscall(SYS_gettid) == getpid();
#else
    return pthread_main_np();
#endif
}

static Meeting *
new_meeting(const Plan *plan)
{
    Meeting *self = calloc(1, sizeof *self);
    pthread_condattr_t attributes;
    if (!self || pthread_condattr_init(&attributes)) {
        free(self);
        return NULL;
    }
#if defined(__linux__)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    self->destroy_error = plan->table[AT_Error_Destroy];
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return self;
}

static void
free_meeting(Meeting *self)
{
    pthread_cond_destroy(&self->condition);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

/* On a thread of the plugin. */
static void
on_ready(void *error, void *user_arg)
{
    Meeting *self = user_arg;
    if (error) {
        /* `Event_Await` gives it again. */
        Error_Destroy_Args args = {.struct_size = self->destroy_error.size, .error = error};
        self->destroy_error.call(&args);
    }
    pthread_mutex_lock(&self->mutex);
    self->over = true;
    bool left = self->left;
    pthread_cond_signal(&self->condition);
    pthread_mutex_unlock(&self->mutex);
    if (left)
        free_meeting(self);
}

/* Whether the callback was called, for which it is waited for a period. */
static bool
wait_for_callback(Meeting *self)
{
    struct timespec end;
#if defined(__linux__)
    clock_gettime(CLOCK_MONOTONIC, &end);
#else
    clock_gettime(CLOCK_REALTIME, &end);
#endif
    end.tv_nsec += PERIOD_NANOSECONDS;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&self->mutex);
    while (!self->over)
        if (pthread_cond_timedwait(&self->condition, &self->mutex, &end) == ETIMEDOUT)
            break;
    bool over = self->over;
    pthread_mutex_unlock(&self->mutex);
    return over;
}

static void
leave(Meeting *self)
{
    pthread_mutex_lock(&self->mutex);
    self->left = true;
    bool over = self->over;
    pthread_mutex_unlock(&self->mutex);
    if (over)
        free_meeting(self);
}

bool
await_event(Plan *plan, void *event, PyThreadState **state)
{
    int64_t end = spin_end();
    do {
        if (is_ready(plan, event))
            return true;
    } while (spin(end));
    if (!is_main_thread())
        return true;
    Meeting *meeting = new_meeting(plan);
    if (!meeting)
        return true;
    ARGS(plan, Event_OnReady, .event = event, .callback = on_ready, .user_arg = meeting);
    void *error = CALL(plan, Event_OnReady);
    if (error) {
        destroy_error(plan, error);
        free_meeting(meeting);
        return true;
    }
    bool raised = false;
    while (!raised && !wait_for_callback(meeting)) {
        leave_plugin(*state);
        raised = PyErr_CheckSignals() != 0;
        *state = enter_plugin();
    }
    leave(meeting);
    return !raised;
}
