/* See families.h. */

#include "families.h"

#include <stdlib.h>
#include <string.h>

/* For values of the numbers of a call. */
typedef struct {
    Number *numbers;
    PyObject *way;
} Exact;

/* Calls of one key. */
struct Family {
    struct Family *next; /* With the same hash, or near it. */
    uint64_t hash;
    uint64_t *words;
    Py_ssize_t num_words, num_exact;
    Exact *exact;
    PyObject *any; /* For other values of them; NULL: there is none. */
    PyObject *op;
};

static Family *
find_family(const Families *self, const Key *key, uint64_t hash)
{
    if (!self->capacity)
        return NULL;
    size_t size = (size_t)key->num_words * sizeof *key->words;
    for (Family *family = self->table[hash & (self->capacity - 1)]; family; family = family->next)
        if (family->hash == hash && family->num_words == key->num_words &&
            !memcmp(family->words, key->words, size))
            return family;
    return NULL;
}

static Exact *
find_exact(const Family *family, const Key *key)
{
    size_t size = (size_t)key->num_numbers * sizeof *key->numbers;
    for (Py_ssize_t i = 0; i < family->num_exact; i++)
        if (!size || !memcmp(family->exact[i].numbers, key->numbers, size))
            return &family->exact[i];
    return NULL;
}

PyObject *
find_way(const Families *self, const Key *key)
{
    const Family *family = find_family(self, key, hash_of(key));
    Exact *exact = family ? find_exact(family, key) : NULL;
    return exact ? exact->way : family ? family->any : NULL;
}

static bool
grow(Families *self)
{
    size_t capacity = self->capacity ? 2 * self->capacity : 1024;
    Family **table = calloc(capacity, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < self->capacity; i++)
        for (Family *family = self->table[i], *next; family; family = next) {
            next = family->next;
            family->next = table[family->hash & (capacity - 1)];
            table[family->hash & (capacity - 1)] = family;
        }
    free(self->table);
    self->table = table;
    self->capacity = capacity;
    return true;
}

static void *
copied(const void *items, Py_ssize_t count, size_t size)
{
    void *copy = malloc((size_t)count * size + size);
    if (copy && count)
        memcpy(copy, items, (size_t)count * size);
    return copy;
}

static Family *
add_family(Families *self, const Key *key, uint64_t hash, PyObject *op)
{
    if (self->count >= self->capacity && !grow(self))
        return NULL;
    Family *family = calloc(1, sizeof *family);
    if (!family || !(family->words = copied(key->words, key->num_words, sizeof *key->words))) {
        free(family);
        return NULL;
    }
    family->hash = hash;
    family->num_words = key->num_words;
    family->op = Py_NewRef(op);
    family->next = self->table[hash & (self->capacity - 1)];
    self->table[hash & (self->capacity - 1)] = family;
    self->count++;
    return family;
}

static void
put_any(Family *family, PyObject *way)
{
    PyObject *before = family->any;
    family->any = Py_NewRef(way);
    Py_XDECREF(before);
}

static bool
add_exact(Family *family, const Key *key, PyObject *way)
{
    if (find_exact(family, key))
        return true;
    Exact *more = realloc(family->exact, ((size_t)family->num_exact + 1) * sizeof *more);
    if (!more)
        return false;
    family->exact = more;
    Number *numbers = copied(key->numbers, key->num_numbers, sizeof *key->numbers);
    if (!numbers)
        return false;
    more[family->num_exact++] = (Exact){numbers, Py_NewRef(way)};
    return true;
}

bool
add_way(Families *self, const Key *key, PyObject *op, PyObject *way, bool any_numbers)
{
    uint64_t hash = hash_of(key);
    Family *family = find_family(self, key, hash);
    if (!family && !(family = add_family(self, key, hash, op)))
        return false;
    if (!any_numbers)
        return add_exact(family, key, way);
    put_any(family, way);
    return true;
}

static void
drop_family(Family *family)
{
    for (Py_ssize_t i = 0; i < family->num_exact; i++) {
        free(family->exact[i].numbers);
        Py_DECREF(family->exact[i].way);
    }
    Py_XDECREF(family->any);
    free(family->exact);
    free(family->words);
    Py_DECREF(family->op);
    free(family);
}

void
forget_families(Families *self)
{
    /* What is dropped may call operators. */
    Family **table = self->table;
    size_t capacity = self->capacity;
    self->table = NULL;
    self->capacity = self->count = 0;
    for (size_t i = 0; i < capacity; i++)
        for (Family *family = table[i], *next; family; family = next) {
            next = family->next;
            drop_family(family);
        }
    free(table);
}
