/* Large calls in parts, along one dimension, on XLA's threads.
 *
 * Each part has one core: OpenMP's own threads spin for a while after each loop, and would take the
 * cores from XLA's.
 */

#include "call.h"
#include "torch.h"
#include "wait.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Call *call; /* Good until all parts are done. */
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
    int64_t length = work->call->length, longer = length % work->parts;
    return length / work->parts * index + (index < longer ? index : longer);
}

/* Take parts until none is left. A late thread finds none, and does not read the call. */
static void
take_parts(Work *work)
{
    int64_t index;
    int saved = 0, saved_blas = 0;
    bool started = false;
    while ((index = atomic_fetch_add(&work->next, 1)) < work->parts) {
        if (!started) {
            uint32_t unused;
            /* The first loop of a thread would set its number of threads anew. */
            torch.threads(&unused);
            saved = torch.max_threads();
            torch.set_threads(1);
            if (torch.set_blas_threads)
                saved_blas = torch.set_blas_threads(1);
            started = true;
        }
        char message[MESSAGE] = "";
        int64_t lengths['z' - 'a' + 1] = {0};
        const Part part = {work->call, begin_of(work, index), begin_of(work, index + 1), message,
                           lengths};
        if (run_part(&part) && !atomic_exchange(&work->failed, 1))
            memcpy(work->message, message, MESSAGE);
        if (atomic_fetch_add(&work->done, 1) + 1 == work->parts) {
            pthread_mutex_lock(&work->lock);
            pthread_cond_broadcast(&work->changed);
            pthread_mutex_unlock(&work->lock);
        }
    }
    if (started) {
        torch.set_threads(saved);
        if (torch.set_blas_threads)
            torch.set_blas_threads(saved_blas);
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
    if (api->size < offsetof(Api, threads) + sizeof api->threads || !api->threads ||
        !api->schedule)
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
run_in_parts(const Call *call, char *message)
{
    const Frame *frame = call->frame;
    int64_t most = call->grain > 0 ? call->length / call->grain : 1;
    int64_t threads = most > 1 ? threads_of(frame) : 1, parts = threads;
    if (call->pieces > 1 && threads > 1)
        parts = call->pieces < most / threads ? threads * call->pieces : most;
    if (parts > most)
        parts = most;
    Work *work = malloc(sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    *work = (Work){.call = call, .parts = parts > 1 ? parts : 1};
    atomic_init(&work->holders, 1);
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->changed, NULL);
    /* One thread more than there is work for: one that sleeps may wake late. */
    for (int64_t i = 0; i < threads && i < work->parts && work->parts > 1; i++) {
        ScheduleArgs args = {sizeof args, NULL, frame->context, task, work};
        atomic_fetch_add(&work->holders, 1);
        Error *error = frame->api->schedule(&args);
        if (error) {
            drop(frame->api, error);
            atomic_fetch_sub(&work->holders, 1);
            break;
        }
    }
    take_parts(work);
    int64_t end = spin_end();
    while (atomic_load(&work->done) < work->parts && spin(end))
        ;
    if (atomic_load(&work->done) < work->parts) {
        pthread_mutex_lock(&work->lock);
        while (atomic_load(&work->done) < work->parts)
            pthread_cond_wait(&work->changed, &work->lock);
        pthread_mutex_unlock(&work->lock);
    }
    int failed = atomic_load(&work->failed) ? fail(message, "%s", work->message) : 0;
    let_go(work);
    return failed;
}
