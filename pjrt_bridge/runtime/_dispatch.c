/* The hot path of a launch: tensors in, execute, await, tensors out.

   A Plan belongs to one executable. `launch` makes buffers over the memory of tensors, which it
   reads through the DLPack exchange API of their framework, or as the DLPack capsules that the
   framework makes, and executes; `finish` waits. `call` does both, and makes the tensors. A Run owns
   what the plugin made for it, an Output one result; both go back to the plugin when they end, and
   what the plugin has not done with then waits, as a Launch without results, in the queue of
   `pjrt_bridge.runtime.ownership.pending`, as everything else does.

   An Entrance is what a framework calls where one program is all: a plan's `call` as long as nobody
   looks and nothing is left to do, and Python functions that know what to do otherwise.

   `guard` is for tables whose functions are Python's: it sets a pending exception aside for the
   length of a call.

   Rules. Nothing here raises while the GIL is released. Every call into the plugin that can take
   time is made with the GIL released, and is counted in `inside`, so that the interpreter does not
   exit under it. The plugin calls nothing here. The structs are those of `pjrt_bridge.abi`; a test
   compares them. */

#include "_resizing.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Raised with every change of what Python passes or expects. */
#define REVISION 8

/* -- the PJRT C API ---------------------------------------------------------------------------- */

#define FIELDS_Error_Destroy(X) X(void *, error)
#define FIELDS_Client_BufferFromHostBuffer(X)                                                     \
    X(void *, client) X(const void *, data) X(int, type) X(const int64_t *, dims)                 \
    X(size_t, num_dims) X(const int64_t *, byte_strides) X(size_t, num_byte_strides)              \
    X(int, host_buffer_semantics) X(void *, device) X(void *, memory) X(void *, device_layout)    \
    X(void *, done_with_host_buffer) X(void *, buffer)
#define FIELDS_LoadedExecutable_Execute(X)                                                        \
    X(void *, executable) X(void *, options) X(void *const *const *, argument_lists)              \
    X(size_t, num_devices) X(size_t, num_args) X(void **const *, output_lists)                    \
    X(void **, device_complete_events) X(void *, execute_device)
#define FIELDS_Event_Await(X) X(void *, event)
#define FIELDS_Event_Destroy(X) X(void *, event)
#define FIELDS_Event_IsReady(X) X(void *, event) X(bool, is_ready)
#define FIELDS_Buffer_Destroy(X) X(void *, buffer)
#define FIELDS_Buffer_OpaqueDeviceMemoryDataPointer(X) X(void *, buffer) X(void *, device_memory_ptr)

#define FUNCTIONS(X)                                                                              \
    X(Error_Destroy)                                                                              \
    X(Client_BufferFromHostBuffer)                                                                \
    X(LoadedExecutable_Execute)                                                                   \
    X(Event_Await)                                                                                \
    X(Event_Destroy)                                                                              \
    X(Event_IsReady)                                                                              \
    X(Buffer_Destroy)                                                                             \
    X(Buffer_OpaqueDeviceMemoryDataPointer)

#define DECLARE_FIELD(type, name) type name;
#define DECLARE_ARGS(function)                                                                    \
    typedef struct {                                                                              \
        size_t struct_size;                                                                       \
        void *extension_start;                                                                    \
        FIELDS_##function(DECLARE_FIELD)                                                          \
    } function##_Args;
#define DECLARE_INDEX(function) AT_##function,
FUNCTIONS(DECLARE_ARGS)
enum { FUNCTIONS(DECLARE_INDEX) NUM_FUNCTIONS };

/* PJRT_HostBufferSemantics: kImmutableOnlyDuringCall, kImmutableZeroCopy and kMutableZeroCopy. */
enum { COPY_DURING_CALL = 0, SHARE = 2, GIVE = 3 };

typedef struct {
    void *(*call)(void *args); /* Gives a PJRT_Error, or NULL. */
    size_t size;               /* Of its args struct. */
} Entry;

/* Calls `function` of a plan's table; the args struct stays in scope as `args`. */
#define ARGS(plan, function, ...)                                                                 \
    function##_Args args = {.struct_size = (plan)->table[AT_##function].size, __VA_ARGS__}
#define CALL(plan, function) (plan)->table[AT_##function].call(&args)

/* -- DLPack (dlpack.h 1.3) --------------------------------------------------------------------- */

enum { DL_CPU = 1 };

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    struct {
        int32_t device_type, device_id;
    } device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

/* What a capsule of this name holds; once the tensor was taken over its name is another. */
#define CAPSULE_NAME "dltensor"

typedef struct DLManagedTensor {
    DLTensor tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    DLTensor tensor;
} DLManagedTensorVersioned;

typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *previous;
    void *allocate;
    void *managed_from_object;
    int (*object_from_managed)(DLManagedTensorVersioned *, void **object);
    int (*tensor_from_object)(void *object, DLTensor *out); /* NULL where it is not offered. */
    void *work_stream;
} DLPackExchangeAPI;

/* -- state of the process, under the GIL ------------------------------------------------------- */

typedef struct Launch Launch;
typedef struct Room Room;

static PyTypeObject *plan_type, *launch_type, *output_type;
static PyObject *name_lease;
/* Calls into plugins that are under way. */
static long inside;
/* Plugin objects that belong to launches and outputs. */
static long num_buffers, num_events;
/* The launches that were not waited for. */
static Launch *unfinished;
/* Moved by a fork: what was made before belongs to the parent. */
static int generation;
/* The thread that runs the exit handlers; operations of others end with their thread. */
static unsigned long closer;
/* Plugins may be gone: nothing is given back any more. Read without the GIL, too. */
static volatile bool ended;
/* Address of an array without elements: plugins and consumers of DLPack take NULL for an error. */
static char nowhere[64] __attribute__((aligned(64)));

/* As XLA demands of memory that it uses in place, and TensorFlow of all memory: plugins copy in
   silence what is aligned to less, TensorFlow takes it and aborts later. */
static bool is_aligned(const void *data) {
    return (uintptr_t)data % 64 == 0;
}

static PyThreadState *enter(void) {
    inside++;
    return PyEval_SaveThread();
}

static void leave(PyThreadState *state) {
    PyEval_RestoreThread(state);
    inside--;
}

/* -- Plan -------------------------------------------------------------------------------------- */

/* How the elements of an argument or a result lie in memory. */
typedef struct {
    int type; /* PJRT_Buffer_Type */
    DLDataType dtype;
    int32_t rank;
    int64_t nbytes;
    Py_ssize_t position;              /* Of an argument among the values; -1: always kept. */
    bool written;                     /* The program writes its new value where it lies. */
    const int64_t *shape, *strides;   /* In elements, as the framework's graph sees it. */
    const int64_t *dims;              /* Shape of the row-major array in memory. */
    int64_t *tensor_shape, *tensor_strides; /* Of the tensor over a result. */
} Form;

typedef struct {
    PyObject_HEAD
    Entry table[NUM_FUNCTIONS];
    void *client, *executable, *device, *options;
    PyObject *client_handle, *executable_handle;
    PyObject *keep;   /* Owns the options. */
    PyObject *fail;   /* (PJRT_Error or 0, function, what it made) -> exception */
    PyObject *refuse; /* () -> the exception that says why nothing can be launched any more */
    PyObject *queue;  /* (Launch) -> it is settled later */
    PyTypeObject *tensor_type;
    DLPackExchangeAPI *exchange; /* NULL: the framework has capsules. */
    PyObject *is_lazy; /* (tensor) -> its memory does not hold its values as they are */
    PyObject *owner;   /* (tensor) -> what keeps its memory */
    PyObject *export;  /* (tensor) -> a capsule, which keeps its memory; None: it cannot be read */
    PyObject *adopt;   /* (capsule) -> a tensor over what it holds, which it takes */
    Resizing resizing; /* Of tensors that the exchange makes. */
    PyObject *numbers; /* Bytes that the forms point into. */
    Py_ssize_t num_parameters, num_results;
    Form *parameters, *results;
    Room *room;              /* For the next run; NULL while one has it. */
    int64_t shared, copied; /* In the last `call`. */
    int generation;
} Plan;

