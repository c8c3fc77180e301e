/* A custom call that runs one of PyTorch's CPU kernels on the plugin's own buffers.
 *
 * XLA calls `handle` from its threads, without Python's lock. The call's attributes (written by
 * calls.py) name an operator of ATen and say how its arguments are made of operands, results and
 * numbers; the operator is reached through libtorch's stable C interface, whose functions `connect`
 * finds. No tensor is copied: arguments are views of XLA's memory. What an operator returns is
 * copied, unless it was told to write into the result itself.
 *
 * A program may come from anywhere, and libtorch takes arguments as words without types. So only
 * the operators that `connect` was told of are called, and a call is compared with the operator's
 * parameters, and its views with XLA's buffers, before libtorch sees any of it.
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
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

enum { METADATA = 1, ARRAY = 1, BUFFER = 1, STRING = 4, S64 = 5 };
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
    int (*delete_list)(void *);
    int (*new_word)(Word **);
    int (*delete_word)(Word *);
    const char *(*what)(void);
    int (*threads)(uint32_t *);
    int (*max_threads)(void);
    void (*set_threads)(int);
    int (*set_blas_threads)(int); /* May be missing: not every build has MKL. */
    bool (*any_modes)(bool);      /* May be missing: no part of the stable interface. */
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
    {"torch_delete_list", &torch.delete_list},
    {"torch_new_stable_ivalue", &torch.new_word},
    {"torch_delete_stable_ivalue", &torch.delete_word},
    {"torch_exception_get_what_without_backtrace", &torch.what},
    {"torch_get_num_threads", &torch.threads},
    {"omp_get_max_threads", &torch.max_threads},
    {"omp_set_num_threads", &torch.set_threads},
};

/* Index: XLA_FFI_DataType; value: c10::ScalarType, -1 for none. */
static const int SCALAR_TYPES[] = {-1, 11, 1, 2, 3, 4, 0, -1, -1, -1, 5, 6, 7, -1, -1, 9, 15, -1, 10};

/* -- operators ------------------------------------------------------------------------------- */

#define MOST_OPERATORS 64
#define MOST_ARGUMENTS 31

typedef struct {
    char name[64], overload[32];
    /* Of its parameters; operators.py says what they mean. */
    char kinds[MOST_ARGUMENTS + 1], lengths[96];
    int64_t returns;                /* Values, all of them tensors. */
} Operator;

typedef struct {
    int count;
    Operator items[MOST_OPERATORS];
} Operators;

static _Atomic(const Operators *) operators;

/* -- a call ---------------------------------------------------------------------------------- */

/* Words of the attribute `stack`; calls.py writes them. */
enum { NONE, OPERAND, RESULT, WORD, WORDS, SOME };

#define MOST_DIMENSIONS 8
#define MESSAGE 512

typedef struct {
    const int64_t *data;
    int64_t size;
} Numbers;

typedef struct {
    const Frame *frame;
    const Operator *operator;
    Numbers orders, stack, returns, cuts;
    int64_t grain, pieces; /* The least length of a part; parts for each thread. */
    bool is_cut;
    int64_t length; /* Of what is cut. */
} Call;

typedef struct {
    int32_t dtype;
    int64_t rank, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS], offset;
    void *data;
} View;

/* A part of a call: its range of what is cut, and where the reason goes when it fails. */
typedef struct {
    const Call *call;
    int64_t begin, end;
    char *message;
    int64_t *lengths; /* By letter of the operator's `lengths`; 0 as long as nothing has it. */
} Part;

static int
fail(char *message, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, MESSAGE, format, values);
    va_end(values);
    return -1;
}

static int
fail_as_torch(char *message)
{
    const char *what = torch.what();
    return fail(message, "%s", what && *what ? what : "PyTorch gives no reason");
}

static const Buffer *
buffer_of(const Frame *frame, int64_t index)
{
    int64_t operands = frame->operands.count;
    return index < operands ? frame->operands.buffers[index]
                            : frame->results.buffers[index - operands];
}

