/* See idle_threads.h. */

#include "idle_threads.h"

#include "wait.h"

enum { SOFT = 1 }; /* omp_pause_soft (OpenMP 5.0, section 3.2.44): what was set stays. */
/* A program that is slowed down once for another reason is not taken for a long one. */
enum { TIMES = 2 };

int
read_idle_threads(PyObject *numbers, IdleThreads *threads)
{
    *threads = (IdleThreads){0};
    if (numbers == Py_None)
        return 0;
    unsigned long long end;
    long long worth;
    if (!PyTuple_Check(numbers)) {
        PyErr_SetString(PyExc_TypeError, "idle threads: expected a tuple of two numbers, or None");
        return -1;
    }
    if (!PyArg_ParseTuple(numbers, "KL", &end, &worth))
        return -1;
    threads->end = (int (*)(int))(uintptr_t)end;
    threads->worth = worth;
    return 0;
}

int64_t
end_idle_threads(const IdleThreads *threads)
{
    if (!threads->end)
        return 0;
    if (threads->long_runs >= TIMES)
        threads->end(SOFT);
    return nanoseconds();
}

void
note_duration(IdleThreads *threads, int64_t began, bool waited)
{
    const int64_t took = nanoseconds() - began;
    /* While the threads are in the way it takes up to twice as long as without them. */
    if (took < threads->worth / 2)
        threads->long_runs = 0;
    else if (waited && took >= threads->worth && threads->long_runs < TIMES)
        threads->long_runs++;
}