/* Read `count` forms at `*numbers`, and move it behind them. Of each there are type, code and bits
   of its DLPack type, nbytes, position, written and rank, then five lists as long as the rank. */
static Form *read_forms(const int64_t **numbers, Py_ssize_t count) {
    Form *forms = calloc((size_t)count + 1, sizeof(Form));
    for (Py_ssize_t index = 0; forms != NULL && index < count; index++) {
        const int64_t *head = *numbers, rank = head[6], *lists = head + 7;
        forms[index] = (Form){
            .type = (int)head[0],
            .dtype = {(uint8_t)head[1], (uint8_t)head[2], 1},
            .nbytes = head[3],
            .position = (Py_ssize_t)head[4],
            .written = head[5] != 0,
            .rank = (int32_t)rank,
            .shape = lists,
            .strides = lists + rank,
            .dims = lists + 2 * rank,
            /* DLPack's pointers are not const, but nobody writes to what they lead to. */
            .tensor_shape = (int64_t *)(uintptr_t)(lists + 3 * rank),
            .tensor_strides = (int64_t *)(uintptr_t)(lists + 4 * rank),
        };
        *numbers = lists + 5 * rank;
    }
    return forms;
}

static int parse_table(PyObject *tuple, Entry *table) {
    if (PyTuple_Size(tuple) != NUM_FUNCTIONS) {
        PyErr_SetString(PyExc_TypeError, "expected an entry for each of FUNCTIONS");
        return -1;
    }
    for (Py_ssize_t index = 0; index < NUM_FUNCTIONS; index++) {
        unsigned long long address;
        Py_ssize_t size;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, index), "Kn", &address, &size)) {
            return -1;
        }
        /* A pointer to a function cannot be made of a number otherwise without a warning. */
        uintptr_t pointer = (uintptr_t)address;
        memcpy(&table[index].call, &pointer, sizeof(pointer));
        table[index].size = (size_t)size;
    }
    return 0;
}

static void plan_dealloc(Plan *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->parameters);
    free(self->results);
    free(self->room);
    Py_XDECREF(self->client_handle);
    Py_XDECREF(self->executable_handle);
    Py_XDECREF(self->keep);
    Py_XDECREF(self->fail);
    Py_XDECREF(self->refuse);
    Py_XDECREF(self->queue);
    Py_XDECREF((PyObject *)self->tensor_type);
    Py_XDECREF(self->is_lazy);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->export);
    Py_XDECREF(self->adopt);
    Py_XDECREF(self->numbers);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *table, *client_handle, *executable_handle, *keep, *fail, *refuse, *queue, *exchange;
    PyObject *tensor_type, *is_lazy, *owner, *export, *adopt, *resizing, *numbers;
    unsigned long long client, executable, device, options;
    Py_ssize_t num_parameters, num_results;
    if (!PyArg_ParseTuple(args, "O!OOKKKKOOOO(O!OOOOOO)nnS", &PyTuple_Type, &table, &client_handle,
                          &executable_handle, &client, &executable, &device, &options, &keep, &fail,
                          &refuse, &queue, &PyType_Type, &tensor_type, &exchange, &is_lazy, &owner,
                          &export, &adopt, &resizing, &num_parameters, &num_results, &numbers)) {
        return NULL;
    }
    DLPackExchangeAPI *api = NULL;
    if (exchange != Py_None) {
        api = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
        if (api == NULL) {
            return NULL;
        }
        if (api->version.major != 1 || api->tensor_from_object == NULL) {
            PyErr_SetString(PyExc_ValueError, "another version of the DLPack exchange API");
            return NULL;
        }
    }
    Plan *self = (Plan *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->client_handle = Py_NewRef(client_handle);
    self->executable_handle = Py_NewRef(executable_handle);
    self->keep = Py_NewRef(keep);
    self->fail = Py_NewRef(fail);
    self->refuse = Py_NewRef(refuse);
    self->queue = Py_NewRef(queue);
    self->tensor_type = (PyTypeObject *)Py_NewRef(tensor_type);
    self->is_lazy = Py_NewRef(is_lazy);
    self->owner = Py_NewRef(owner);
    self->export = Py_NewRef(export);
    self->adopt = Py_NewRef(adopt);
    self->numbers = Py_NewRef(numbers);
    self->exchange = api;
    self->client = (void *)(uintptr_t)client;
    self->executable = (void *)(uintptr_t)executable;
    self->device = (void *)(uintptr_t)device;
    self->options = (void *)(uintptr_t)options;
    self->generation = generation;
    self->num_parameters = num_parameters;
    self->num_results = num_results;
    /* The bytes of a bytes object are aligned as its header is. */
    const int64_t *cursor = (const int64_t *)(const void *)PyBytes_AsString(numbers);
    if (parse_table(table, self->table) || read_resizing(resizing, &self->resizing)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    self->parameters = read_forms(&cursor, num_parameters);
    self->results = read_forms(&cursor, num_results);
    if (self->parameters == NULL || self->results == NULL) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static const char *const nothing = "a NULL";

/* Set the exception that belongs to a PJRT_Error, which Python destroys; NULL: the plugin `made`
   something else than it has to. */
static void raise_failure(Plan *plan, void *error, const char *function, const char *made) {
    PyObject *exception = PyObject_CallFunction(
        plan->fail, "Kss", (unsigned long long)(uintptr_t)error, function, made);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
}

static void raise_refusal(Plan *plan) {
    PyObject *exception = PyObject_CallNoArgs(plan->refuse);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
}

/* Whether this thread may call the plugin; else an exception is set. */
static bool may_call(Plan *plan) {
    if (closer && closer != PyThread_get_thread_ident()) {
        PyErr_SetNone(PyExc_SystemExit);
        return false;
    }
    if (plan->generation != generation) {
        raise_refusal(plan);
        return false;
    }
    return true;
}

/* A new reference to what keeps a handle's object from being destroyed; NULL with an exception
   where it was closed. */
static PyObject *lease_of(Plan *plan, PyObject *handle) {
    PyObject *lease = PyObject_GetAttr(handle, name_lease);
    if (lease == Py_None) {
        Py_DECREF(lease);
        raise_refusal(plan);
        return NULL;
    }
    return lease;
}

/* -- what is asked and told without the GIL ---------------------------------------------------- */

/* Nobody can be told. */
static void ignore(Plan *plan, void *error) {
    if (error != NULL) {
        ARGS(plan, Error_Destroy, .error = error);
        CALL(plan, Error_Destroy);
    }
}

/* Whether an event was signalled, or the plugin cannot tell. */
static bool is_ready(Plan *plan, void *event) {
    ARGS(plan, Event_IsReady, .event = event);
    void *error = CALL(plan, Event_IsReady);
    ignore(plan, error);
    return error != NULL || args.is_ready;
}

static void destroy_event(Plan *plan, void *event) {
    ARGS(plan, Event_Destroy, .event = event);
    ignore(plan, CALL(plan, Event_Destroy));
}

/* False where the plugin refuses, and keeps it. */
static bool destroy_buffer(Plan *plan, void *buffer) {
    ARGS(plan, Buffer_Destroy, .buffer = buffer);
    void *error = CALL(plan, Buffer_Destroy);
    ignore(plan, error);
    return error == NULL;
}

/* -- Output ------------------------------------------------------------------------------------ */

/* A result: a buffer that goes back to the plugin with this object. */
typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyObject *lease; /* The client's. */
    Form *form;
    void *buffer;
    void *data; /* Known when the values are there. */
    bool lent;  /* A tensor uses `managed`; each further one gets one of its own. */
    union Managed {
        DLManagedTensor plain;
        DLManagedTensorVersioned versioned;
    } managed;
} Output;

static void output_dealloc(Output *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->buffer != NULL) {
        num_buffers--;
        if (!ended && self->plan->generation == generation) {
            PyObject *exception, *value, *traceback;
            /* A plugin that is written in Python would take it for its own. */
            PyErr_Fetch(&exception, &value, &traceback);
            PyThreadState *state = enter();
            destroy_buffer(self->plan, self->buffer);
            leave(state);
            PyErr_Restore(exception, value, traceback);
        }
    }
    Py_XDECREF(self->lease);
    Py_XDECREF((PyObject *)self->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static union Managed *new_managed(Output *self) {
    union Managed *managed = self->lent ? malloc(sizeof(*managed)) : &self->managed;
    if (managed == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    self->lent = true;
    Py_INCREF((PyObject *)self);
    return managed;
}

/* Called on any thread, with or without the GIL, also while an exception is on its way. */
static void drop_managed(Output *output, void *managed) {
    bool lent = managed == &output->managed;
    if (!ended && Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        if (lent) {
            output->lent = false;
        }
        Py_DECREF((PyObject *)output);
        PyGILState_Release(state);
    }
    if (!lent) {
        free(managed);
    }
}

static void delete_plain(DLManagedTensor *managed) {
    drop_managed(managed->manager_ctx, managed);
}

static void delete_versioned(DLManagedTensorVersioned *managed) {
    drop_managed(managed->manager_ctx, managed);
}

/* Of a capsule that nobody has taken over. */
static void delete_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, CAPSULE_NAME)) {
        delete_plain(PyCapsule_GetPointer(capsule, CAPSULE_NAME));
    }
}

