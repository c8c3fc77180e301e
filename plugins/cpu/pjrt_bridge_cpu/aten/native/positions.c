/* See positions.h. */

#include "positions.h"

#include "frame.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char NAME[] = "A check of positions";

typedef struct {
    const Buffer *given, *result;
    int64_t count;
    const int64_t *range; /* The smallest and the largest position. */
    const Span *where;
    const Span *refusal; /* What an error says instead of the range; may be NULL. */
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

static void
find_extremes(const Check *check, int64_t *smallest, int64_t *largest)
{
    if (check->given->dtype == S64) {
        const int64_t *positions = (const int64_t *)check->given->data;
        int64_t low = INT64_MAX, high = INT64_MIN;
        for (int64_t i = 0; i < check->count; i++) {
            low = positions[i] < low ? positions[i] : low;
            high = positions[i] > high ? positions[i] : high;
        }
        *smallest = low, *largest = high;
    } else {
        const int32_t *positions = (const int32_t *)check->given->data;
        int32_t low = INT32_MAX, high = INT32_MIN;
        for (int64_t i = 0; i < check->count; i++) {
            low = positions[i] < low ? positions[i] : low;
            high = positions[i] > high ? positions[i] : high;
        }
        *smallest = low, *largest = high;
    }
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
    int64_t smallest, largest;
    find_extremes(&check, &smallest, &largest);
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
    if (check.result->data != check.given->data)
        memcpy(check.result->data, check.given->data,
               (size_t)check.count * (check.given->dtype == S64 ? 8 : 4));
    return NULL;
}
