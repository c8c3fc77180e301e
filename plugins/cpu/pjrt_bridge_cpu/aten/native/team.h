/* Threads that help with the parts of calls, and stay awake for a while after each.
 *
 * XLA's own threads sleep between loops, and one that sleeps takes 20 to 50 us to wake: as long as
 * many calls of a model take. A helper without work gives its core to whoever wants it, and sleeps
 * when none came for as long as `wait.h` says. None stays on the core of a thread that offers work.
 * Helpers are made when they are first needed, and end with the process.
 */

#ifndef PJRT_BRIDGE_CPU_TEAM_H
#define PJRT_BRIDGE_CPU_TEAM_H

#include <stdbool.h>
#include <stdint.h>

/* Work that helpers may join; the caller's, from `offer` to `withdraw`. */
typedef struct Offer {
    void (*task)(void *data);
    void *data;
    int64_t open; /* Helpers that may still join. */
    struct Offer *next;
} Offer;

/* Whether work of so many grains is better offered than done alone. Where no helper is awake it has to
 * take as long as to wake one, by itself or after what was done alone just before: most programs
 * between which something else runs are shorter. A grain is what is worth a thread that is awake. */
bool is_worth_offering(int64_t grains);

/* Work that began at a time of the clock of `wait.h` was done alone, and ends now. */
void note_alone(int64_t begin);

/* Let so many helpers join as `open` says; where the system makes no more threads, fewer will. */
void offer(Offer *offer);

/* Let no more of them join; gives how many did not. */
int64_t withdraw(Offer *offer);

#endif
