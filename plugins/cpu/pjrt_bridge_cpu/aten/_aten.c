/* A custom call that runs one of PyTorch's CPU kernels on the plugin's own buffers.
 *
 * XLA calls `handle` from its threads, without Python's lock. The call's attributes (written by
 * calls.py) name an operator of ATen and say how its arguments are made of operands, results and
 * numbers; the operator is reached through libtorch's stable C interface, whose functions `connect`
 * finds. No tensor is copied: arguments are views of XLA's memory. What an operator returns is
 * copied, unless it was told to write into the result itself.
 *
 * A large call is cut into parts along one dimension. Parts run on XLA's threads, one core each:
 * OpenMP's own threads spin for a while after each loop and would take the cores from XLA's.
 *
 * Sources: xla/ffi/api/c_api.h 0.3; torch/csrc/stable/c/shim.h and
 * torch/csrc/inductor/aoti_torch/c/shim.h of PyTorch 2.13.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- XLA's side ------------------------------------------------------------------------------ */

typedef struct Error Error;

typedef struct {
    size_t size;
    void *extension;
    int major, minor;
} Version;

typedef struct Extension {
    size_t size;
    int type;
    struct Extension *next;
} Extension;

typedef struct {
    size_t size;
    Version version;
} Metadata;

typedef struct {
    Extension base;
    Metadata *metadata;
} MetadataExtension;

typedef struct {
    size_t size;
    void *extension;
    const char *message;
    int code;
} ErrorArgs;

typedef struct {
    size_t size;
    void *extension, *context;
    void (*task)(void *);
    void *data;
} ScheduleArgs;

typedef struct {
    size_t size;
    void *extension, *context;
    int64_t *count;
} ThreadsArgs;

typedef struct {
    size_t size;
    void *extension;
    Version version;
    void *internal;
    Error *(*create)(ErrorArgs *);
    void *get_message;
    void (*destroy)(void *);
    void *others[8];
    Error *(*schedule)(ScheduleArgs *);
    Error *(*threads)(ThreadsArgs *);
} Api;

typedef struct {
    size_t size;
    void *extension;
    int dtype;
    char *data;
    int64_t rank;
    const int64_t *dims;
} Buffer;

typedef struct {
    const char *data;
    size_t size;
} Span;

typedef struct {
    int dtype;
    size_t size;
    const void *data;
} Array;

typedef struct {
    size_t size;
    void *extension;
    int64_t count;
    int *types;
    Buffer **buffers;
} Buffers;

typedef struct {
    size_t size;
    void *extension;
    int64_t count;
    int *types;
    Span **names;
    void **values;
} Attributes;

typedef struct {
    size_t size;
    Extension *extension;
    const Api *api;
    void *context;
    int stage;
    Buffers operands, results;
    Attributes attributes;
} Frame;

enum { METADATA = 1, ARRAY = 1, STRING = 4, S64 = 5 };
enum { INVALID_ARGUMENT = 3, INTERNAL = 13 };

/* -- libtorch's side ------------------------------------------------------------------------- */

typedef void *Tensor;
typedef uint64_t Word;

#define BUILT_FOR ((UINT64_C(2) << 56) | (UINT64_C(13) << 48))

static struct {
    int (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t,
                     int32_t, Tensor *);
    int (*release)(Tensor);
    int (*copy)(Tensor, Tensor, int32_t);
    int (*rank)(Tensor, int64_t *);
    int (*sizes)(Tensor, int64_t **);
    int (*dtype)(Tensor, int32_t *);
    int (*dispatch)(const char *, const char *, Word *, uint64_t);
    int (*new_list)(size_t, void **);
    int (*push)(void *, Word);
    int (*new_word)(Word **);
    const char *(*what)(void);
    int (*threads)(uint32_t *);
    int (*max_threads)(void);
    void (*set_threads)(int);
    int (*set_blas_threads)(int); /* May be missing: not every build has MKL. */
} torch;

