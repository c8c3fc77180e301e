/* See positions.h. */

#include "positions.h"

#include "divide.h"
#include "vectors.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>

static const char NAME[] = "A check of positions";

/* Positions that are worth waking a thread. */
enum { WORTH_A_THREAD = 1 << 16 };

typedef struct {
    const Buffer *given;
    int64_t count;
    const int64_t *range; /* The smallest and the largest position. */
    const Span *where;
    const Span *refusal; /* What an error says instead of the range; may be NULL. */
    atomic_llong *smallest, *largest;
} Check;

/* What a program says of a check, which may come from anywhere. */
static int
read_check(const Frame *frame, Check *check, char *message)
{
    if (read_where(frame, &check->where, message))
        return -1;
    check->refusal = text_of(frame, "refusal");
    if (frame->operands.count != 2 || frame->results.count != 1 ||
        frame->operands.types[0] != BUFFER || frame->operands.types[1] != BUFFER ||
        frame->results.types[0] != BUFFER)
        return fail(message, "expected two operands and one result, all arrays");
    const Buffer *range = frame->operands.buffers[1], *done = frame->results.buffers[0];
    check->given = frame->operands.buffers[0];
    if (!REACHES(check->given->size, Buffer, dims) || !REACHES(range->size, Buffer, dims) ||
        !REACHES(done->size, Buffer, dims))
        return fail(message, "an operand or its result ends early");
    if (range->dtype != S64 || count_of(range) != 2)
        return fail(message, "the range is not two int64");
    check->range = (const int64_t *)range->data;
    check->count = count_of(check->given);
    if (check->given->dtype != S64 && check->given->dtype != S32)
        return fail(message, "the positions are not int32 or int64");
    if (done->dtype != PRED || count_of(done) != 1)
        return fail(message, "its result is not one bool");
    *done->data = 1;
    return 0;
}

/* The smallest and the largest of a range, in a loop for each kind of vectors. */
#define EXTREMES(NAME, TARGET, TYPE)                                                               \
    TARGET static void NAME(const TYPE *positions, int64_t count, int64_t *ends)                   \
    {                                                                                              \
        TYPE low = positions[0], high = low;                                                       \
        for (int64_t i = 1; i < count; i++) {                                                      \
            low = positions[i] < low ? positions[i] : low;                                         \
            high = positions[i] > high ? positions[i] : high;                                      \
        }                                                                                          \
        ends[0] = low, ends[1] = high;                                                             \
    }

EXTREMES(narrow_portable, , int32_t)
EXTREMES(narrow_avx2, FOR_AVX2, int32_t)
EXTREMES(narrow_avx512, FOR_AVX512, int32_t)
EXTREMES(wide_portable, , int64_t)
EXTREMES(wide_avx2, FOR_AVX2, int64_t)
EXTREMES(wide_avx512, FOR_AVX512, int64_t)

typedef void Narrow(const int32_t *, int64_t, int64_t *);
typedef void Wide(const int64_t *, int64_t, int64_t *);

static Narrow *const NARROW[] = {narrow_portable, narrow_avx2, narrow_avx512};
static Wide *const WIDE[] = {wide_portable, wide_avx2, wide_avx512};

static int
check_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Check *check = data;
    const void *positions = check->given->data;
    int64_t ends[2];
    (void)message;
    if (check->given->dtype == S64)
        WIDE[widest_vectors()]((const int64_t *)positions + begin, end - begin, ends);
    else
        NARROW[widest_vectors()]((const int32_t *)positions + begin, end - begin, ends);
    const int64_t smallest = ends[0], largest = ends[1];
    int64_t known = atomic_load(check->smallest);
    while (smallest < known && !atomic_compare_exchange_weak(check->smallest, &known, smallest))
        ;
    known = atomic_load(check->largest);
    while (largest > known && !atomic_compare_exchange_weak(check->largest, &known, largest))
        ;
    return 0;
}

/* The bytes of a text that a message has room for, beside others. */
static int
shown(const Span *text)
{
    return (int)(text->size < MESSAGE / 3 ? text->size : MESSAGE / 3);
}

Error *
check_positions(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Check check = {0};
    if (check_caller(frame, message) || read_check(frame, &check, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    atomic_llong smallest = INT64_MAX, largest = INT64_MIN;
    check.smallest = &smallest, check.largest = &largest;
    const Division division = {check_range, &check, check.count, WORTH_A_THREAD, 1};
    if (check.count && divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    if (check.count && (smallest < check.range[0] || largest > check.range[1])) {
        if (check.refusal)
            fail(message, "OUT_OF_RANGE: %.*s: %.*s", shown(check.where), check.where->data,
                 shown(check.refusal), check.refusal->data);
        else
            fail(message, "OUT_OF_RANGE: %.*s: found indices from %lld to %lld, expected %lld to %lld",
                 shown(check.where), check.where->data, (long long)smallest, (long long)largest,
                 (long long)check.range[0], (long long)check.range[1]);
        ErrorArgs args = {sizeof args, NULL, message, OUT_OF_RANGE};
        return frame->api->create(&args);
    }
    return NULL;
}