static PyObject *adopted(Output *self, DLTensor tensor) {
    union Managed *managed = new_managed(self);
    if (managed == NULL) {
        return NULL;
    }
    managed->plain = (DLManagedTensor){tensor, self, delete_plain};
    PyObject *capsule = PyCapsule_New(managed, CAPSULE_NAME, delete_capsule);
    if (capsule == NULL) {
        drop_managed(self, managed);
        return NULL;
    }
    PyObject *adopted = PyObject_CallFunctionObjArgs(self->plan->adopt, capsule, NULL);
    Py_DECREF(capsule);
    return adopted;
}

static PyObject *exchanged(Output *self, DLTensor tensor) {
    union Managed *managed = new_managed(self);
    if (managed == NULL) {
        return NULL;
    }
    managed->versioned =
        (DLManagedTensorVersioned){{1, 1}, self, delete_versioned, 0, tensor};
    void *exchanged = NULL;
    /* Whether a failure takes `managed` is not said, so it stays. */
    if (self->plan->exchange->object_from_managed(&managed->versioned, &exchanged)) {
        return NULL;
    }
    let_resize(&self->plan->resizing, exchanged);
    return exchanged;
}

static PyObject *output_tensor(Output *self, PyObject *Py_UNUSED(ignored)) {
    if (self->data == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the launch was not finished");
        return NULL;
    }
    DLTensor tensor = {
        .data = self->data,
        .device = {DL_CPU, 0},
        .ndim = self->form->rank,
        .dtype = self->form->dtype,
        .shape = self->form->tensor_shape,
        .strides = self->form->tensor_strides,
    };
    return self->plan->exchange ? exchanged(self, tensor) : adopted(self, tensor);
}

/* -- Run --------------------------------------------------------------------------------------- */

typedef struct {
    void *buffer;
    void *done; /* The plugin is done with the host memory. */
} Input;

/* Host memory that becomes an input. */
typedef struct {
    Py_ssize_t parameter;
    const void *data;
    bool share;
} Given;

/* Lists that are as long as a plan's parameters, or its results. */
struct Room {
    void **column; /* Buffers of the parameters. */
    Given *given;
    Input *inputs;
    PyObject **owners; /* Keep the memory of the inputs; of a `call` the tensors do, as long. */
    void **row;        /* Buffers of the results. */
    Output **outputs;
};

/* An execution, and what is owned for it. All zeros before it is opened. */
typedef struct {
    Plan *plan;
    PyObject *lease; /* The client's. */
    Room *room;
    Py_ssize_t num_inputs, num_owners, num_outputs;
    void *done; /* The end of the execution; NULL once it was waited for. */
    int64_t shared, copied;
} Run;

/* A run that is waited for later. */
struct Launch {
    PyObject_HEAD
    Run run;
    PyObject *outputs; /* A tuple, once somebody asked. */
    bool listed;
    Launch *previous, *next;
};

static void list_launch(Launch *self) {
    self->listed = true;
    self->previous = NULL;
    self->next = unfinished;
    if (unfinished != NULL) {
        unfinished->previous = self;
    }
    unfinished = self;
}

static void unlist_launch(Launch *self) {
    if (!self->listed) {
        return;
    }
    self->listed = false;
    if (self->previous != NULL) {
        self->previous->next = self->next;
    } else {
        unfinished = self->next;
    }
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
}

static Room *new_room(const Plan *plan) {
    size_t parameters = (size_t)plan->num_parameters, results = (size_t)plan->num_results;
    size_t size = sizeof(Given) + sizeof(Input) + sizeof(void *) + sizeof(PyObject *);
    Room *room =
        malloc(sizeof(Room) + parameters * size + results * (sizeof(void *) + sizeof(Output *)));
    if (room != NULL) {
        room->given = (Given *)(room + 1);
        room->inputs = (Input *)(room->given + parameters);
        room->column = (void **)(room->inputs + parameters);
        room->owners = (PyObject **)(room->column + parameters);
        room->row = (void **)(room->owners + parameters);
        room->outputs = (Output **)(room->row + results);
    }
    return room;
}

/* Begin to own: the objects that get the results are there before the plugin is called. */
static bool open_run(Run *self, Plan *plan, PyObject *lease) {
    Room *room = plan->room ? plan->room : new_room(plan);
    if (room == NULL) {
        PyErr_NoMemory();
        return false;
    }
    plan->room = NULL;
    self->plan = (Plan *)Py_NewRef((PyObject *)plan);
    self->lease = Py_NewRef(lease);
    self->room = room;
    while (self->num_outputs < plan->num_results) {
        Output *output = (Output *)PyType_GenericAlloc(output_type, 0);
        if (output == NULL) {
            return false;
        }
        output->plan = (Plan *)Py_NewRef((PyObject *)plan);
        output->lease = Py_NewRef(lease);
        output->form = &plan->results[self->num_outputs];
        room->outputs[self->num_outputs++] = output;
    }
    return true;
}

/* What `drop_inputs` took off the counts. */
typedef struct {
    long buffers, events;
} Dropped;

/* Give the input buffers back, and the events of those whose memory the plugin is done with.
   Without the GIL. */
