/* See divide.h. */

#include "divide.h"
#include "team.h"
#include "wait.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Division *division; /* Good until all parts are done. */
    int64_t parts;
    atomic_llong next, done, holders;
    atomic_int failed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char message[MESSAGE];
} Work;

/* Where a part begins. Lengths come from the program, so that a product could overflow. */
static int64_t
begin_of(const Work *work, int64_t index)
{
    int64_t length = work->division->length, longer = length % work->parts;
    return length / work->parts * index + (index < longer ? index : longer);
}

/* Take parts until none is left. A late thread finds none, and does not read the division. */
static void
take_parts(Work *work)
{
    int64_t index;
    while ((index = atomic_fetch_add(&work->next, 1)) < work->parts) {
        const Division *division = work->division;
        char message[MESSAGE] = "";
        if (division->run(division->data, begin_of(work, index), begin_of(work, index + 1),
                          message) &&
            !atomic_exchange(&work->failed, 1))
            memcpy(work->message, message, MESSAGE);
        if (atomic_fetch_add(&work->done, 1) + 1 == work->parts) {
            pthread_mutex_lock(&work->lock);
            pthread_cond_broadcast(&work->changed);
            pthread_mutex_unlock(&work->lock);
        }
    }
}

static void
let_go(Work *work)
{
    if (atomic_fetch_sub(&work->holders, 1) > 1)
        return;
    pthread_mutex_destroy(&work->lock);
    pthread_cond_destroy(&work->changed);
    free(work);
}

static void
task(void *data)
{
    take_parts(data);
    let_go(data);
}

static void
drop(const Api *api, Error *error)
{
    struct {
        size_t size;
        void *extension;
        Error *error;
    } args = {sizeof args, NULL, error};
    api->destroy(&args);
}

static int64_t
threads_of(const Frame *frame)
{
    const Api *api = frame->api;
    int64_t count = 1;
    if (api->size < offsetof(Api, threads) + sizeof api->threads || !api->threads)
        return 1;
    ThreadsArgs args = {sizeof args, NULL, frame->context, &count};
    Error *error = api->threads(&args);
    if (error) {
        drop(api, error);
        return 1;
    }
    return count;
}

int
divide(const Frame *frame, const Division *division, char *message)
{
    int64_t most = division->grain > 0 ? division->length / division->grain : 1;
    int64_t threads = most > 1 ? threads_of(frame) : 1, parts = threads;
    if (division->pieces > 1 && threads > 1)
        parts = division->pieces < most / threads ? threads * division->pieces : most;
    if (parts > most)
        parts = most;
    Work *work = malloc(sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    *work = (Work){.division = division, .parts = parts > 1 ? parts : 1};
    atomic_init(&work->holders, 1);
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->changed, NULL);
    int64_t wanted = (threads < work->parts ? threads : work->parts) - 1;
    /* The parts are the same whoever does them, and so are the results. */
    const bool alone = wanted > 0 && !is_worth_offering(most);
    const int64_t begin = alone ? nanoseconds() : 0;
    if (alone)
        wanted = 0;
    Offer helpers = {task, work, wanted, NULL};
    if (wanted > 0) {
        atomic_fetch_add(&work->holders, wanted);
        offer(&helpers);
    }
    take_parts(work);
    if (wanted > 0)
        /* This thread holds the work, too, until it has read the outcome. */
        atomic_fetch_sub(&work->holders, withdraw(&helpers));
    int64_t end = spin_end();
    while (atomic_load(&work->done) < work->parts && spin(end))
        ;
    if (atomic_load(&work->done) < work->parts) {
        pthread_mutex_lock(&work->lock);
        while (atomic_load(&work->done) < work->parts)
            pthread_cond_wait(&work->changed, &work->lock);
        pthread_mutex_unlock(&work->lock);
    }
    if (alone)
        note_alone(begin);
    int failed = atomic_load(&work->failed) ? fail(message, "%s", work->message) : 0;
    let_go(work);
    return failed;
}