static const struct {
    const char *name;
    void *where;
} FUNCTIONS[] = {
    {"aoti_torch_create_tensor_from_blob", &torch.from_blob},
    {"aoti_torch_delete_tensor_object", &torch.release},
    {"aoti_torch_copy_", &torch.copy},
    {"aoti_torch_get_dim", &torch.rank},
    {"aoti_torch_get_sizes", &torch.sizes},
    {"aoti_torch_get_dtype", &torch.dtype},
    {"torch_call_dispatcher", &torch.dispatch},
    {"torch_new_list_reserve_size", &torch.new_list},
    {"torch_list_push_back", &torch.push},
    {"torch_new_stable_ivalue", &torch.new_word},
    {"torch_exception_get_what", &torch.what},
    {"torch_get_num_threads", &torch.threads},
    {"omp_get_max_threads", &torch.max_threads},
    {"omp_set_num_threads", &torch.set_threads},
};

/* Index: XLA_FFI_DataType; value: c10::ScalarType, -1 for none. */
static const int SCALAR_TYPES[] = {-1, 11, 1, 2, 3, 4, 0, -1, -1, -1, 5, 6, 7, -1, -1, 9, 15, -1, 10};

/* -- a call ---------------------------------------------------------------------------------- */

/* Words of the attribute `stack`; calls.py writes them. */
enum { NONE, OPERAND, RESULT, WORD, WORDS, SOME };

#define MOST_ARGUMENTS 32
#define MOST_DIMENSIONS 8
#define MESSAGE 512

typedef struct {
    const int64_t *data;
    int64_t size;
} Numbers;

typedef struct {
    const Frame *frame;
    char name[64], overload[32];
    Numbers orders, stack, returns, cuts;
    int64_t grain;
    int64_t length; /* Of what is cut; 0 where nothing is. */
} Call;

static int
fail(char *message, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, MESSAGE, format, values);
    va_end(values);
    return -1;
}

static const Buffer *
buffer_of(const Call *call, int64_t index)
{
    const Frame *frame = call->frame;
    int64_t operands = frame->operands.count;
    if (index < 0 || index >= operands + frame->results.count)
        return NULL;
    return index < operands ? frame->operands.buffers[index]
                            : frame->results.buffers[index - operands];
}

static const int64_t *
order_of(const Call *call, int64_t index)
{
    int64_t at = 0;
    for (int64_t i = 0; i < index; i++)
        at += buffer_of(call, i)->rank;
    return at + buffer_of(call, index)->rank <= call->orders.size ? call->orders.data + at : NULL;
}

/* A view of an operand, or of a result after the operands; of [begin, end) where it is cut. */
static int
view(const Call *call, int64_t index, int64_t begin, int64_t end, Tensor *found, char *message)
{
    const Buffer *buffer = buffer_of(call, index);
    if (!buffer || buffer->rank > MOST_DIMENSIONS)
        return fail(message, "operand or result %lld is none that it can take", (long long)index);
    int size = sizeof SCALAR_TYPES / sizeof *SCALAR_TYPES;
    int dtype = buffer->dtype > 0 && buffer->dtype < size ? SCALAR_TYPES[buffer->dtype] : -1;
    const int64_t *order = order_of(call, index);
    if (dtype < 0 || (!order && buffer->rank))
        return fail(message, "operand or result %lld has element type %d, which PyTorch lacks",
                    (long long)index, buffer->dtype);
    int64_t sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS], step = 1, offset = 0;
    for (int64_t i = buffer->rank - 1; i >= 0; i--) {
        int64_t dim = order[i];
        if (dim < 0 || dim >= buffer->rank)
            return fail(message, "the order of operand or result %lld is none", (long long)index);
        sizes[dim] = buffer->dims[dim];
        strides[dim] = step;
        step *= buffer->dims[dim] > 1 ? buffer->dims[dim] : 1;
    }
    int64_t cut = call->cuts.data[index];
    if (call->length && cut >= 0) {
        offset = begin * strides[cut];
        sizes[cut] = end - begin;
    }
    if (torch.from_blob(buffer->data, buffer->rank, sizes, strides, offset, dtype, 0, -1, found))
        return fail(message, "%s", torch.what());
    return 0;
}

