/* Key: what the program of a call of an operator depends on, and what the call gives it. */

#ifndef PJRT_BRIDGE_KEY_H
#define PJRT_BRIDGE_KEY_H

#include "resident.h"

/* How arguments of the framework are told from each other. */
typedef struct {
    PyTypeObject *tensor_type, *device_type;
    PyObject *singletons; /* A tuple of types each value of which is one object for good. */
    PyObject *device;     /* The name of the device. */
    PyObject *default_dtype; /* () -> the element type of calls that ask for none: one object for good. */
    PyObject *places; /* For operators a number with a bit for each argument, from the lowest on, whose
                       * integers are told from each other as floats are. */
    DLPackExchangeAPI *exchange;
} Arguments;

/* A number of Python in a call. As bytes: zeros of either sign differ, and NaN is equal to itself. */
typedef struct {
    int64_t is_integer;
    union {
        double real;
        int64_t integer;
    } value;
} Number;

/* An array that a call gives: of a storage, or a number in a tensor of the host. */
typedef struct {
    Resident *resident; /* NULL: a number. */
    PyObject *tensor;   /* That has the number. */
    DLDataType dtype;
    char value[16];
} Given;

typedef struct {
    uint64_t *words;
    Py_ssize_t num_words, words_capacity;
    Number *numbers;
    Py_ssize_t num_numbers, numbers_capacity;
    Given *given;
    Py_ssize_t num_given, given_capacity;
    int index;     /* Of the device; -1 where nothing tells. */
    uint64_t call; /* No other has it. */
} Key;

/* A key without contents; NULL with an exception. */
Key *take_key(void);
void put_key_back(Key *key);

/* Read a call: 1 where the key says all of it, 0 where something is not known, or cannot be a
 * shortcut's; -1 with an exception. `keywords` may be NULL. */
int read_call(Key *key, const Arguments *arguments, PyObject *values, PyObject *keywords);

/* Add a tensor to what a call gives, whether it was given before or not: 1; 0 where it is neither a
 * whole storage nor a number; -1 with an exception. `tensor` describes it. */
int add_whole(Key *key, const Arguments *arguments, PyObject *value, DLTensor *tensor);

/* Add numbers behind what a call gives: `numbers(those of the call)` gives a list of 0-d tensors of the
 * host, or None. 1; 0 where it gives something else; -1 with an exception. */
int add_numbers(Key *key, const Arguments *arguments, PyObject *numbers);

/* The numbers of Python of a call, as a new tuple. */
PyObject *numbers_of(const Key *key);

uint64_t hash_of(const Key *key);

#endif
