/* See team.h. */

#define _GNU_SOURCE

#include "team.h"
#include "wait.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

enum { MOST = 256 };
/* Work that takes about as long as to wake a helper: of one call, in grains, and what is done alone
 * by one call after the other, in nanoseconds. */
enum { GRAINS = 8, NANOSECONDS = 50000 };

typedef struct {
    pid_t thread;    /* 0 until it runs; written under the lock. */
    atomic_int core; /* Where it was last. */
} Helper;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t offered;
    Offer *first;
    atomic_llong open; /* Of all offers; written under the lock. */
    int64_t helpers, asleep;
    int64_t alone, last; /* Nanoseconds of work done alone, and when the last of it ended. */
    Helper each[MOST];
} team = {.lock = PTHREAD_MUTEX_INITIALIZER, .offered = PTHREAD_COND_INITIALIZER};

/* Wait for an offer, with the lock: awake first, and then asleep. */
static void
look_out(Helper *self)
{
    pthread_mutex_unlock(&team.lock);
    int64_t end = spin_end();
    do
        atomic_store(&self->core, sched_getcpu());
    while (!atomic_load(&team.open) && spin(end));
    pthread_mutex_lock(&team.lock);
    while (!atomic_load(&team.open)) {
        team.asleep++;
        pthread_cond_wait(&team.offered, &team.lock);
        team.asleep--;
    }
}

static void *
help(void *data)
{
    Helper *self = data;
    pthread_mutex_lock(&team.lock);
    self->thread = gettid();
    for (;;) {
        Offer *offer = team.first;
        while (offer && !offer->open)
            offer = offer->next;
        if (!offer) {
            look_out(self);
            continue;
        }
        offer->open--;
        atomic_fetch_sub(&team.open, 1);
        /* The offer may be withdrawn meanwhile. */
        void (*task)(void *) = offer->task;
        void *work = offer->data;
        pthread_mutex_unlock(&team.lock);
        atomic_store(&self->core, sched_getcpu());
        task(work);
        pthread_mutex_lock(&team.lock);
    }
    return NULL;
}

/* Have this many helpers, or as many as the system allows. */
static void
grow(int64_t count)
{
    if (team.helpers >= count)
        return;
    static const int OWN[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        sigdelset(&others, OWN[i]);
    /* Signals are for threads that know of Python, except of what a thread did itself. */
    pthread_sigmask(SIG_SETMASK, &others, &before);
    for (pthread_t thread; team.helpers < count && team.helpers < MOST; team.helpers++) {
        if (pthread_create(&thread, NULL, help, &team.each[team.helpers]))
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Have no helper where this thread runs, with the lock.
 *
 * A thread wakes where it slept, or where it is woken, although another core has nothing to do, and
 * stays there for milliseconds: both would take turns on one core, each as long as it lasts.
 */
static void
make_room(void)
{
    int core = sched_getcpu();
    for (int64_t i = 0; core >= 0 && i < team.helpers; i++) {
        Helper *helper = &team.each[i];
        if (!helper->thread || atomic_load(&helper->core) != core)
            continue;
        cpu_set_t cores;
        if (sched_getaffinity(0, sizeof cores, &cores))
            return;
        CPU_CLR(core, &cores);
        if (CPU_COUNT(&cores))
            sched_setaffinity(helper->thread, sizeof cores, &cores);
    }
}

bool
is_worth_offering(int64_t grains)
{
    pthread_mutex_lock(&team.lock);
    if (nanoseconds() - team.last > SPIN_NANOSECONDS)
        team.alone = 0;
    const bool is_awake = team.asleep < team.helpers;
    const bool found = is_awake || grains >= GRAINS || team.alone >= NANOSECONDS;
    pthread_mutex_unlock(&team.lock);
    return found;
}

void
note_alone(int64_t begin)
{
    pthread_mutex_lock(&team.lock);
    team.last = nanoseconds();
    team.alone += team.last - begin;
    pthread_mutex_unlock(&team.lock);
}

void
offer(Offer *offer)
{
    pthread_mutex_lock(&team.lock);
    grow(offer->open);
    make_room();
    offer->next = team.first;
    team.first = offer;
    atomic_fetch_add(&team.open, offer->open);
    for (int64_t i = 0; i < offer->open && i < team.asleep; i++)
        pthread_cond_signal(&team.offered);
    pthread_mutex_unlock(&team.lock);
}

int64_t
withdraw(Offer *offer)
{
    pthread_mutex_lock(&team.lock);
    atomic_fetch_sub(&team.open, offer->open);
    Offer **place = &team.first;
    while (*place != offer)
        place = &(*place)->next;
    *place = offer->next;
    pthread_mutex_unlock(&team.lock);
    return offer->open;
}