/* The argument that the words at `*at` say. */
static int
argument(const Call *call, int64_t *at, int64_t begin, int64_t end, Word *word, char *message)
{
    const int64_t *data = call->stack.data;
    int64_t left = call->stack.size - *at;
    int64_t kind = data[*at], operands = call->frame->operands.count;
    if (kind != NONE && left < 2)
        return fail(message, "its arguments end early");
    *word = 0;
    switch (kind) {
    case NONE:
        *at += 1;
        return 0;
    case OPERAND:
    case RESULT: {
        Tensor tensor = NULL;
        int64_t index = data[*at + 1] + (kind == RESULT ? operands : 0);
        *at += 2;
        if (view(call, index, begin, end, &tensor, message))
            return -1;
        *word = (Word)(uintptr_t)tensor;
        return 0;
    }
    case WORD:
        *word = (Word)data[*at + 1];
        *at += 2;
        return 0;
    case WORDS: {
        int64_t count = data[*at + 1];
        void *list = NULL;
        if (count < 0 || count > left - 2)
            return fail(message, "its arguments end early");
        if (torch.new_list((size_t)count, &list))
            return fail(message, "%s", torch.what());
        for (int64_t i = 0; i < count; i++)
            torch.push(list, (Word)data[*at + 2 + i]);
        *at += 2 + count;
        *word = (Word)(uintptr_t)list;
        return 0;
    }
    case SOME: {
        Word inner, *held = NULL;
        *at += 1;
        if (argument(call, at, begin, end, &inner, message))
            return -1;
        if (torch.new_word(&held))
            return fail(message, "%s", torch.what());
        *held = inner;
        *word = (Word)(uintptr_t)held;
        return 0;
    }
    default:
        return fail(message, "argument of unknown kind %lld", (long long)kind);
    }
}

/* Copy a returned tensor into a result, which it has to be like. */
static int
keep(const Call *call, Tensor tensor, int64_t result, int64_t begin, int64_t end, char *message)
{
    Tensor target = NULL;
    int64_t index = call->frame->operands.count + result, ranks[2] = {0, 0}, *sizes[2];
    int32_t dtypes[2] = {-1, -1};
    if (view(call, index, begin, end, &target, message))
        return -1;
    Tensor both[2] = {tensor, target};
    int failed = 0;
    for (int i = 0; i < 2; i++)
        failed |= torch.rank(both[i], &ranks[i]) || torch.sizes(both[i], &sizes[i]) ||
                  torch.dtype(both[i], &dtypes[i]);
    if (failed || ranks[0] != ranks[1] || dtypes[0] != dtypes[1] ||
        memcmp(sizes[0], sizes[1], (size_t)ranks[0] * sizeof(int64_t)))
        failed = fail(message, "result %lld is not of the type that the program states",
                      (long long)result);
    else if (torch.copy(target, tensor, 0))
        failed = fail(message, "%s", torch.what());
    torch.release(target);
    return failed ? -1 : 0;
}

static int
run(const Call *call, int64_t begin, int64_t end, char *message)
{
    Word words[MOST_ARGUMENTS];
    int64_t count = 0;
    for (int64_t at = 0; at < call->stack.size; count++) {
        if (count == MOST_ARGUMENTS)
            return fail(message, "it has more than %d arguments", MOST_ARGUMENTS);
        /* The arguments before are lost; programs with a wrong one do not pass the probe. */
        if (argument(call, &at, begin, end, &words[count], message))
            return -1;
    }
    if (call->returns.size > MOST_ARGUMENTS)
        return fail(message, "it returns more than %d values", MOST_ARGUMENTS);
    if (torch.dispatch(call->name, call->overload, words, BUILT_FOR))
        return fail(message, "%s", torch.what());
    int failed = 0;
    for (int64_t i = 0; i < call->returns.size; i++) {
        Tensor tensor = (Tensor)(uintptr_t)words[i];
        int64_t result = call->returns.data[i];
        if (result >= 0 && !failed)
            failed = keep(call, tensor, result, begin, end, message);
        torch.release(tensor);
    }
    return failed;
}

/* -- parts ----------------------------------------------------------------------------------- */

typedef struct {
    const Call *call; /* Good until all parts are done. */
    int64_t parts;
    atomic_llong next, done, holders;
    atomic_int failed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char message[MESSAGE];
} Work;

