/* Families: the shortcuts of calls of operators, by the keys of the calls. */

#ifndef PJRT_BRIDGE_FAMILIES_H
#define PJRT_BRIDGE_FAMILIES_H

#include "shortcut.h"

typedef struct Family Family; /* Calls of one key. */

/* All zeros is an empty table. */
typedef struct {
    Family **table;
    size_t count, capacity; /* A power of two. */
} Families;

/* Borrowed; NULL where there is none. */
Shortcut *find_shortcut(const Families *self, const Key *key);

/* The shortcut of calls with these numbers, or with any; false without memory. `op` is kept. */
bool add_shortcut(Families *self, const Key *key, PyObject *op, Shortcut *shortcut);

void forget_families(Families *self);

#endif
