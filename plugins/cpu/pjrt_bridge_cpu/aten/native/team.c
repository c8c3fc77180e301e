/* See team.h. */

#include "team.h"
#include "wait.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { MOST = 256 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t offered;
    Offer *first;
    atomic_llong open; /* Of all offers; written under the lock. */
    int64_t helpers, asleep;
} team = {.lock = PTHREAD_MUTEX_INITIALIZER, .offered = PTHREAD_COND_INITIALIZER};

/* Wait for an offer, with the lock: awake first, and then asleep. */
static void
look_out(void)
{
    pthread_mutex_unlock(&team.lock);
    int64_t end = spin_end();
    while (!atomic_load(&team.open) && spin(end))
        ;
    pthread_mutex_lock(&team.lock);
    while (!atomic_load(&team.open)) {
        team.asleep++;
        pthread_cond_wait(&team.offered, &team.lock);
        team.asleep--;
    }
}

static void *
help(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&team.lock);
    for (;;) {
        Offer *offer = team.first;
        while (offer && !offer->open)
            offer = offer->next;
        if (!offer) {
            look_out();
            continue;
        }
        offer->open--;
        atomic_fetch_sub(&team.open, 1);
        /* The offer may be withdrawn meanwhile. */
        void (*task)(void *) = offer->task;
        void *data = offer->data;
        pthread_mutex_unlock(&team.lock);
        task(data);
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
    sigset_t all, before;
    sigfillset(&all);
    /* Signals are for threads that know of Python. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; team.helpers < count && team.helpers < MOST; team.helpers++) {
        if (pthread_create(&thread, NULL, help, NULL))
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void
offer(Offer *offer)
{
    pthread_mutex_lock(&team.lock);
    grow(offer->open);
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