/* Take parts until none is left. Whoever comes late finds none, and does not look at the call. */
static void
take_parts(Work *work)
{
    int64_t part;
    int saved = 0, saved_blas = 0;
    bool started = false;
    while ((part = atomic_fetch_add(&work->next, 1)) < work->parts) {
        if (!started) {
            uint32_t unused;
            /* The first loop of a thread would set its number of threads anew. */
            torch.threads(&unused);
            saved = torch.max_threads();
            torch.set_threads(1);
            if (torch.set_blas_threads)
                saved_blas = torch.set_blas_threads(1);
            started = true;
        }
        char message[MESSAGE] = "";
        int64_t length = work->call->length;
        int64_t begin = length * part / work->parts, end = length * (part + 1) / work->parts;
        if (run(work->call, begin, end, message) && !atomic_exchange(&work->failed, 1))
            memcpy(work->message, message, MESSAGE);
        if (atomic_fetch_add(&work->done, 1) + 1 == work->parts) {
            pthread_mutex_lock(&work->lock);
            pthread_cond_broadcast(&work->changed);
            pthread_mutex_unlock(&work->lock);
        }
    }
    if (started) {
        torch.set_threads(saved);
        if (torch.set_blas_threads)
            torch.set_blas_threads(saved_blas);
    }
}

static void
let_go(Work *work)
{
    if (atomic_fetch_sub(&work->holders, 1) > 1)
        return;
    pthread_mutex_destroy(&work->lock);
    pthread_cond_destroy(&work->changed);
    free(work);
}

static void
task(void *data)
{
    take_parts(data);
    let_go(data);
}

static int64_t
threads_of(const Frame *frame)
{
    const Api *api = frame->api;
    int64_t count = 1;
    if (api->size < offsetof(Api, threads) + sizeof api->threads || !api->threads)
        return 1;
    ThreadsArgs args = {sizeof args, NULL, frame->context, &count};
    Error *error = api->threads(&args);
    if (error) {
        struct {
            size_t size;
            void *extension;
            Error *error;
        } destroyed = {sizeof destroyed, NULL, error};
        api->destroy(&destroyed);
        return 1;
    }
    return count;
}

static int
run_in_parts(const Call *call, char *message)
{
    const Frame *frame = call->frame;
    int64_t most = call->grain > 0 ? call->length / call->grain : 1;
    int64_t parts = most > 1 ? threads_of(frame) : 1;
    if (parts > most)
        parts = most;
    Work *work = malloc(sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    *work = (Work){.call = call, .parts = parts > 1 ? parts : 1};
    atomic_init(&work->holders, 1);
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->changed, NULL);
    for (int64_t i = 1; i < work->parts + 1 && work->parts > 1; i++) {
        ScheduleArgs args = {sizeof args, NULL, frame->context, task, work};
        atomic_fetch_add(&work->holders, 1);
        Error *error = frame->api->schedule(&args);
        if (error) {
            struct {
                size_t size;
                void *extension;
                Error *error;
            } destroyed = {sizeof destroyed, NULL, error};
            frame->api->destroy(&destroyed);
            atomic_fetch_sub(&work->holders, 1);
            break;
        }
    }
    take_parts(work);
    for (int spins = 0; spins < 20000 && atomic_load(&work->done) < work->parts; spins++)
        ;
    if (atomic_load(&work->done) < work->parts) {
        pthread_mutex_lock(&work->lock);
        while (atomic_load(&work->done) < work->parts)
            pthread_cond_wait(&work->changed, &work->lock);
        pthread_mutex_unlock(&work->lock);
    }
    int failed = atomic_load(&work->failed) ? fail(message, "%s", work->message) : 0;
    let_go(work);
    return failed;
}

/* -- the handler ----------------------------------------------------------------------------- */

static Error *
refuse(const Frame *frame, int code, const char *name, const char *message)
{
    char text[MESSAGE + 128];
    snprintf(text, sizeof text, "%s in a program for the CPU plugin: %s", name, message);
    ErrorArgs args = {sizeof args, NULL, text, code};
    return frame->api->create(&args);
}