static Dropped drop_inputs(Run *self) {
    Dropped dropped = {0, 0};
    Py_ssize_t left = 0;
    for (Py_ssize_t index = 0; index < self->num_inputs; index++) {
        Input *input = &self->room->inputs[index];
        bool kept = false;
        if (input->buffer != NULL) {
            kept = !destroy_buffer(self->plan, input->buffer);
            input->buffer = NULL;
            dropped.buffers++;
        }
        /* Of a buffer that the plugin keeps the event would never come. */
        if (input->done != NULL && (kept || is_ready(self->plan, input->done))) {
            destroy_event(self->plan, input->done);
            input->done = NULL;
            dropped.events++;
        }
        if (input->done != NULL) {
            self->room->inputs[left++] = *input;
        }
    }
    self->num_inputs = left;
    return dropped;
}

static void count_dropped(Dropped dropped) {
    num_buffers -= dropped.buffers;
    num_events -= dropped.events;
}

/* Where tensors own memory that the plugin has not done with: what they have it from. */
static void keep_memory(Run *self) {
    Plan *plan = self->plan;
    for (Py_ssize_t index = 0; index < self->num_owners; index++) {
        PyObject *tensor = self->room->owners[index];
        if (plan->exchange && PyObject_TypeCheck(tensor, plan->tensor_type)) {
            PyObject *owner = PyObject_CallFunctionObjArgs(plan->owner, tensor, NULL);
            if (owner == NULL) {
                PyErr_Clear();
                continue;
            }
            self->room->owners[index] = owner;
            Py_DECREF(tensor);
        }
    }
}

/* Leave to the queue what the plugin has not done with. */
static void hand_over(Run *self) {
    if (self->done == NULL && self->num_inputs == 0) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Launch *heir = (Launch *)PyType_GenericAlloc(launch_type, 0);
    Room *room = heir ? new_room(self->plan) : NULL;
    if (room != NULL) {
        keep_memory(self);
        memcpy(room->inputs, self->room->inputs, (size_t)self->num_inputs * sizeof(Input));
        memcpy(room->owners, self->room->owners, (size_t)self->num_owners * sizeof(PyObject *));
        heir->run = (Run){.plan = (Plan *)Py_NewRef((PyObject *)self->plan),
                          .lease = Py_NewRef(self->lease),
                          .room = room,
                          .num_inputs = self->num_inputs,
                          .num_owners = self->num_owners,
                          .done = self->done};
        self->num_inputs = self->num_owners = 0;
        self->done = NULL;
        Py_XDECREF(PyObject_CallFunctionObjArgs(self->plan->queue, (PyObject *)heir, NULL));
    }
    Py_XDECREF((PyObject *)heir);
    /* Without memory for it the plugin's objects are lost; nobody is there to be told. */
    PyErr_Restore(type, value, traceback);
}

static void drop_owners(Run *self) {
    while (self->num_owners > 0) {
        Py_DECREF(self->room->owners[--self->num_owners]);
    }
}

/* Own nothing any more. Outputs that somebody else has stay, whether they are there or not. */
static void close_run(Run *self) {
    Plan *plan = self->plan;
    if (plan == NULL) {
        return;
    }
    if (!ended && plan->generation == generation) {
        hand_over(self);
    }
    num_events -= self->done != NULL;
    for (Py_ssize_t index = 0; index < self->num_inputs; index++) {
        num_buffers -= self->room->inputs[index].buffer != NULL;
        num_events -= self->room->inputs[index].done != NULL;
    }
    while (self->num_outputs > 0) {
        Py_DECREF((PyObject *)self->room->outputs[--self->num_outputs]);
    }
    drop_owners(self);
    if (plan->room == NULL) {
        plan->room = self->room;
    } else {
        free(self->room);
    }
    Py_DECREF(self->lease);
    Py_DECREF((PyObject *)plan);
}

/* How waiting for an execution ended. */
typedef struct {
    bool complete;
    void *error;
    const char *function; /* That failed. */
    const char *made;     /* What it made, if it gave no error. */
    Dropped dropped;
} Ending;

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Stay awake until an event is signalled, or for so many nanoseconds: to wake a thread takes longer
   than many programs do. Whoever else wants the core gets it. */
#define AWAKE 200000

static void linger(Plan *plan, void *event) {
    int64_t end = nanoseconds() + AWAKE;
    while (!is_ready(plan, event) && nanoseconds() < end) {
        sched_yield();
    }
}

/* Wait for the end, give back what is not needed any more, and look where the results are. Without
   the GIL. */
static Ending await_end(Run *self, void *done) {
    Plan *plan = self->plan;
    Ending ending = {.function = "Event_Await", .made = nothing};
    linger(plan, done);
    {
        ARGS(plan, Event_Await, .event = done);
        ending.error = CALL(plan, Event_Await);
    }
    destroy_event(plan, done);
    ending.dropped = drop_inputs(self);
    ending.dropped.events++;
    ending.complete = ending.error == NULL;
    for (Py_ssize_t index = 0; ending.complete && index < self->num_outputs; index++) {
        Output *output = self->room->outputs[index];
        ARGS(plan, Buffer_OpaqueDeviceMemoryDataPointer, .buffer = output->buffer);
        ending.function = "Buffer_OpaqueDeviceMemoryDataPointer";
        ending.error = CALL(plan, Buffer_OpaqueDeviceMemoryDataPointer);
        void *data = output->form->nbytes ? args.device_memory_ptr : nowhere;
        if (data != NULL && plan->exchange == NULL && !is_aligned(data)) {
            ending.made = "memory that is not aligned to 64 bytes";
            data = NULL;
        }
        ending.complete = ending.error == NULL && data != NULL;
        if (ending.complete) {
            output->data = data;
        }
    }
    return ending;
}

/* Count what was given back, and let go of the memory of the inputs once the plugin has. False,
   with an exception, where the execution failed. */
static bool settle(Run *self, Ending ending) {
    count_dropped(ending.dropped);
    hand_over(self);
    if (self->num_inputs == 0) {
        drop_owners(self);
    }
    if (!ending.complete) {
        raise_failure(self->plan, ending.error, ending.function, ending.made);
    }
    return ending.complete;
}

static PyObject *tensors_of(const Run *self) {
    PyObject *tensors = PyList_New(self->num_outputs);
    for (Py_ssize_t index = 0; tensors != NULL && index < self->num_outputs; index++) {
        PyObject *tensor = output_tensor(self->room->outputs[index], NULL);
        if (tensor == NULL) {
            Py_CLEAR(tensors);
        } else {
            PyList_SetItem(tensors, index, tensor);
        }
    }
    return tensors;
}

/* -- Launch ------------------------------------------------------------------------------------ */

