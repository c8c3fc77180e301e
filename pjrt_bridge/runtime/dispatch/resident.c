/* See resident.h. */

#include "resident.h"

#include "output.h"

#include <stdlib.h>
#include <structmember.h>

PyTypeObject *resident_type;

/* -- addresses ------------------------------------------------------------------------------- */

/* A storage has at most 2^38 bytes. The first addresses are above those of any process (x86-64 and
 * ARM use 47 or 48 bits), and the last are positive as signed numbers. */
enum { SLOT_BITS = 38, FIRST_SLOT = 1 << 11, LAST_SLOT = (1 << 25) - 1 };

static Resident **slots; /* From FIRST_SLOT on. */
static size_t num_slots, slots_capacity;

/* Slots that are free again, in the order in which they became so: an address that something still
 * knows, though the storage is gone, is not given to another storage soon. */
static uint32_t *freed;
static size_t freed_first, num_freed, freed_capacity;

enum { REST = 4096 };

static bool
grow_slots(void)
{
    size_t capacity = slots_capacity ? 2 * slots_capacity : 4096;
    Resident **more = realloc(slots, capacity * sizeof *more);
    if (!more)
        return false;
    slots = more;
    /* As many as there are slots, so that freeing one needs no memory. */
    uint32_t *ring = malloc(capacity * sizeof *ring);
    if (!ring)
        return false;
    for (size_t i = 0; i < num_freed; i++)
        ring[i] = freed[(freed_first + i) % freed_capacity];
    free(freed);
    freed = ring;
    freed_first = 0;
    freed_capacity = slots_capacity = capacity;
    return true;
}

/* Give a Resident a slot. -1 with an exception. */
static int
take_slot(Resident *self)
{
    size_t at;
    if (num_freed > REST || num_slots > LAST_SLOT - FIRST_SLOT) {
        if (!num_freed) {
            PyErr_SetString(PyExc_MemoryError, "too many tensors on the device");
            return -1;
        }
        at = freed[freed_first];
        freed_first = (freed_first + 1) % freed_capacity;
        num_freed--;
    } else {
        if (num_slots == slots_capacity && !grow_slots()) {
            PyErr_NoMemory();
            return -1;
        }
        at = num_slots++;
    }
    slots[at] = self;
    self->slot = at + FIRST_SLOT;
    return 0;
}

static void
free_slot(Resident *self)
{
    size_t at = self->slot - FIRST_SLOT;
    slots[at] = NULL;
    freed[(freed_first + num_freed++) % freed_capacity] = (uint32_t)at;
    self->slot = 0;
}

Resident *
resident_at(const void *address, int64_t *offset)
{
    uint64_t number = (uint64_t)(uintptr_t)address, slot = number >> SLOT_BITS;
    if (slot < FIRST_SLOT || slot - FIRST_SLOT >= num_slots)
        return NULL;
    *offset = (int64_t)(number & (((uint64_t)1 << SLOT_BITS) - 1));
    return slots[slot - FIRST_SLOT];
}

PyObject *
module_find(PyObject *Py_UNUSED(module), PyObject *address)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int64_t offset;
    Resident *found = resident_at((void *)(uintptr_t)number, &offset);
    /* Slices of a storage begin further on. */
    return Py_NewRef(found && !offset ? (PyObject *)found : Py_None);
}

/* -- tensors --------------------------------------------------------------------------------- */

/* Called by the framework, on any thread, with or without the GIL, also while an exception is set. */
static void
delete_managed(DLManagedTensorVersioned *managed)
{
    Resident *self = managed->manager_ctx;
    if (atomic_load(&process.plugins_are_gone) || !Py_IsInitialized())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_DECREF((PyObject *)self);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
}

static bool
is_too_large(DLDataType dtype, int rank, const int64_t *shape, const int64_t *strides)
{
    double last = 1;
    for (int dim = 0; dim < rank; dim++) {
        if (!shape[dim])
            return false;
        last += ((double)shape[dim] - 1) * (double)strides[dim];
    }
    return last * ((dtype.bits + 7) / 8) > (double)((uint64_t)1 << SLOT_BITS);
}

PyObject *
resident_tensor(Resident *self, DLPackExchangeAPI *exchange, DLDataType dtype, int rank,
                int64_t *shape, int64_t *strides)
{
    if (self->slot) {
        PyErr_SetString(PyExc_RuntimeError, "these elements are in a storage already");
        return NULL;
    }
    if (is_too_large(dtype, rank, shape, strides)) {
        PyErr_SetString(PyExc_MemoryError, "a storage on the device has at most 256 GiB");
        return NULL;
    }
    if (take_slot(self))
        return NULL;
    self->managed = (DLManagedTensorVersioned){
        .version = {1, 1},
        .manager_ctx = Py_NewRef((PyObject *)self),
        .deleter = delete_managed,
        .tensor = {
            .data = (void *)(uintptr_t)((uint64_t)self->slot << SLOT_BITS),
            .device = {DL_EXTENSION, self->index},
            .ndim = rank,
            .dtype = dtype,
            .shape = shape,
            .strides = strides,
        },
    };
    void *made = NULL;
    /* Whether a failure takes `managed` is not said, so the Resident stays. */
    if (exchange->object_from_managed(&self->managed, &made))
        return NULL;
    return made;
}