/* An operand, or a result after the operands; [begin, end) of it where it is cut. */
static int
view(const Part *part, int64_t index, View *found)
{
    const Call *call = part->call;
    const Buffer *buffer = buffer_of(call->frame, index);
    int size = sizeof SCALAR_TYPES / sizeof *SCALAR_TYPES;
    *found = (View){.rank = buffer->rank, .data = buffer->data};
    found->dtype = buffer->dtype > 0 && buffer->dtype < size ? SCALAR_TYPES[buffer->dtype] : -1;
    if (found->dtype < 0)
        return fail(part->message, "operand or result %lld has element type %d, which PyTorch lacks",
                    (long long)index, buffer->dtype);
    const int64_t *order = call->orders.data;
    for (int64_t i = 0; i < index; i++)
        order += buffer_of(call->frame, i)->rank;
    int64_t step = 1;
    for (int64_t i = buffer->rank - 1; i >= 0; i--) {
        int64_t dim = order[i];
        found->sizes[dim] = buffer->dims[dim];
        found->strides[dim] = step;
        step *= buffer->dims[dim] > 1 ? buffer->dims[dim] : 1;
    }
    int64_t cut = call->cuts.data[index];
    if (cut >= 0) {
        found->offset = part->begin * found->strides[cut];
        found->sizes[cut] = part->end - part->begin;
    }
    return 0;
}

static int
tensor_of(const Part *part, const View *view, Tensor *tensor)
{
    if (torch.from_blob(view->data, view->rank, view->sizes, view->strides, view->offset,
                        view->dtype, 0, -1, tensor))
        return fail_as_torch(part->message);
    return 0;
}

/* Compare with the lengths that a parameter has to have, which end at a comma. */
static int
check_lengths(const Part *part, const char *letters, const View *view)
{
    int64_t count = (int64_t)strcspn(letters, ",");
    bool broadcast = *letters == '~';
    if (!count)
        return 0;
    letters += broadcast;
    count -= broadcast;
    bool right = broadcast ? view->rank <= count : view->rank == count;
    for (int64_t i = 0; right && i < view->rank; i++) {
        int64_t length = view->sizes[i];
        int64_t *expected = &part->lengths[letters[count - view->rank + i] - 'a'];
        if (broadcast && length == 1)
            continue;
        if (!*expected)
            *expected = length;
        right = length && length == *expected;
    }
    return right ? 0 : fail(part->message, "its operands do not fit each other");
}

/* Libtorch frees the words of a call that it takes; those of one that it never saw end here. */
static void
discard(char kind, Word word)
{
    bool optional = kind >= 'A' && kind <= 'Z';
    if (optional && !word)
        return;
    Word *held = (Word *)(uintptr_t)word;
    Word inner = optional ? *held : word;
    switch (optional ? kind - 'A' + 'a' : kind) {
    case 't':
    case 'o':
        torch.release((Tensor)(uintptr_t)inner);
        break;
    case 'l':
    case 'm':
        torch.delete_list((void *)(uintptr_t)inner);
        break;
    }
    if (optional)
        torch.delete_word(held);
}

/* An argument of a kind that is not optional, said by `left` words. How many, or -1. */
static int64_t
value(const Part *part, char kind, const char *lengths, const int64_t *data, int64_t left,
      Word *word)
{
    const Frame *frame = part->call->frame;
    if (left < 2)
        return fail(part->message, "its arguments end early");
    int64_t said = data[0], given = data[1];
    bool numbers = kind == 'l' || kind == 'm';
    int64_t expected = kind == 't' ? OPERAND : kind == 'o' ? RESULT : numbers ? WORDS : WORD;
    if (said != expected || !strchr("tolmibf", kind))
        return fail(part->message, "kind %lld is not one of its parameter", (long long)said);
    if (said == OPERAND || said == RESULT) {
        int64_t count = said == OPERAND ? frame->operands.count : frame->results.count;
        View found;
        Tensor tensor = NULL;
        if (given < 0 || given >= count)
            return fail(part->message, "operand or result %lld is none", (long long)given);
        if (view(part, given + (said == RESULT ? frame->operands.count : 0), &found) ||
            check_lengths(part, lengths, &found) || tensor_of(part, &found, &tensor))
            return -1;
        *word = (Word)(uintptr_t)tensor;
        return 2;
    }
    if (said == WORD) {
        if (kind == 'b' && (given < 0 || given > 1))
            return fail(part->message, "%lld is neither true nor false", (long long)given);
        *word = (Word)given;
        return 2;
    }
    if (given < 0 || given > left - 2)
        return fail(part->message, "its arguments end early");
    void *list = NULL;
    if (torch.new_list((size_t)given, &list))
        return fail_as_torch(part->message);
    for (int64_t i = 0; i < given; i++) {
        int64_t item = data[2 + i];
        bool wrong = kind == 'm' && (item < 0 || item > 1);
        if (wrong || torch.push(list, (Word)item)) {
            torch.delete_list(list);
            return wrong ? fail(part->message, "%lld is neither true nor false", (long long)item)
                         : fail_as_torch(part->message);
        }
    }
    *word = (Word)(uintptr_t)list;
    return 2 + given;
}