static void launch_dealloc(Launch *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    unlist_launch(self);
    close_run(&self->run);
    Py_XDECREF(self->outputs);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *launch_finish(Launch *self, PyObject *Py_UNUSED(ignored)) {
    Run *run = &self->run;
    if (run->done == NULL) {
        Py_RETURN_NONE;
    }
    if (!may_call(run->plan)) {
        return NULL;
    }
    void *done = run->done;
    /* Another thread that asks at the same time finds nothing to do. */
    run->done = NULL;
    unlist_launch(self);
    PyThreadState *state = enter();
    Ending ending = await_end(run, done);
    leave(state);
    if (!settle(run, ending)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *launch_tensors(Launch *self, PyObject *Py_UNUSED(ignored)) {
    return tensors_of(&self->run);
}

/* Whether the plugin has done with everything; for the queue. */
static PyObject *launch_over(Launch *self, PyObject *Py_UNUSED(ignored)) {
    Run *run = &self->run;
    Plan *plan = run->plan;
    if (plan->generation != generation) {
        Py_RETURN_TRUE;
    }
    Dropped dropped = {0, 0};
    void *done = run->done;
    PyThreadState *state = enter();
    bool over = done == NULL || is_ready(plan, done);
    if (over) {
        if (done != NULL) {
            destroy_event(plan, done);
        }
        dropped = drop_inputs(run);
        dropped.events += done != NULL;
    }
    leave(state);
    if (over) {
        run->done = NULL;
        count_dropped(dropped);
    }
    return PyBool_FromLong(over && run->num_inputs == 0);
}

static PyObject *launch_end(Launch *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    Py_RETURN_NONE;
}

static PyObject *launch_get_outputs(Launch *self, void *Py_UNUSED(closure)) {
    if (self->outputs == NULL) {
        Py_ssize_t count = self->run.num_outputs;
        PyObject *outputs = PyTuple_New(count);
        for (Py_ssize_t index = 0; outputs != NULL && index < count; index++) {
            PyTuple_SetItem(outputs, index, Py_NewRef((PyObject *)self->run.room->outputs[index]));
        }
        self->outputs = outputs;
    }
    return Py_XNewRef(self->outputs);
}

static PyObject *launch_get_shared(Launch *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(self->run.shared);
}

static PyObject *launch_get_copied(Launch *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(self->run.copied);
}

/* -- reading what is given --------------------------------------------------------------------- */

/* The arguments of a run. */
typedef struct {
    PyObject *values;                         /* A list or a tuple. */
    PyObject *(*get)(PyObject *, Py_ssize_t); /* A borrowed item of it. */
    PyObject *keeper;                         /* Of the kept buffers; None where there are none. */
    void *const *kept, *const *marks;         /* For each parameter, as in `Kept`. */
    PyObject *copies;                         /* Positions of copied values, or None. */
    bool call; /* No value is lazy, and the values stay until the end. */
} Source;

static const char *address_of(const DLTensor *tensor) {
    return (const char *)tensor->data + tensor->byte_offset;
}

/* Whether a tensor lies in memory as the program takes it. */
static bool fits(const DLTensor *tensor, const Form *form) {
    if (tensor->ndim != form->rank || tensor->dtype.code != form->dtype.code ||
        tensor->dtype.bits != form->dtype.bits || tensor->dtype.lanes != 1) {
        return false;
    }
    for (int32_t dim = 0; dim < form->rank; dim++) {
        if (tensor->shape[dim] != form->shape[dim]) {
            return false;
        }
    }
    if (form->nbytes == 0) {
        return true;
    }
    /* Without strides it is row-major. */
    int64_t row_major = 1;
    for (int32_t dim = form->rank - 1; dim >= 0; dim--) {
        int64_t stride = tensor->strides ? tensor->strides[dim] : row_major;
        if (form->shape[dim] != 1 && stride != form->strides[dim]) {
            return false;
        }
        row_major *= form->shape[dim];
    }
    return true;
}

static bool same_form(const Form *one, const Form *other) {
    return one->type == other->type && one->rank == other->rank &&
           memcmp(one->shape, other->shape, (size_t)one->rank * 3 * sizeof(int64_t)) == 0;
}

enum Found { FOUND, STALE, UNFIT, FAILED };

/* After a call of the framework's: UNFIT, for the caller to understand, unless somebody wants to
   end the program. */
static enum Found refused(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) {
        return FAILED;
    }
    PyErr_Clear();
    return UNFIT;
}

/* Have `tensor` describe a value of the framework's class, as it is at this moment. */
static enum Found describe(Plan *plan, PyObject *value, DLTensor *tensor) {
    if (plan->exchange->tensor_from_object(value, tensor)) {
        return refused();
    }
    return tensor->device.device_type == DL_CPU ? FOUND : UNFIT;
}

static PyObject *owner_of(Plan *plan, PyObject *value) {
    PyObject *lazy = PyObject_CallFunctionObjArgs(plan->is_lazy, value, NULL);
    Py_XDECREF(lazy);
    return lazy == Py_False ? PyObject_CallFunctionObjArgs(plan->owner, value, NULL) : NULL;
}

static PyObject *capsule_of(Plan *plan, PyObject *value) {
    PyObject *capsule = PyObject_CallFunctionObjArgs(plan->export, value, NULL);
    if (capsule != NULL && !PyCapsule_IsValid(capsule, CAPSULE_NAME)) {
        Py_CLEAR(capsule);
    }
    return capsule;
}

/* `describe`, and have the run own what keeps the memory. */
static enum Found borrow(Run *run, PyObject *value, bool call, DLTensor *tensor) {
    Plan *plan = run->plan;
    /* The owner comes first: the tensor may be given other memory at any time. During a call only
       another thread could do so, which is no better while one of PyTorch's operators reads it. */
    PyObject *owner = !plan->exchange ? capsule_of(plan, value)
                      : call          ? Py_NewRef(value)
                                      : owner_of(plan, value);
    if (owner == NULL) {
        return refused();
    }
    run->room->owners[run->num_owners++] = owner;
    if (plan->exchange) {
        return describe(plan, value, tensor);
    }
    *tensor = ((DLManagedTensor *)PyCapsule_GetPointer(owner, CAPSULE_NAME))->tensor;
    return tensor->device.device_type == DL_CPU ? FOUND : UNFIT;
}

/* Find the buffer or the host memory of each parameter.

   The run's column gets the buffers that there are, `given` the memory of the others. STALE: a value
   is in other memory than when it was kept, or lies there otherwise. UNFIT: the value at `*position`
   cannot go in as it is. */
static enum Found gather(Run *run, const Source *source, Py_ssize_t *num_given,
                         Py_ssize_t *position) {
    Plan *plan = run->plan;
    Room *room = run->room;
    void *const *kept = source->kept, *const *marks = source->marks;
    PyObject *copies = source->copies;
    *num_given = 0;
    for (Py_ssize_t index = 0; index < plan->num_parameters; index++) {
        Form *form = &plan->parameters[index];
        DLTensor tensor;
        room->column[index] = kept[index];
        if (form->position < 0) {
            continue;
        }
        *position = form->position;
        PyObject *value = source->get(source->values, form->position);
        if (value == NULL) {
            return FAILED;
        }
        if (kept[index] != NULL) {
            if (!PyObject_TypeCheck(value, plan->tensor_type)) {
                return STALE;
            }
            /* A capsule may be all that keeps what it describes. */
            enum Found found = plan->exchange ? describe(plan, value, &tensor)
                                              : borrow(run, value, true, &tensor);
            if (found == FAILED) {
                return FAILED;
            }
            if (found != FOUND || address_of(&tensor) != marks[index] || !fits(&tensor, form)) {
                return STALE;
            }
            continue;
        }
        if (Py_TYPE(value) == output_type) {
            Output *output = (Output *)value;
            if (output->plan->client != plan->client || !same_form(output->form, form)) {
                return UNFIT;
            }
            room->column[index] = output->buffer;
            room->owners[run->num_owners++] = Py_NewRef(value);
            continue;
        }
        if (!PyObject_TypeCheck(value, plan->tensor_type)) {
            return UNFIT;
        }
        enum Found found = borrow(run, value, source->call, &tensor);
        if (found != FOUND) {
            return found;
        }
        if (!fits(&tensor, form)) {
            return UNFIT;
        }
        int copied = 0;
        if (copies != Py_None) {
            PyObject *number = PyLong_FromSsize_t(form->position);
            copied = number ? PySet_Contains(copies, number) : -1;
            Py_XDECREF(number);
            if (copied < 0) {
                return FAILED;
            }
        }
        const char *data = form->nbytes ? address_of(&tensor) : nowhere;
        bool share = form->nbytes && is_aligned(data);
        *(share && !copied ? &run->shared : &run->copied) += form->nbytes;
        room->given[(*num_given)++] = (Given){index, data, share};
    }
    return FOUND;
}

/* -- starting ---------------------------------------------------------------------------------- */

/* Make buffers of what is given, and execute. Without the GIL. False, with the error and the
   function's name, where the plugin failed. */
static bool execute(Run *run, Py_ssize_t num_given, void **error, const char **function) {
    Plan *plan = run->plan;
    Room *room = run->room;
    *function = "Client_BufferFromHostBuffer";
    for (Py_ssize_t index = 0; index < num_given; index++) {
        const Given *item = &room->given[index];
        const Form *form = &plan->parameters[item->parameter];
        ARGS(plan, Client_BufferFromHostBuffer, .client = plan->client, .data = item->data,
             .type = form->type, .dims = form->dims, .num_dims = (size_t)form->rank,
             .host_buffer_semantics =
                 !item->share ? COPY_DURING_CALL : form->written ? GIVE : SHARE,
             .device = plan->device);
        *error = CALL(plan, Client_BufferFromHostBuffer);
        if (*error != NULL || args.buffer == NULL) {
            return false;
        }
        room->inputs[run->num_inputs++] = (Input){args.buffer, args.done_with_host_buffer};
        room->column[item->parameter] = args.buffer;
    }
    *function = "LoadedExecutable_Execute";
    for (Py_ssize_t index = 0; index < plan->num_results; index++) {
        room->row[index] = NULL;
    }
    void *const *columns[] = {room->column};
    void **rows[] = {room->row};
    ARGS(plan, LoadedExecutable_Execute, .executable = plan->executable, .options = plan->options,
         .argument_lists = columns, .num_devices = 1, .num_args = (size_t)plan->num_parameters,
         .output_lists = rows, .device_complete_events = &run->done);
    *error = CALL(plan, LoadedExecutable_Execute);
    if (*error != NULL) {
        /* What a call that failed has written to its outputs means nothing. */
        run->done = NULL;
    }
    return *error == NULL;
}

/* Make buffers of what is given and execute, once nothing can fail any more but the plugin; wait for
   the end, unless somebody does so `later`. False, with an exception, where the plugin failed. */
static bool start(Run *run, Py_ssize_t num_given, Launch *later) {
    Plan *plan = run->plan;
    Room *room = run->room;
    void *error = NULL;
    const char *function;
    Ending ending = {0};
    PyThreadState *state = enter();
    bool started = execute(run, num_given, &error, &function);
    Py_ssize_t made = run->num_inputs, results = 0;
    long events = run->done != NULL;
    for (Py_ssize_t index = 0; index < made; index++) {
        events += room->inputs[index].done != NULL;
    }
    bool complete = started && run->done != NULL;
    for (Py_ssize_t index = 0; started && index < plan->num_results; index++) {
        room->outputs[index]->buffer = room->row[index];
        results += room->row[index] != NULL;
        complete = complete && room->row[index] != NULL;
    }
    Dropped dropped = {0, 0};
    if (!started) {
        dropped = drop_inputs(run);
    }
    if (complete && later == NULL) {
        void *done = run->done;
        run->done = NULL;
        ending = await_end(run, done);
    }
    leave(state);
    num_buffers += made + results;
    num_events += events;
    count_dropped(dropped);
    if (!complete) {
        raise_failure(plan, error, function, nothing);
    } else if (later == NULL) {
        complete = settle(run, ending);
    } else {
        list_launch(later);
    }
    return complete;
}

/* Start what `source` gives. The run, which is all zeros, is for the caller to close. */
static enum Found begin(Plan *self, const Source *source, Run *run, Launch *later,
                        Py_ssize_t *position) {
    PyObject *executable = NULL, *client = NULL, *bundle = NULL;
    Py_ssize_t num_given;
    enum Found found = FAILED;
    if ((executable = lease_of(self, self->executable_handle)) != NULL &&
        (client = lease_of(self, self->client_handle)) != NULL &&
        (source->keeper == Py_None || (bundle = lease_of(self, source->keeper)) != NULL) &&
        open_run(run, self, client)) {
        found = gather(run, source, &num_given, position);
        if (found == FOUND && !start(run, num_given, later)) {
            found = FAILED;
        }
    }
    Py_XDECREF(bundle);
    Py_XDECREF(client);
    Py_XDECREF(executable);
    return found;
}

/* -- Plan.launch and Plan.call ----------------------------------------------------------------- */

/* Read `Kept.parts`; -1 with an exception where it is something else. */
static int read_kept(Plan *self, PyObject *parts, Source *source) {
    char *kept, *marks;
    Py_ssize_t kept_size, marks_size;
    Py_ssize_t size = self->num_parameters * (Py_ssize_t)sizeof(void *);
    if (!PyTuple_Check(parts) || PyTuple_Size(parts) != 4 ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(parts, 1), &kept, &kept_size) ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(parts, 2), &marks, &marks_size) ||
        kept_size != size || marks_size != size) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "expected what is kept of each parameter");
        }
        return -1;
    }
    source->keeper = PyTuple_GetItem(parts, 0);
    source->kept = (void *const *)(void *)kept;
    source->marks = (void *const *)(void *)marks;
    return 0;
}

