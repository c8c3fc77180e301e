/* Large work in ranges of one length, on several threads. */

#ifndef PJRT_BRIDGE_CPU_DIVIDE_H
#define PJRT_BRIDGE_CPU_DIVIDE_H

#include "frame.h"

#include <stdint.h>

typedef struct {
    /* Does a range on this thread; writes the reason and returns -1 when it fails. */
    int (*run)(const void *data, int64_t begin, int64_t end, char *message);
    const void *data;
    int64_t length;        /* Of what is divided. */
    int64_t grain, pieces; /* The least length of a range; ranges for each thread. */
} Division;

/* Do all of it, on several threads where it is worth it. */
int divide(const Frame *frame, const Division *division, char *message);

#endif