/* The same of any kind. */
static int64_t
argument(const Part *part, char kind, const char *lengths, const int64_t *data, int64_t left,
         Word *word)
{
    *word = 0;
    if (kind < 'A' || kind > 'Z')
        return value(part, kind, lengths, data, left, word);
    if (left > 0 && data[0] == NONE)
        return 1;
    if (left < 1 || data[0] != SOME)
        return fail(part->message, "an argument may be left out and does not say whether it is");
    Word inner = 0, *held = NULL;
    char plain = kind - 'A' + 'a';
    int64_t words = value(part, plain, lengths, data + 1, left - 1, &inner);
    if (words < 0)
        return -1;
    if (torch.new_word(&held)) {
        discard(plain, inner);
        return fail_as_torch(part->message);
    }
    *held = inner;
    *word = (Word)(uintptr_t)held;
    return 1 + words;
}

static bool
is_like(Tensor tensor, const View *view)
{
    int64_t rank = -1, *sizes = NULL;
    int32_t dtype = -1;
    return !torch.rank(tensor, &rank) && !torch.sizes(tensor, &sizes) &&
           !torch.dtype(tensor, &dtype) && rank == view->rank && dtype == view->dtype &&
           (!rank || !memcmp(sizes, view->sizes, (size_t)rank * sizeof *sizes));
}

/* Copy a returned tensor into a result, unless it was written there. It has to be like that: an
 * operator gives what it writes into another shape where that has room for it. */
static int
keep(const Part *part, Tensor tensor, int64_t result, bool written)
{
    View wanted;
    Tensor target = NULL;
    if (view(part, part->call->frame->operands.count + result, &wanted))
        return -1;
    if (!is_like(tensor, &wanted))
        return fail(part->message, "result %lld is not of the type that the program states",
                    (long long)result);
    if (written)
        return 0;
    if (tensor_of(part, &wanted, &target))
        return -1;
    int failed = torch.copy(target, tensor, 0) ? fail_as_torch(part->message) : 0;
    torch.release(target);
    return failed;
}

