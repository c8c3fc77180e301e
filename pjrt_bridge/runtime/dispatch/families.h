/* Families: the ways of calls of operators, by the keys of the calls: a Shortcut, or what records. */

#ifndef PJRT_BRIDGE_FAMILIES_H
#define PJRT_BRIDGE_FAMILIES_H

#include "key.h"

typedef struct Family Family; /* Calls of one key. */

/* All zeros is an empty table. */
typedef struct {
    Family **table;
    size_t count, capacity; /* A power of two. */
} Families;

/* Borrowed; NULL where there is none. */
PyObject *find_way(const Families *self, const Key *key);

/* The way of calls with these numbers, or with any; false without memory. `op` is kept. */
bool add_way(Families *self, const Key *key, PyObject *op, PyObject *way, bool any_numbers);

void forget_families(Families *self);

#endif
