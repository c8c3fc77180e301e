/* See key.h.
 *
 * A key is a list of words. Each value begins with its kind, and says how long it is, so that two
 * calls with the same words are the same but for their numbers and for what the arrays hold.
 */

#include "key.h"

#include <stdlib.h>
#include <string.h>

enum Kind {
    END = 1, NONE, BOOLEAN, INTEGER, FLOAT, ANY_INTEGER, TEXT, LIST, SINGLETON, DEVICE, NAME, ARRAY,
    NUMBER
};

static Key *spare;
static uint64_t num_calls;

Key *
take_key(void)
{
    Key *key = spare;
    spare = NULL;
    if (!key && !(key = calloc(1, sizeof *key))) {
        PyErr_NoMemory();
        return NULL;
    }
    key->num_words = key->num_numbers = key->num_given = 0;
    key->index = -1;
    key->call = ++num_calls;
    return key;
}

void
put_key_back(Key *key)
{
    while (key->num_given > 0) {
        const Given *given = &key->given[--key->num_given];
        Py_XDECREF((PyObject *)given->resident);
        Py_XDECREF(given->tensor);
    }
    if (!spare) {
        spare = key;
        return;
    }
    free(key->words);
    free(key->numbers);
    free(key->given);
    free(key);
}

/* Room for one more item; false without memory. */
static bool
reserve(void **items, Py_ssize_t *capacity, Py_ssize_t count, size_t size)
{
    if (count < *capacity)
        return true;
    Py_ssize_t wanted = *capacity ? 2 * *capacity : 64;
    void *more = realloc(*items, (size_t)wanted * size);
    if (!more) {
        PyErr_NoMemory();
        return false;
    }
    *items = more;
    *capacity = wanted;
    return true;
}

static bool
add_word(Key *key, uint64_t word)
{
    void *words = key->words;
    if (!reserve(&words, &key->words_capacity, key->num_words, sizeof *key->words))
        return false;
    key->words = words;
    key->words[key->num_words++] = word;
    return true;
}

static bool
add_words(Key *key, enum Kind kind, uint64_t word)
{
    return add_word(key, kind) && add_word(key, word);
}

static Given *
add_given(Key *key)
{
    void *given = key->given;
    if (!reserve(&given, &key->given_capacity, key->num_given, sizeof *key->given))
        return NULL;
    key->given = given;
    return &key->given[key->num_given++];
}

static int
add_text(Key *key, enum Kind kind, PyObject *text)
{
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (!bytes) {
        PyErr_Clear();
        return 0;
    }
    if (!add_words(key, kind, (uint64_t)size))
        return -1;
    for (Py_ssize_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, (size_t)(size - at < 8 ? size - at : 8));
        if (!add_word(key, word))
            return -1;
    }
    return 1;
}

static int
add_number(Key *key, Number number)
{
    void *numbers = key->numbers;
    if (!reserve(&numbers, &key->numbers_capacity, key->num_numbers, sizeof *key->numbers))
        return -1;
    key->numbers = numbers;
    key->numbers[key->num_numbers++] = number;
    return add_word(key, number.is_integer ? ANY_INTEGER : FLOAT) ? 1 : -1;
}

static int
add_float(Key *key, PyObject *value)
{
    return add_number(key, (Number){0, {.real = PyFloat_AsDouble(value)}});
}

/* One that is part of the key, or `any`. */
static int
add_integer(Key *key, PyObject *value, bool any)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow)
        return 0;
    if (any)
        return add_number(key, (Number){1, {.integer = number}});
    return add_words(key, INTEGER, (uint64_t)number) ? 1 : -1;
}

/* Whether a call may be on a device, beside what it was on. */
static bool
is_on(Key *key, int index)
{
    if (key->index < 0)
        key->index = index;
    return key->index == index;
}