static PyObject *plan_launch(Plan *self, PyObject *const *args, Py_ssize_t num_args) {
    if (num_args != 3 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of values, what is kept, and copies");
        return NULL;
    }
    Source source = {.values = args[0], .get = PyList_GetItem, .copies = args[2]};
    if (read_kept(self, args[1], &source) || !may_call(self)) {
        return NULL;
    }
    Launch *launch = (Launch *)PyType_GenericAlloc(launch_type, 0);
    if (launch == NULL) {
        return NULL;
    }
    Py_ssize_t position;
    enum Found found = begin(self, &source, &launch->run, launch, &position);
    if (found == FOUND) {
        return (PyObject *)launch;
    }
    Py_DECREF((PyObject *)launch);
    if (found == STALE) {
        Py_RETURN_NONE;
    }
    return found == UNFIT ? PyLong_FromSsize_t(position) : NULL;
}

static PyObject *call_plan(Plan *self, PyObject *values, PyObject *kept) {
    Source source = {.values = values, .get = PyTuple_GetItem, .copies = Py_None, .call = true};
    if (read_kept(self, kept, &source) || !may_call(self)) {
        return NULL;
    }
    Run run = {0};
    Py_ssize_t position;
    PyObject *tensors = NULL;
    enum Found found = begin(self, &source, &run, NULL, &position);
    if (found == FOUND) {
        self->shared = run.shared;
        self->copied = run.copied;
        tensors = tensors_of(&run);
    } else if (found != FAILED) {
        tensors = Py_NewRef(Py_None);
    }
    close_run(&run);
    return tensors;
}

static PyObject *plan_call(Plan *self, PyObject *const *args, Py_ssize_t num_args) {
    if (num_args != 2 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of values, and what is kept");
        return NULL;
    }
    return call_plan(self, args[0], args[1]);
}

static PyObject *plan_get_crossed(Plan *self, void *Py_UNUSED(closure)) {
    return Py_BuildValue("(LL)", (long long)self->shared, (long long)self->copied);
}