/* `tensor(exchange, numbers)`: see `resident_tensor`. */
static PyObject *
resident_make(Resident *self, PyObject *const *args, Py_ssize_t num_args)
{
    char *bytes;
    Py_ssize_t size;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "expected the exchange API and numbers");
        return NULL;
    }
    DLPackExchangeAPI *exchange = PyCapsule_GetPointer(args[0], "dlpack_exchange_api");
    if (!exchange || PyBytes_AsStringAndSize(args[1], &bytes, &size))
        return NULL;
    /* The code and the bits of the element type, then as many sizes as strides. */
    int64_t *numbers = (int64_t *)(void *)bytes;
    Py_ssize_t count = size / (Py_ssize_t)sizeof *numbers;
    if (count < 2 || count % 2) {
        PyErr_SetString(PyExc_ValueError, "expected an element type, sizes and strides");
        return NULL;
    }
    DLDataType dtype = {(uint8_t)numbers[0], (uint8_t)numbers[1], 1};
    int rank = (int)(count / 2 - 1);
    return resident_tensor(self, exchange, dtype, rank, numbers + 2, numbers + 2 + rank);
}

PyObject *
module_tensor_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *contents_type, *type, *shape, *dtype, *elements, *made_of[2];
    int index;
    if (!PyArg_ParseTuple(args, "O!(OOO)iOOO", &PyType_Type, &contents_type, &type, &shape, &dtype,
                          &index, &elements, &made_of[0], &made_of[1]))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)contents_type, resident_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a subclass of Resident");
        return NULL;
    }
    Resident *self = (Resident *)PyType_GenericAlloc((PyTypeObject *)contents_type, 0);
    if (!self)
        return NULL;
    self->index = index;
    resident_replace(self, elements, type, shape, dtype);
    PyObject *tensor = resident_make(self, made_of, 2);
    Py_DECREF((PyObject *)self);
    return tensor;
}

/* -- elements -------------------------------------------------------------------------------- */

/* Of a Buffer of Python. */
static void *
ask_buffer(PyObject *elements, PyObject **keeper)
{
    static PyObject *name;
    if (!name && !(name = PyUnicode_InternFromString("handle")))
        return NULL;
    PyObject *handle = PyObject_GetAttr(elements, name);
    void *buffer = handle ? leased_buffer(handle, keeper) : NULL;
    PyErr_Clear();
    Py_XDECREF(handle);
    return buffer;
}

void *
resident_buffer(Resident *self, PyObject **keeper)
{
    if (self->elements == Py_None) {
        /* Whoever reads what was not written reads zeros. */
        PyObject *made = PyObject_GetAttrString((PyObject *)self, "elements");
        if (!made)
            PyErr_Clear();
        Py_XDECREF(made);
    }
    PyObject *elements = self->elements;
    if (!elements || elements == Py_None)
        return NULL;
    if (Py_TYPE(elements) != output_type)
        return ask_buffer(elements, keeper);
    *keeper = Py_NewRef(elements);
    return ((Output *)elements)->buffer;
}

/* Whether the result that a Buffer of Python is over, if any, has no other user. */
static bool
has_result_alone(PyObject *buffer)
{
    PyObject *handle = PyObject_GetAttrString(buffer, "handle");
    PyObject *output = handle ? PyObject_GetAttrString(handle, "output") : NULL;
    bool alone = handle && (!output || Py_TYPE(output) != output_type || Py_REFCNT(output) == 2);
    PyErr_Clear();
    Py_XDECREF(output);
    Py_XDECREF(handle);
    return alone;
}

bool
has_elements_alone(Resident *self, PyObject *keeper)
{
    PyObject *elements = self->elements;
    if (keeper == elements)
        return Py_REFCNT(elements) == 2;
    return Py_REFCNT(elements) == 1 && has_result_alone(elements);
}

static void
put_object(PyObject **place, PyObject *value)
{
    PyObject *before = *place;
    *place = Py_NewRef(value);
    Py_XDECREF(before);
}

void
resident_replace(Resident *self, PyObject *output, PyObject *type, PyObject *shape, PyObject *dtype)
{
    put_object(&self->type, type);
    put_object(&self->shape, shape);
    put_object(&self->dtype, dtype);
    put_object(&self->elements, output);
}

/* -- the object ------------------------------------------------------------------------------ */

static void
resident_dealloc(Resident *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->slot)
        free_slot(self);
    Py_CLEAR(self->elements);
    Py_CLEAR(self->type);
    Py_CLEAR(self->shape);
    Py_CLEAR(self->dtype);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef METHODS[] = {
    METHOD("tensor", resident_make, METH_FASTCALL,
           "tensor(exchange, numbers) -> the tensor over these elements, once."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef MEMBERS[] = {
    {"held", T_OBJECT, offsetof(Resident, elements), 0,
     "A Buffer, an Output, what gives one later, or None."},
    {"type", T_OBJECT_EX, offsetof(Resident, type), 0, "Shape and element type of the array."},
    {"shape", T_OBJECT_EX, offsetof(Resident, shape), 0, "Elements in each dimension."},
    {"dtype", T_OBJECT_EX, offsetof(Resident, dtype), 0, "The framework's element type."},
    {"index", T_INT, offsetof(Resident, index), 0, "Of the device."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_dealloc, resident_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_members, MEMBERS},
    {Py_tp_doc, "What the storage of a tensor on a device holds."},
    {0, NULL},
};

PyType_Spec resident_spec = {
    "pjrt_bridge.runtime.dispatch._dispatch.Resident", sizeof(Resident), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, SLOTS,
};
