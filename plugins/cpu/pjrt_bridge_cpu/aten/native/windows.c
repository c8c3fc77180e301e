/* See windows.h. */

#include "windows.h"

#include "divide.h"

#include <string.h>

static const char NAME[] = "A write of windows";

/* Bytes that are worth waking a thread. */
enum { WORTH_A_THREAD = 1 << 19, MOST_RANK = 16 };

typedef struct {
    const char *windows;
    char *result;
    const int64_t *positions;
    int64_t rank, count, named; /* Of the array; windows; dimensions that a position names. */
    const int64_t *dims, *names;
    int64_t sizes[MOST_RANK]; /* Of a window. */
    /* Bytes from an element to the next one along a dimension, and from a window to the next. */
    int64_t to[MOST_RANK], from[MOST_RANK], between;
    int64_t size;     /* Bytes of an element. */
    int64_t divided;  /* The dimension along which threads divide the windows; -1: none. */
    int64_t together; /* From which dimension on all elements lie side by side in both. */
} Writes;

/* The attribute; NULL where it is none that fits the arrays. */
static const int64_t *
read_how(const Frame *frame, int64_t rank, int64_t named)
{
    const int64_t *how = array_of(frame, "how", S64, (size_t)(named + 1));
    bool fits = how && how[0] >= 0 && how[0] <= rank;
    for (int64_t k = 1; k <= named; k++)
        fits = fits && how[k] >= 0 && how[k] < rank;
    return fits ? how : NULL;
}

static void
set_steps(Writes *writes, const Buffer *windows, int64_t counting)
{
    int64_t to = writes->size, from = writes->size;
    for (int64_t d = writes->rank, w = windows->rank - 1; w >= 0; w--) {
        if (w == counting) {
            writes->between = from;
        } else {
            d--;
            writes->sizes[d] = windows->dims[w];
            writes->to[d] = to, writes->from[d] = from;
            to *= writes->dims[d];
        }
        from *= windows->dims[w];
    }
    /* Windows that overlap are written in order where each thread has a range of all of them. */
    writes->divided = -1;
    for (int64_t d = 0; d < writes->rank; d++) {
        bool is_named = false;
        for (int64_t k = 0; k < writes->named; k++)
            is_named = is_named || writes->names[k] == d;
        if (!is_named && (writes->divided < 0 || writes->sizes[d] > writes->sizes[writes->divided]))
            writes->divided = d;
    }
    writes->together = writes->rank;
    for (int64_t d = writes->rank - 1, run = writes->size; d >= 0; d--) {
        if (writes->to[d] != run || writes->from[d] != run)
            break;
        writes->together = d;
        run *= writes->sizes[d];
    }
}

/* What a program says of a write, which may come from anywhere. */
static int
read_writes(const Frame *frame, Writes *writes, char *message)
{
    const Buffer *all[4];
    if (read_arrays(frame, 3, 1, all, message))
        return -1;
    const Buffer *array = all[0], *positions = all[1], *windows = all[2], *result = all[3];
    int64_t size = size_of_type(array->dtype), rank = array->rank;
    if (!size || windows->dtype != array->dtype || result->dtype != array->dtype ||
        positions->dtype != S64)
        return fail(message, "found element types %d, %d and %d, expected one of whole bytes, "
                    "int64 and the first one", array->dtype, positions->dtype, windows->dtype);
    if (positions->rank != 2 || rank > MOST_RANK || windows->rank != rank + 1 ||
        result->rank != rank)
        return fail(message, "its operands and its result do not fit each other");
    const int64_t *how = read_how(frame, rank, positions->dims[1]);
    if (!how)
        return fail(message, "its attributes are not those that the bridge writes");
    bool fits = windows->dims[how[0]] == positions->dims[0];
    for (int64_t d = 0; d < rank; d++)
        fits = fits && result->dims[d] == array->dims[d] &&
               windows->dims[d + (d >= how[0])] <= array->dims[d];
    if (!fits)
        return fail(message, "its operands and its result do not fit each other");
    *writes = (Writes){
        .windows = windows->data, .result = result->data,
        .positions = (const int64_t *)positions->data, .rank = rank,
        .count = positions->dims[0], .named = positions->dims[1], .dims = array->dims,
        .names = how + 1, .size = size,
    };
    set_steps(writes, windows, how[0]);
    copy_array(result, array, size);
    return 0;
}

/* Copy a window from its dimension d on, of that which is divided only a range. */
static void
copy(const Writes *writes, int64_t d, char *to, const char *from, int64_t begin, int64_t end)
{
    if (d == writes->rank || (d >= writes->together && writes->divided < d)) {
        int64_t bytes = d == writes->rank ? writes->size : writes->to[d] * writes->sizes[d];
        memcpy(to, from, (size_t)bytes);
        return;
    }
    bool is_divided = d == writes->divided;
    int64_t first = is_divided ? begin : 0, last = is_divided ? end : writes->sizes[d];
    if (is_divided && d >= writes->together) {
        memcpy(to + first * writes->to[d], from + first * writes->from[d],
               (size_t)((last - first) * writes->to[d]));
        return;
    }
    for (int64_t i = first; i < last; i++)
        copy(writes, d + 1, to + i * writes->to[d], from + i * writes->from[d], begin, end);
}

static int
write_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Writes *writes = data;
    (void)message;
    for (int64_t i = 0; i < writes->count; i++) {
        int64_t offset = 0;
        bool is_inside = true;
        for (int64_t k = 0; k < writes->named; k++) {
            int64_t d = writes->names[k], at = writes->positions[i * writes->named + k];
            is_inside = is_inside && at >= 0 && at <= writes->dims[d] - writes->sizes[d];
            offset += is_inside ? at * writes->to[d] : 0;
        }
        if (is_inside)
            copy(writes, 0, writes->result + offset, writes->windows + i * writes->between, begin,
                 end);
    }
    return 0;
}

Error *
write_windows(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Writes writes;
    if (check_caller(frame, message) || read_writes(frame, &writes, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    int64_t bytes = writes.size * writes.count;
    for (int64_t d = 0; d < writes.rank; d++)
        bytes *= writes.sizes[d];
    if (!bytes)
        return NULL;
    int64_t length = writes.divided < 0 ? 1 : writes.sizes[writes.divided];
    const Division division = {write_range, &writes, length,
                               WORTH_A_THREAD / (bytes / length + 1) + 1, 1};
    /* What cannot be divided is one part, whose range is of no dimension. */
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