static int
run(const Part *part)
{
    const Call *call = part->call;
    const Operator *operator = call->operator;
    Word words[MOST_ARGUMENTS];
    int64_t written[MOST_ARGUMENTS], places = 0, at = 0, count = 0, read = 0;
    const char *lengths = operator->lengths;
    for (; operator->kinds[count] && read >= 0; count++) {
        const int64_t *data = call->stack.data + at;
        read = argument(part, operator->kinds[count], lengths, data, call->stack.size - at,
                        &words[count]);
        lengths += strcspn(lengths, ",");
        lengths += *lengths == ',';
        if (operator->kinds[count] == 'o' && read >= 0)
            written[places++] = data[1];
        at += read;
    }
    if (read >= 0 && at != call->stack.size)
        read = fail(part->message, "it has more arguments than parameters");
    else if (read < 0)
        count--; /* What failed left nothing. */
    if (read < 0) {
        while (count--)
            discard(operator->kinds[count], words[count]);
        return -1;
    }
    if (torch.dispatch(operator->name, operator->overload, words, BUILT_FOR))
        return fail_as_torch(part->message);
    int failed = 0;
    for (int64_t i = 0; i < operator->returns; i++) {
        Tensor tensor = (Tensor)(uintptr_t)words[i];
        int64_t result = i < places ? written[i] : call->returns.data[i];
        if (result >= 0 && !failed)
            failed = keep(part, tensor, result, i < places);
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
    int64_t index;
    int saved = 0, saved_blas = 0;
    bool started = false;
    while ((index = atomic_fetch_add(&work->next, 1)) < work->parts) {
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
        int64_t begin = length * index / work->parts, end = length * (index + 1) / work->parts;
        int64_t lengths['z' - 'a' + 1] = {0};
        const Part part = {work->call, begin, end, message, lengths};
        if (run(&part) && !atomic_exchange(&work->failed, 1))
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

static void
drop(const Api *api, Error *error)
{
    struct {
        size_t size;
        void *extension;
        Error *error;
    } args = {sizeof args, NULL, error};
    api->destroy(&args);
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
        drop(api, error);
        return 1;
    }
    return count;
}

/* To wake a thread takes longer than what is left of most calls. */
#define AWAKE 200000

static int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int
run_in_parts(const Call *call, char *message)
{
    const Frame *frame = call->frame;
    int64_t most = call->grain > 0 ? call->length / call->grain : 1;
    int64_t threads = most > 1 ? threads_of(frame) : 1, parts = threads;
    if (call->pieces > 1 && threads > 1)
        parts = call->pieces < most / threads ? threads * call->pieces : most;
    if (parts > most)
        parts = most;
    Work *work = malloc(sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    *work = (Work){.call = call, .parts = parts > 1 ? parts : 1};
    atomic_init(&work->holders, 1);
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->changed, NULL);
    /* One thread more than there is work for: one that sleeps may wake late. */
    for (int64_t i = 0; i < threads && i < work->parts && work->parts > 1; i++) {
        ScheduleArgs args = {sizeof args, NULL, frame->context, task, work};
        atomic_fetch_add(&work->holders, 1);
        Error *error = frame->api->schedule(&args);
        if (error) {
            drop(frame->api, error);
            atomic_fetch_sub(&work->holders, 1);
            break;
        }
    }
    take_parts(work);
    for (int64_t end = nanoseconds() + AWAKE;
         atomic_load(&work->done) < work->parts && nanoseconds() < end;)
        sched_yield();
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
refuse(const Frame *frame, int code, const Call *call, const char *message)
{
    char text[MESSAGE + 128];
    const char *name = call->operator ? call->operator->name : "a call of PyTorch's kernels";
    snprintf(text, sizeof text, "%s in a program for the CPU plugin: %s", name, message);
    ErrorArgs args = {sizeof args, NULL, text, code};
    return frame->api->create(&args);
}

static bool
is_text(const Span *span, const char *text)
{
    return span->size == strlen(text) && !memcmp(span->data, text, span->size);
}

static const Operator *
operator_of(const Span *name, const Span *overload)
{
    const Operators *known = atomic_load(&operators);
    for (int i = 0; known && i < known->count; i++)
        if (is_text(name, known->items[i].name) && is_text(overload, known->items[i].overload))
            return &known->items[i];
    return NULL;
}

/* Whether every buffer is one that can be viewed, in an order that is one of its dimensions. */
static int
check_buffers(const Call *call, char *message)
{
    const Frame *frame = call->frame;
    int64_t operands = frame->operands.count, at = 0;
    for (int64_t i = 0; i < operands + frame->results.count; i++) {
        int type = i < operands ? frame->operands.types[i] : frame->results.types[i - operands];
        if (type != BUFFER)
            return fail(message, "operand or result %lld is no array", (long long)i);
        const Buffer *buffer = buffer_of(frame, i);
        if (buffer->rank < 0 || buffer->rank > MOST_DIMENSIONS)
            return fail(message, "operand or result %lld has %lld dimensions, more than %d",
                        (long long)i, (long long)buffer->rank, MOST_DIMENSIONS);
        unsigned seen = 0;
        for (int64_t k = 0; k < buffer->rank && at < call->orders.size; k++) {
            int64_t dim = call->orders.data[at++];
            seen |= dim >= 0 && dim < buffer->rank ? 1u << dim : 0;
        }
        if (seen != (1u << buffer->rank) - 1)
            return fail(message, "the order of operand or result %lld is none", (long long)i);
    }
    return 0;
}

static int
check_cuts(Call *call, char *message)
{
    const Frame *frame = call->frame;
    for (int64_t i = 0; i < call->cuts.size; i++) {
        const Buffer *buffer = buffer_of(frame, i);
        int64_t dim = call->cuts.data[i];
        if (dim < 0)
            continue;
        if (dim >= buffer->rank || (call->is_cut && buffer->dims[dim] != call->length))
            return fail(message, "what is cut is not of one length");
        call->length = buffer->dims[dim];
        call->is_cut = true;
    }
    /* Each part would write the whole result. */
    for (int64_t i = frame->operands.count; call->is_cut && i < call->cuts.size; i++)
        if (call->cuts.data[i] < 0)
            return fail(message, "a result is not cut, and others are");
    return 0;
}

static int
read_call(const Frame *frame, Call *call, char *message)
{
    const Attributes *attributes = &frame->attributes;
    const Span empty = {"", 0}, *name = &empty, *overload = &empty;
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
        const Span *key = attributes->names[i];
        if (attributes->types[i] == STRING && is_text(key, "name"))
            name = attributes->values[i];
        if (attributes->types[i] == STRING && is_text(key, "overload"))
            overload = attributes->values[i];
        if (attributes->types[i] != ARRAY)
            continue;
        const Array *array = attributes->values[i];
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
            if (array->dtype == S64 && is_text(key, wanted[k].name))
                *wanted[k].where = (Numbers){array->data, (int64_t)array->size};
    }
    int64_t count = frame->operands.count + frame->results.count;
    call->operator = operator_of(name, overload);
    if (!call->operator)
        return fail(message, "'%.*s.%.*s' is no operator that it may call",
                    name->size < 64 ? (int)name->size : 64, name->data,
                    overload->size < 64 ? (int)overload->size : 64, overload->data);
    if (call->cuts.size != count || grain.size != 2 ||
        call->returns.size != call->operator->returns)
        return fail(message, "its attributes are not those that the bridge writes");
    for (int64_t i = 0; i < call->returns.size; i++)
        if (call->returns.data[i] >= frame->results.count)
            return fail(message, "result %lld is none", (long long)call->returns.data[i]);
    call->grain = grain.data[0];
    call->pieces = grain.data[1];
    return check_buffers(call, message) || check_cuts(call, message) ? -1 : 0;
}

typedef struct {
    const Call *call;
    char *message;
    int failed;
} Errand;

static void *
run_errand(void *data)
{
    Errand *errand = data;
    errand->failed = run_in_parts(errand->call, errand->message);
    return NULL;
}

/* A mode of Python's that is on for this thread, such as one of fake tensors, would see the
 * operator and could do anything in its place. It is of no concern to a program that is compiled:
 * that goes to a thread where no mode is on. */
static int
run_beside_modes(const Call *call, char *message)
{
    Errand errand = {call, message, 0};
    pthread_t thread;
    if (!torch.any_modes || !torch.any_modes(false))
        return run_in_parts(call, message);
    if (pthread_create(&thread, NULL, run_errand, &errand))
        return fail(message, "there is no thread on which no mode of PyTorch is on");
    pthread_join(thread, NULL);
    return errand.failed;
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
    if (read_call(frame, &call, message))
        return refuse(frame, INVALID_ARGUMENT, &call, message);
    if (run_beside_modes(&call, message))
        return refuse(frame, INTERNAL, &call, message);
    return NULL;
}

/* -- the module ------------------------------------------------------------------------------ */

static bool
read_operator(PyObject *item, Operator *operator)
{
    const char *name, *overload, *kinds, *lengths;
    int returns;
    if (!PyArg_ParseTuple(item, "ssssi", &name, &overload, &kinds, &lengths, &returns))
        return false;
    if (strlen(name) >= sizeof operator->name || strlen(overload) >= sizeof operator->overload ||
        strlen(kinds) >= sizeof operator->kinds || strlen(lengths) >= sizeof operator->lengths ||
        returns < 0 || returns > MOST_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError, "operator %s.%s is longer than there is room", name,
                     overload);
        return false;
    }
    strcpy(operator->name, name);
    strcpy(operator->overload, overload);
    strcpy(operator->kinds, kinds);
    strcpy(operator->lengths, lengths);
    operator->returns = returns;
    return true;
}

static Operators *
read_operators(PyObject *given)
{
    Py_ssize_t count = PyTuple_Size(given);
    if (count > MOST_OPERATORS)
        PyErr_Format(PyExc_ValueError, "found %zd operators, expected at most %d", count,
                     MOST_OPERATORS);
    if (count < 0 || count > MOST_OPERATORS)
        return NULL;
    Operators *found = calloc(1, sizeof *found);
    if (!found) {
        PyErr_NoMemory();
        return NULL;
    }
    for (; found->count < count; found->count++)
        if (!read_operator(PyTuple_GetItem(given, found->count), &found->items[found->count])) {
            free(found);
            return NULL;
        }
    return found;
}

static PyObject *
connect(PyObject *self, PyObject *arguments)
{
    PyObject *path, *given, *name = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OO!", &path, &PyTuple_Type, &given) ||
        !PyUnicode_FSConverter(path, &name))
        return NULL;
    void *library = dlopen(PyBytes_AsString(name), RTLD_NOW | RTLD_LOCAL);
    Py_DECREF(name);
    if (!library)
        return PyErr_Format(PyExc_OSError, "%s", dlerror());
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!dlsym(library, FUNCTIONS[i].name))
            return PyErr_Format(PyExc_LookupError, "%R has no function %s", path,
                                FUNCTIONS[i].name);
    Operators *found = read_operators(given);
    if (!found)
        return NULL;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        *(void **)FUNCTIONS[i].where = dlsym(library, FUNCTIONS[i].name);
    *(void **)&torch.set_blas_threads = dlsym(library, "MKL_Set_Num_Threads_Local");
    *(void **)&torch.any_modes =
        dlsym(library, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb");
    /* The list before, if any, stays: a call may be reading it. */
    atomic_store(&operators, found);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"connect", connect, METH_VARARGS,
     "Find the functions of libtorch_cpu at a path; call these operators."},
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