static int
add_device(Key *key, const Arguments *arguments, PyObject *device)
{
    PyObject *type = PyObject_GetAttrString(device, "type");
    PyObject *index = type ? PyObject_GetAttrString(device, "index") : NULL;
    int found = -1;
    if (index && PyUnicode_Compare(type, arguments->device))
        found = 0;
    else if (index) {
        long number = index == Py_None ? 0 : PyLong_AsLong(index);
        if (!PyErr_Occurred())
            found = !is_on(key, (int)number) ? 0 : add_words(key, DEVICE, (uint64_t)number) ? 1 : -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(index);
    return found;
}

/* A number in a tensor of the host. */
static int
add_host_number(Key *key, PyObject *value, const DLTensor *tensor)
{
    size_t size = (size_t)tensor->dtype.bits / 8;
    if (tensor->ndim || tensor->device.device_type != DL_CPU || tensor->dtype.bits % 8 ||
        size > sizeof ((Given *)0)->value || !tensor->data)
        return 0;
    Given *given = add_given(key);
    if (!given)
        return -1;
    given->resident = NULL;
    given->tensor = Py_NewRef(value);
    given->dtype = tensor->dtype;
    memcpy(given->value, (const char *)tensor->data + tensor->byte_offset, size);
    return add_words(key, NUMBER, (uint64_t)tensor->dtype.code << 8 | tensor->dtype.bits) ? 1 : -1;
}

static int
add_tensor(Key *key, const Arguments *arguments, PyObject *value)
{
    DLTensor tensor;
    if (arguments->exchange->tensor_from_object(value, &tensor)) {
        PyErr_Clear();
        return 0;
    }
    if (tensor.device.device_type != DL_EXTENSION)
        return add_host_number(key, value, &tensor);
    int64_t offset = 0;
    Resident *resident = resident_at((const char *)tensor.data + tensor.byte_offset, &offset);
    if (!resident || !tensor.strides || !is_on(key, tensor.device.device_id))
        return 0;
    if (resident->call != key->call) {
        Given *given = add_given(key);
        if (!given)
            return -1;
        given->resident = (Resident *)Py_NewRef((PyObject *)resident);
        given->tensor = NULL;
        resident->call = key->call;
        resident->place = key->num_given - 1;
    }
    uint64_t dtype = (uint64_t)tensor.dtype.code << 8 | tensor.dtype.bits;
    if (!add_words(key, ARRAY, (uint64_t)resident->place) ||
        !add_word(key, (uint64_t)(uintptr_t)resident->type) ||
        !add_word(key, dtype << 32 | (uint64_t)tensor.ndim) || !add_word(key, (uint64_t)offset))
        return -1;
    for (int32_t dim = 0; dim < tensor.ndim; dim++)
        if (!add_word(key, (uint64_t)tensor.shape[dim]) ||
            !add_word(key, (uint64_t)tensor.strides[dim]))
            return -1;
    return 1;
}

int
add_whole(Key *key, const Arguments *arguments, PyObject *value, DLTensor *tensor)
{
    if (!PyObject_TypeCheck(value, arguments->tensor_type))
        return 0;
    if (arguments->exchange->tensor_from_object(value, tensor)) {
        PyErr_Clear();
        return 0;
    }
    if (tensor->device.device_type != DL_EXTENSION)
        return add_host_number(key, value, tensor);
    int64_t offset = 0;
    Resident *resident = resident_at((const char *)tensor->data + tensor->byte_offset, &offset);
    if (!resident || offset || !tensor->strides || !is_on(key, tensor->device.device_id))
        return 0;
    Given *given = add_given(key);
    if (!given)
        return -1;
    given->resident = (Resident *)Py_NewRef((PyObject *)resident);
    given->tensor = NULL;
    return 1;
}

PyObject *
numbers_of(const Key *key)
{
    PyObject *found = PyTuple_New(key->num_numbers);
    for (Py_ssize_t i = 0; found && i < key->num_numbers; i++) {
        Number number = key->numbers[i];
        PyObject *item = number.is_integer ? PyLong_FromLongLong(number.value.integer)
                                           : PyFloat_FromDouble(number.value.real);
        if (!item || PyTuple_SetItem(found, i, item))
            Py_CLEAR(found);
    }
    return found;
}

int
add_numbers(Key *key, const Arguments *arguments, PyObject *numbers)
{
    PyObject *given = numbers_of(key);
    PyObject *made = given ? PyObject_CallFunctionObjArgs(numbers, given, NULL) : NULL;
    int found = !made ? -1 : PyList_Check(made);
    for (Py_ssize_t i = 0; found > 0 && i < PyList_Size(made); i++) {
        DLTensor tensor;
        PyObject *value = PyList_GetItem(made, i);
        if (arguments->exchange->tensor_from_object(value, &tensor))
            found = -1;
        else
            found = add_host_number(key, value, &tensor);
    }
    Py_XDECREF(made);
    Py_XDECREF(given);
    return found;
}

static int
is_singleton(const Arguments *arguments, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(arguments->singletons); i++)
        if ((PyObject *)type == PyTuple_GetItem(arguments->singletons, i))
            return 1;
    return 0;
}