static int
read_text(const Span *span, char *text, size_t room)
{
    if (span->size >= room)
        return -1;
    memcpy(text, span->data, span->size);
    text[span->size] = 0;
    return 0;
}

static int
read_call(const Frame *frame, Call *call, char *message)
{
    const Attributes *attributes = &frame->attributes;
    Numbers grain = {NULL, 0};
    const struct {
        const char *name;
        Numbers *where;
    } wanted[] = {
        {"orders", &call->orders}, {"stack", &call->stack}, {"returns", &call->returns},
        {"cuts", &call->cuts},     {"grain", &grain},
    };
    call->frame = frame;
    for (int64_t i = 0; i < attributes->count; i++) {
        const Span *name = attributes->names[i];
        if (attributes->types[i] == STRING) {
            const Span *text = attributes->values[i];
            if (name->size == 4 && !memcmp(name->data, "name", 4) &&
                read_text(text, call->name, sizeof call->name))
                return fail(message, "its name is too long");
            if (name->size == 8 && !memcmp(name->data, "overload", 8) &&
                read_text(text, call->overload, sizeof call->overload))
                return fail(message, "its name is too long");
        }
        if (attributes->types[i] != ARRAY)
            continue;
        const Array *array = attributes->values[i];
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
            if (array->dtype == S64 && strlen(wanted[k].name) == name->size &&
                !memcmp(name->data, wanted[k].name, name->size))
                *wanted[k].where = (Numbers){array->data, (int64_t)array->size};
    }
    int64_t count = frame->operands.count + frame->results.count;
    if (!call->name[0] || !call->stack.size || call->cuts.size != count || grain.size != 1)
        return fail(message, "its attributes are not those that the bridge writes");
    call->grain = grain.data[0];
    for (int64_t i = 0; i < count; i++) {
        const Buffer *buffer = buffer_of(call, i);
        int64_t dim = call->cuts.data[i];
        if (dim < 0)
            continue;
        if (dim >= buffer->rank || (call->length && buffer->dims[dim] != call->length))
            return fail(message, "what is cut is not of one length");
        call->length = buffer->dims[dim];
    }
    return 0;
}

static Error *
handle(Frame *frame)
{
    for (Extension *found = frame->extension; found; found = found->next)
        if (found->type == METADATA) {
            Version *version = &((MetadataExtension *)found)->metadata->version;
            version->major = frame->api->version.major;
            version->minor = frame->api->version.minor;
            return NULL;
        }
    char message[MESSAGE] = "";
    Call call = {0};
    if (!torch.dispatch)
        return refuse(frame, INTERNAL, "a kernel of PyTorch", "PyTorch is not connected");
    if (read_call(frame, &call, message))
        return refuse(frame, INVALID_ARGUMENT, call.name, message);
    if (run_in_parts(&call, message))
        return refuse(frame, INTERNAL, call.name, message);
    return NULL;
}

/* -- the module ------------------------------------------------------------------------------ */

static PyObject *
connect(PyObject *self, PyObject *path)
{
    PyObject *name = NULL;
    (void)self;
    if (!PyUnicode_FSConverter(path, &name))
        return NULL;
    void *library = dlopen(PyBytes_AsString(name), RTLD_NOW | RTLD_LOCAL);
    Py_DECREF(name);
    if (!library)
        return PyErr_Format(PyExc_OSError, "%s", dlerror());
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!dlsym(library, FUNCTIONS[i].name))
            return PyErr_Format(PyExc_LookupError, "%R has no function %s", path,
                                FUNCTIONS[i].name);
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        *(void **)FUNCTIONS[i].where = dlsym(library, FUNCTIONS[i].name);
    *(void **)&torch.set_blas_threads = dlsym(library, "MKL_Set_Num_Threads_Local");
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"connect", connect, METH_O, "Find the functions of libtorch_cpu at a path."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_aten", "PyTorch's CPU kernels as custom calls.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__aten(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (!module)
        return NULL;
    PyObject *address = PyLong_FromVoidPtr((void *)handle);
    if (!address || PyModule_AddObjectRef(module, "HANDLER", address)) {
        Py_XDECREF(address);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(address);
    return module;
}
