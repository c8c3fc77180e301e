/* See positions.h. */

#include "positions.h"

#include "divide.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char NAME[] = "A check of positions";

/* Positions that are worth waking a thread; that are looked at before they are copied. */
enum { WORTH_A_THREAD = 1 << 16, BLOCK = 1024 };

typedef struct {
    const Buffer *given, *result;
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
    const Buffer *range = frame->operands.buffers[1];
    check->given = frame->operands.buffers[0];
    check->result = frame->results.buffers[0];
    if (!REACHES(check->given->size, Buffer, dims) || !REACHES(range->size, Buffer, dims) ||
        !REACHES(check->result->size, Buffer, dims))
        return fail(message, "an operand or its result ends early");
    if (range->dtype != S64 || count_of(range) != 2)
        return fail(message, "the range is not two int64");
    check->range = (const int64_t *)range->data;
    check->count = count_of(check->given);
    if ((check->given->dtype != S64 && check->given->dtype != S32) ||
        check->result->dtype != check->given->dtype || count_of(check->result) != check->count)
        return fail(message, "operand and result are not int32 or int64 of one size");
    return 0;
}

/* A block stays in the first cache while it is looked at and copied. */
#define CHECK_BLOCKS(TYPE, LOWEST, HIGHEST)                                                        \
    for (int64_t block = begin; block < end; block += BLOCK) {                                     \
        const int64_t next = end - block < BLOCK ? end : block + BLOCK;                            \
        const TYPE *positions = (const TYPE *)(const void *)check->given->data;                    \
        TYPE low = HIGHEST, high = LOWEST;                                                         \
        for (int64_t i = block; i < next; i++) {                                                   \
            low = positions[i] < low ? positions[i] : low;                                         \
            high = positions[i] > high ? positions[i] : high;                                      \
        }                                                                                          \
        smallest = low < smallest ? low : smallest;                                                \
        largest = high > largest ? high : largest;                                                 \
        if (check->result->data != check->given->data)                                             \
            memcpy((TYPE *)(void *)check->result->data + block, positions + block,                 \
                   (size_t)(next - block) * sizeof *positions);                                    \
    }

static int
check_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Check *check = data;
    int64_t smallest = INT64_MAX, largest = INT64_MIN;
    (void)message;
    if (check->given->dtype == S64) {
        CHECK_BLOCKS(int64_t, INT64_MIN, INT64_MAX)
    } else {
        CHECK_BLOCKS(int32_t, INT32_MIN, INT32_MAX)
    }
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