static int add_value(Key *key, const Arguments *arguments, PyObject *value);

static int
add_list(Key *key, const Arguments *arguments, PyObject *list, Py_ssize_t count,
         PyObject *(*get)(PyObject *, Py_ssize_t))
{
    int found = add_words(key, LIST, (uint64_t)count) ? 1 : -1;
    for (Py_ssize_t i = 0; found > 0 && i < count; i++)
        found = add_value(key, arguments, get(list, i));
    return found;
}

static int
add_value(Key *key, const Arguments *arguments, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (value == Py_None)
        return add_word(key, NONE) ? 1 : -1;
    if (type == arguments->tensor_type || PyType_IsSubtype(type, arguments->tensor_type))
        return add_tensor(key, arguments, value);
    if (type == &PyFloat_Type)
        return add_float(key, value);
    if (type == &PyBool_Type)
        return add_words(key, BOOLEAN, value == Py_True) ? 1 : -1;
    if (type == &PyLong_Type)
        return add_integer(key, value, false);
    if (type == &PyList_Type)
        return add_list(key, arguments, value, PyList_Size(value), PyList_GetItem);
    if (type == &PyTuple_Type)
        return add_list(key, arguments, value, PyTuple_Size(value), PyTuple_GetItem);
    if (type == &PyUnicode_Type)
        return add_text(key, TEXT, value);
    if (type == arguments->device_type)
        return add_device(key, arguments, value);
    if (is_singleton(arguments, type))
        return add_words(key, SINGLETON, (uint64_t)(uintptr_t)value) ? 1 : -1;
    return 0;
}

static int
add_default_dtype(Key *key, const Arguments *arguments)
{
    PyObject *dtype = PyObject_CallNoArgs(arguments->default_dtype);
    if (!dtype)
        return -1;
    /* Its address is compared; it stays alive without this reference. */
    Py_DECREF(dtype);
    return add_words(key, SINGLETON, (uint64_t)(uintptr_t)dtype) ? 1 : -1;
}

static int
find_places(const Arguments *arguments, PyObject *op, uint64_t *places)
{
    PyObject *bits = PyDict_GetItemWithError(arguments->places, op);
    *places = bits ? PyLong_AsUnsignedLongLong(bits) : 0;
    return PyErr_Occurred() ? -1 : 1;
}

int
read_call(Key *key, const Arguments *arguments, PyObject *values, PyObject *keywords)
{
    Py_ssize_t count = PyTuple_Size(values);
    if (count < 1)
        return 0;
    /* The operator is one object for good, too: the table keeps it. */
    PyObject *op = PyTuple_GetItem(values, 0);
    uint64_t places;
    int found = find_places(arguments, op, &places);
    if (found > 0)
        found = add_words(key, SINGLETON, (uint64_t)(uintptr_t)op) ? 1 : -1;
    if (found > 0)
        found = add_default_dtype(key, arguments);
    for (Py_ssize_t i = 1; found > 0 && i < count; i++, places >>= 1) {
        PyObject *value = PyTuple_GetItem(values, i);
        found = places & 1 && Py_TYPE(value) == &PyLong_Type ? add_integer(key, value, true)
                                                             : add_value(key, arguments, value);
    }
    if (keywords) {
        PyObject *name, *value;
        Py_ssize_t at = 0;
        while (found > 0 && PyDict_Next(keywords, &at, &name, &value)) {
            found = add_text(key, NAME, name);
            if (found > 0)
                found = add_value(key, arguments, value);
        }
    }
    /* A program runs, and results are, on one device. */
    if (found > 0 && !add_words(key, END, (uint64_t)(int64_t)key->index))
        found = -1;
    return found;
}

uint64_t
hash_of(const Key *key)
{
    uint64_t hash = 14695981039346656037u;
    for (Py_ssize_t i = 0; i < key->num_words; i++) {
        hash = (hash ^ key->words[i]) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return hash;
}