/* -- Entrance ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyObject *quiet;     /* A tuple of containers: nothing is to be seen to while all are empty. */
    PyObject *failures;  /* Exceptions after which a call may be tried in another way. */
    PyObject *attentive; /* (values) -> results, where something is to be seen to */
    PyObject *refused;   /* (values) -> results, of values that did not go in, or failed */
    PyObject *kept;      /* `Kept.parts`; None: all calls are seen to. */
    bool taken;          /* The last call came this way. */
} Entrance;

static PyObject *entrance_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *plan, *quiet, *failures, *attentive, *refused;
    if (!PyArg_ParseTuple(args, "O!O!OOO", plan_type, &plan, &PyTuple_Type, &quiet, &failures,
                          &attentive, &refused)) {
        return NULL;
    }
    Entrance *self = (Entrance *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        self->plan = (Plan *)Py_NewRef(plan);
        self->quiet = Py_NewRef(quiet);
        self->failures = Py_NewRef(failures);
        self->attentive = Py_NewRef(attentive);
        self->refused = Py_NewRef(refused);
        self->kept = Py_NewRef(Py_None);
    }
    return (PyObject *)self;
}

static int entrance_traverse(Entrance *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->plan);
    Py_VISIT(self->quiet);
    Py_VISIT(self->failures);
    Py_VISIT(self->attentive);
    Py_VISIT(self->refused);
    Py_VISIT(self->kept);
    return 0;
}

/* The functions are what makes a circle; the rest is there as long as somebody may call. */
static int entrance_clear(Entrance *self) {
    Py_CLEAR(self->attentive);
    Py_CLEAR(self->refused);
    return 0;
}

static void entrance_dealloc(Entrance *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack((PyObject *)self);
    entrance_clear(self);
    Py_XDECREF(self->kept);
    Py_XDECREF(self->failures);
    Py_XDECREF(self->quiet);
    Py_XDECREF((PyObject *)self->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* 1 or 0; -1 with an exception. */
static int is_quiet(const Entrance *self) {
    for (Py_ssize_t index = 0; index < PyTuple_Size(self->quiet); index++) {
        Py_ssize_t size = PyObject_Size(PyTuple_GetItem(self->quiet, index));
        if (size != 0) {
            return size < 0 ? -1 : 0;
        }
    }
    return 1;
}

static PyObject *entrance_call(Entrance *self, PyObject *values, PyObject *keywords) {
    PyObject *kept = self->kept, *seen_to = self->attentive;
    bool named = keywords != NULL && PyDict_Size(keywords) != 0;
    int quiet = named || kept == Py_None ? 0 : is_quiet(self);
    if (quiet < 0) {
        return NULL;
    }
    if (quiet) {
        /* Meanwhile something else may be kept. */
        Py_INCREF(kept);
        PyObject *results = call_plan(self->plan, values, kept);
        Py_DECREF(kept);
        if (results != NULL && results != Py_None) {
            self->taken = true;
            return results;
        }
        if (results == NULL && !PyErr_ExceptionMatches(self->failures)) {
            return NULL;
        }
        PyErr_Clear();
        Py_XDECREF(results);
        seen_to = self->refused;
    }
    if (seen_to == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "what is called here was collected");
        return NULL;
    }
    Py_INCREF(seen_to);
    PyObject *results = PyObject_Call(seen_to, values, keywords);
    Py_DECREF(seen_to);
    return results;
}

static PyObject *entrance_get_kept(Entrance *self, void *Py_UNUSED(closure)) {
    return Py_NewRef(self->kept);
}

static int entrance_set_kept(Entrance *self, PyObject *kept, void *Py_UNUSED(closure)) {
    PyObject *before = self->kept;
    self->kept = Py_NewRef(kept ? kept : Py_None);
    Py_DECREF(before);
    return 0;
}

static PyObject *entrance_get_taken(Entrance *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->taken);
}

static int entrance_set_taken(Entrance *self, PyObject *taken, void *Py_UNUSED(closure)) {
    self->taken = taken == Py_True;
    return 0;
}

/* -- guards ------------------------------------------------------------------------------------ */

/* PJRT functions carry nothing that would tell one table from another, so each guarded function
   has a C function of its own. */
#define SIXTEEN(X, digit)                                                                         \
    X(digit##0) X(digit##1) X(digit##2) X(digit##3) X(digit##4) X(digit##5) X(digit##6)           \
    X(digit##7) X(digit##8) X(digit##9) X(digit##a) X(digit##b) X(digit##c) X(digit##d)           \
    X(digit##e) X(digit##f)
#define GUARDS(X)                                                                                 \
    SIXTEEN(X, 0) SIXTEEN(X, 1) SIXTEEN(X, 2) SIXTEEN(X, 3) SIXTEEN(X, 4) SIXTEEN(X, 5)           \
    SIXTEEN(X, 6) SIXTEEN(X, 7) SIXTEEN(X, 8) SIXTEEN(X, 9) SIXTEEN(X, a) SIXTEEN(X, b)           \
    SIXTEEN(X, c) SIXTEEN(X, d) SIXTEEN(X, e) SIXTEEN(X, f)
#define COUNT_GUARD(number) +1
enum { NUM_GUARDS = 0 GUARDS(COUNT_GUARD) };

typedef void *(*Function)(void *args);

static Function guarded[NUM_GUARDS];
static Py_ssize_t num_guarded;

/* Called on any thread, with or without the GIL, also while an exception is on its way: Python code
   that ran then would fail at its first call. */
static void *call_guarded(int number, void *args) {
    if (ended || !Py_IsInitialized()) {
        return NULL;
    }
    PyObject *exception, *value, *traceback;
    PyGILState_STATE state = PyGILState_Ensure();
    PyErr_Fetch(&exception, &value, &traceback);
    PyThreadState *left = enter();
    void *error = guarded[number](args);
    leave(left);
    PyErr_Restore(exception, value, traceback);
    PyGILState_Release(state);
    return error;
}

#define DEFINE_GUARD(number) \
    static void *guard_##number(void *args) { return call_guarded(0x##number, args); }
#define NAME_GUARD(number) guard_##number,
GUARDS(DEFINE_GUARD)
static const Function guards[NUM_GUARDS] = {GUARDS(NAME_GUARD)};

static PyObject *module_guard(PyObject *Py_UNUSED(module), PyObject *address) {
    Function function = (Function)PyLong_AsVoidPtr(address);
    if (function == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "expected the address of a function, found NULL");
        }
        return NULL;
    }
    Py_ssize_t number = 0;
    while (number < num_guarded && guarded[number] != function) {
        number++;
    }
    if (number == NUM_GUARDS) {
        PyErr_Format(PyExc_OverflowError, "there are %d guards, and all are in use", NUM_GUARDS);
        return NULL;
    }
    if (number == num_guarded) {
        guarded[num_guarded++] = function;
    }
    return PyLong_FromVoidPtr((void *)guards[number]);
}

/* -- the module -------------------------------------------------------------------------------- */

static PyObject *module_live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return Py_BuildValue("(ll)", num_buffers, num_events);
}

static PyObject *module_busy(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    bool busy = inside > 0;
    for (Launch *launch = unfinished; launch != NULL && !busy; launch = launch->next) {
        busy = !is_ready(launch->run.plan, launch->run.done);
    }
    return PyBool_FromLong(busy);
}

static PyObject *module_close(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    closer = PyThread_get_thread_ident();
    Py_RETURN_NONE;
}

static PyObject *module_end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    ended = true;
    Py_RETURN_NONE;
}

static PyObject *module_forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    generation++;
    inside = 0;
    while (unfinished != NULL) {
        unlist_launch(unfinished);
    }
    Py_RETURN_NONE;
}

#define METHOD(name, function, flags, doc) \
    {name, (PyCFunction)(void (*)(void))(function), flags, doc}

