/* See gather.h. */

#include "gather.h"

#include "divide.h"

#include <string.h>

static const char NAME[] = "A gather along a dimension";

/* Elements that are worth waking a thread; of which one look finds if any is outside. */
enum { WORTH_A_THREAD = 1 << 16, FEW = 8 };

typedef struct {
    const char *array, *positions;
    char *result;
    int64_t length, rows, count, inner; /* Rows are those of all outer ones. */
    int64_t to_outer, to_next; /* Positions from an outer one to the next; from a row. */
    int64_t width;             /* Bytes of an element. */
    bool is_wide;              /* Positions are int64, else int32. */
} Gather;

typedef struct {
    uint64_t low, high;
} Pair;

/* The nearest position in an array. A branch that is not taken costs less than two comparisons. */
static inline int64_t
within(int64_t position, int64_t last)
{
    if (__builtin_expect((uint64_t)position > (uint64_t)last, 0))
        return position < 0 ? 0 : last;
    return position;
}

/* Rows of the result, for a type of elements and one of positions. */
#define LOOPS(NAME, TYPE, POSITION)                                                                \
    static void NAME(const Gather *g, int64_t begin, int64_t end)                                  \
    {                                                                                              \
        const int64_t last = g->length - 1, inner = g->inner;                                      \
        for (int64_t row = begin; row < end;) {                                                    \
            const int64_t outer = row / g->count, first = row - outer * g->count;                  \
            const int64_t left = end - row, rows = g->count - first;                               \
            const int64_t taken = rows < left ? rows : left;                                       \
            const TYPE *array = (const TYPE *)(const void *)g->array + outer * g->length * inner;  \
            const POSITION *at = (const POSITION *)(const void *)g->positions +                    \
                                 outer * g->to_outer + first * g->to_next;                         \
            TYPE *restrict result = (TYPE *)(void *)g->result + row * inner;                       \
            /* Few at once: one branch for all of them. */                                         \
            int64_t done = 0;                                                                      \
            for (; inner == 1 && done + FEW <= taken; done += FEW, at += FEW) {                    \
                bool is_outside = false;                                                           \
                for (int k = 0; k < FEW; k++)                                                      \
                    is_outside |= (uint64_t)at[k] > (uint64_t)last;                                \
                if (__builtin_expect(is_outside, 0))                                               \
                    for (int k = 0; k < FEW; k++)                                                  \
                        result[done + k] = array[within(at[k], last)];                             \
                else                                                                               \
                    for (int k = 0; k < FEW; k++)                                                  \
                        result[done + k] = array[at[k]];                                           \
            }                                                                                      \
            for (int64_t k = 0; inner == 1 && k < taken - done; k++)                               \
                result[done + k] = array[within(at[k], last)];                                     \
            for (int64_t k = 0; inner > 1 && k < taken; k++, at += g->to_next, result += inner) {  \
                if (g->to_next == 1)                                                               \
                    memcpy(result, array + within(*at, last) * inner,                              \
                           (size_t)inner * sizeof *result);                                        \
                else                                                                               \
                    for (int64_t i = 0; i < inner; i++)                                            \
                        result[i] = array[within(at[i], last) * inner + i];                        \
            }                                                                                      \
            row += taken;                                                                          \
        }                                                                                          \
    }

#define BOTH(NAME, TYPE)                                                                           \
    LOOPS(NAME##_narrow, TYPE, int32_t)                                                            \
    LOOPS(NAME##_wide, TYPE, int64_t)

BOTH(of_1, uint8_t)
BOTH(of_2, uint16_t)
BOTH(of_4, uint32_t)
BOTH(of_8, uint64_t)
BOTH(of_16, Pair)
static void (*const RUN[][2])(const Gather *, int64_t, int64_t) = {
    [1] = {of_1_narrow, of_1_wide},    [2] = {of_2_narrow, of_2_wide},
    [4] = {of_4_narrow, of_4_wide},    [8] = {of_8_narrow, of_8_wide},
    [16] = {of_16_narrow, of_16_wide},
};

/* What a program says of a gather, which may come from anywhere. */
static int
read_gather(const Frame *frame, Gather *gather, char *message)
{
    const Buffer *all[3];
    if (read_arrays(frame, 2, 1, all, message))
        return -1;
    const Buffer *array = all[0], *positions = all[1], *result = all[2];
    const int64_t width = size_of_type(array->dtype);
    if (!width || result->dtype != array->dtype ||
        (positions->dtype != S64 && positions->dtype != S32))
        return fail(message, "found element types %d and %d, expected one of whole bytes and int32 "
                    "or int64", array->dtype, positions->dtype);
    bool fits = array->rank == 3 && positions->rank == 3 && result->rank == 3;
    for (int d = 0; fits && d < 3; d++)
        fits = (d == 1 || result->dims[d] == array->dims[d]) &&
               (positions->dims[d] == result->dims[d] || (d != 1 && positions->dims[d] == 1));
    if (!fits || (!array->dims[1] && count_of(result)))
        return fail(message, "its operands and its result do not fit each other");
    *gather = (Gather){
        .array = array->data, .positions = positions->data, .result = result->data,
        .length = array->dims[1], .rows = result->dims[0] * result->dims[1],
        .count = result->dims[1], .inner = result->dims[2],
        .to_next = positions->dims[2], .width = width, .is_wide = positions->dtype == S64,
    };
    if (positions->dims[0] > 1)
        gather->to_outer = positions->dims[1] * positions->dims[2];
    return 0;
}

static int
gather_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Gather *gather = data;
    (void)message;
    RUN[gather->width][gather->is_wide](gather, begin, end);
    return 0;
}

Error *
gather_along(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Gather gather;
    if (check_caller(frame, message) || read_gather(frame, &gather, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (!gather.rows || !gather.inner)
        return NULL;
    const Division division = {gather_range, &gather, gather.rows, WORTH_A_THREAD / gather.inner + 1, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
