/* Threads of the framework that keep their cores while they have nothing to do.
 *
 * After a parallel operator the threads of OpenMP wait for the next one without giving up their cores,
 * for milliseconds. A program that a plugin computes on these cores takes up to twice its time then. To
 * end the threads, and to make them anew, takes some tenths of a millisecond, so they are ended before
 * programs that take longer: those that took longer when they were last waited for.
 */

#ifndef PJRT_BRIDGE_IDLE_THREADS_H
#define PJRT_BRIDGE_IDLE_THREADS_H

#include "process.h"

#include <stdbool.h>
#include <stdint.h>

/* All zeros: there are none. */
typedef struct {
    int (*end)(int); /* Ends those of the calling thread: `omp_pause_resource_all` of OpenMP. */
    int64_t worth;   /* Nanoseconds of a program from which on they are ended. */
    int long_runs;   /* That were found so long, one after the other. */
} IdleThreads;

/* Read an address and the nanoseconds, or None where there are none; -1 with an exception where it is
 * something else. */
int read_idle_threads(PyObject *numbers, IdleThreads *threads);

/* End them where the program was found to be long; called without the GIL, before it is started. The
 * time in nanoseconds, 0 where there are no such threads. */
int64_t end_idle_threads(const IdleThreads *threads);

/* Note how long a program took that was started at `began`, which is not 0, and has ended. Unless the
 * end was `waited` for, the program may have ended long before, so it is not taken for a long one. */
void note_duration(IdleThreads *threads, int64_t began, bool waited);

#endif