static PyMethodDef plan_methods[] = {
    METHOD("launch", plan_launch, METH_FASTCALL,
           "launch(values, kept, copies) -> a Launch; the position of a value that does not fit "
           "as it is; None where what is kept is stale."),
    METHOD("call", plan_call, METH_FASTCALL,
           "call(values, kept) -> a tensor over each result, when all is over; None where a value "
           "does not fit as it is, or what is kept is stale. No value may be lazy."),
    {0}};
static PyGetSetDef plan_getset[] = {
    {"crossed", (getter)plan_get_crossed, NULL, "Bytes shared and copied in the last `call`.", NULL},
    {0}};
static PyGetSetDef entrance_getset[] = {
    {"kept", (getter)entrance_get_kept, (setter)entrance_set_kept,
     "What `Plan.call` takes beside the values; None: Python sees to all calls.", NULL},
    {"taken", (getter)entrance_get_taken, (setter)entrance_set_taken,
     "Whether a call came this way since this was set to False.", NULL},
    {0}};
static PyMethodDef launch_methods[] = {
    METHOD("finish", launch_finish, METH_NOARGS, "Wait for the end."),
    METHOD("tensors", launch_tensors, METH_NOARGS, "A tensor over each result, once it is there."),
    METHOD("over", launch_over, METH_NOARGS, "Whether the plugin has done with all of it."),
    METHOD("end", launch_end, METH_NOARGS, "Let go of what is over."),
    {0}};
static PyMethodDef output_methods[] = {
    METHOD("tensor", output_tensor, METH_NOARGS, "A tensor over the result, once it is there."),
    {0}};
static PyGetSetDef launch_getset[] = {
    {"outputs", (getter)launch_get_outputs, NULL, "The results, which may not be there.", NULL},
    {"shared", (getter)launch_get_shared, NULL, "Bytes that went in as they lie.", NULL},
    {"copied", (getter)launch_get_copied, NULL, "Bytes that were copied to go in.", NULL},
    {0}};
static PyMethodDef module_methods[] = {
    METHOD("live", module_live, METH_NOARGS, "Number of buffers and of events."),
    METHOD("busy", module_busy, METH_NOARGS, "Whether a plugin is at work here."),
    METHOD("close", module_close, METH_NOARGS, "From now on only this thread may launch."),
    METHOD("end", module_end, METH_NOARGS, "From now on nothing is given back to plugins."),
    METHOD("forked", module_forked, METH_NOARGS, "Disown what the parent process made."),
    METHOD("guard", module_guard, METH_O,
           "guard(address) -> address of a function that does the same, whatever exception is "
           "pending, and nothing once the process ends."),
    {0}};

static PyType_Slot plan_slots[] = {{Py_tp_new, plan_new},
                                   {Py_tp_dealloc, plan_dealloc},
                                   {Py_tp_methods, plan_methods},
                                   {Py_tp_getset, plan_getset},
                                   {Py_tp_doc, "Launches one executable."},
                                   {0, NULL}};
static PyType_Slot entrance_slots[] = {{Py_tp_new, entrance_new},
                                       {Py_tp_dealloc, entrance_dealloc},
                                       {Py_tp_traverse, entrance_traverse},
                                       {Py_tp_clear, entrance_clear},
                                       {Py_tp_call, entrance_call},
                                       {Py_tp_getset, entrance_getset},
                                       {Py_tp_doc, "Leads calls into a plan."},
                                       {0, NULL}};
static PyType_Slot launch_slots[] = {{Py_tp_dealloc, launch_dealloc},
                                     {Py_tp_methods, launch_methods},
                                     {Py_tp_getset, launch_getset},
                                     {Py_tp_doc, "An execution that may not have ended."},
                                     {0, NULL}};
static PyType_Slot output_slots[] = {{Py_tp_dealloc, output_dealloc},
                                     {Py_tp_methods, output_methods},
                                     {Py_tp_doc, "A result of a launch."},
                                     {0, NULL}};
static PyType_Spec plan_spec = {"pjrt_bridge.runtime._dispatch.Plan", sizeof(Plan), 0,
                                Py_TPFLAGS_DEFAULT, plan_slots};
static PyType_Spec entrance_spec = {"pjrt_bridge.runtime._dispatch.Entrance", sizeof(Entrance), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, entrance_slots};
static PyType_Spec launch_spec = {"pjrt_bridge.runtime._dispatch.Launch", sizeof(Launch), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  launch_slots};
static PyType_Spec output_spec = {"pjrt_bridge.runtime._dispatch.Output", sizeof(Output), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  output_slots};

/* {struct: {field: (offset, size)}}, for a test. */
static PyObject *layouts(void) {
    PyObject *found = PyDict_New();
#define REPORT_FIELD(type, name)                                                                  \
    {                                                                                             \
        PyObject *place = Py_BuildValue("(nn)", (Py_ssize_t)offsetof(REPORTED, name),             \
                                        (Py_ssize_t)sizeof(((REPORTED *)NULL)->name));            \
        if (place == NULL || PyDict_SetItemString(fields, #name, place)) {                        \
            Py_CLEAR(found);                                                                      \
        }                                                                                         \
        Py_XDECREF(place);                                                                        \
    }
#define REPORT(function)                                                                          \
    if (found != NULL) {                                                                          \
        typedef function##_Args REPORTED;                                                         \
        PyObject *fields = PyDict_New();                                                          \
        if (fields == NULL || PyDict_SetItemString(found, #function, fields)) {                   \
            Py_CLEAR(found);                                                                      \
        }                                                                                         \
        if (found != NULL) {                                                                      \
            FIELDS_##function(REPORT_FIELD)                                                       \
        }                                                                                         \
        Py_XDECREF(fields);                                                                       \
    }
    FUNCTIONS(REPORT)
    return found;
}

#define NAME_FUNCTION(function) #function,
static const char *const function_names[] = {FUNCTIONS(NAME_FUNCTION)};

static PyObject *functions(void) {
    PyObject *names = PyTuple_New(NUM_FUNCTIONS);
    for (Py_ssize_t index = 0; names != NULL && index < NUM_FUNCTIONS; index++) {
        PyObject *name = PyUnicode_FromString(function_names[index]);
        if (name == NULL) {
            Py_CLEAR(names);
        } else {
            PyTuple_SetItem(names, index, name);
        }
    }
    return names;
}

static int add(PyObject *module, const char *name, PyObject *value) {
    int failed = value == NULL || PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return failed;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_dispatch", "The hot path of a launch.", -1, module_methods, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit__dispatch(void) {
    PyObject *module = PyModule_Create(&definition);
    plan_type = (PyTypeObject *)PyType_FromSpec(&plan_spec);
    launch_type = (PyTypeObject *)PyType_FromSpec(&launch_spec);
    output_type = (PyTypeObject *)PyType_FromSpec(&output_spec);
    name_lease = PyUnicode_InternFromString("lease");
    if (module == NULL || plan_type == NULL || launch_type == NULL || output_type == NULL || name_lease == NULL ||
        PyModule_AddObjectRef(module, "Plan", (PyObject *)plan_type) ||
        add(module, "Entrance", PyType_FromSpec(&entrance_spec)) ||
        PyModule_AddObjectRef(module, "Launch", (PyObject *)launch_type) ||
        PyModule_AddObjectRef(module, "Output", (PyObject *)output_type) ||
        add(module, "LAYOUTS", layouts()) || add(module, "FUNCTIONS", functions()) ||
        PyModule_AddIntConstant(module, "REVISION", REVISION)) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
