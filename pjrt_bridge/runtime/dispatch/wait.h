/* Bounded spin before blocking, and the clock.
 *
 * To wake a thread that sleeps takes 50 us and more on a virtual machine, which is longer than many
 * programs run. So what waits asks again and again for a while, and blocks only then. It gives its
 * core to any other thread that wants it.
 *
 *     int64_t end = spin_end();
 *     while (!is_over() && spin(end));
 *
 * The distributions pjrt_bridge and pjrt_bridge_cpu are built apart, so each has this file; a test
 * compares the two.
 */

#ifndef PJRT_BRIDGE_WAIT_H
#define PJRT_BRIDGE_WAIT_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define SPIN_NANOSECONDS 200000

static inline int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* When a spin that begins now has to end. */
static inline int64_t
spin_end(void)
{
    return nanoseconds() + SPIN_NANOSECONDS;
}

/* Give the core away once; false when it is time to block. */
static inline bool
spin(int64_t end)
{
    if (nanoseconds() >= end)
        return false;
    sched_yield();
    return true;
}

#endif
