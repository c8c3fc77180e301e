/* See divisors.h. */

#include "divisors.h"

#include "frame.h"

#include <string.h>

static const char NAME[] = "A check of divisors";

/* Bytes of an integer or bool; 0 for other types. */
static size_t
width_of(int dtype)
{
    switch (dtype) {
    case PRED:
    case S8:
    case U8:
        return 1;
    case S16:
    case U16:
        return 2;
    case S32:
    case U32:
        return 4;
    case S64:
    case U64:
        return 8;
    default:
        return 0;
    }
}

/* Without a branch for each element, so that a loop takes several at once. */
#define HAS_ZERO(type, data, count)                                                                \
    do {                                                                                           \
        const type *divisors = (const type *)(data);                                               \
        for (int64_t i = 0; i < (count); i++)                                                      \
            found |= !divisors[i];                                                                 \
    } while (0)

static bool
has_zero(const char *data, int64_t count, size_t width)
{
    int found = 0;
    if (width == 1)
        HAS_ZERO(uint8_t, data, count);
    else if (width == 2)
        HAS_ZERO(uint16_t, data, count);
    else if (width == 4)
        HAS_ZERO(uint32_t, data, count);
    else
        HAS_ZERO(uint64_t, data, count);
    return found;
}

Error *
check_divisors(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    const Span *where = NULL;
    if (check_caller(frame, message) || read_where(frame, &where, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (frame->operands.count != 1 || frame->results.count != 1 ||
        frame->operands.types[0] != BUFFER || frame->results.types[0] != BUFFER)
        return refuse(frame, INVALID_ARGUMENT, NAME,
                      "expected one operand and one result, both arrays");
    const Buffer *given = frame->operands.buffers[0], *result = frame->results.buffers[0];
    if (!REACHES(given->size, Buffer, dims) || !REACHES(result->size, Buffer, dims))
        return refuse(frame, INVALID_ARGUMENT, NAME, "its operand or its result ends early");
    int64_t count = count_of(given);
    size_t width = width_of(given->dtype);
    if (!width || result->dtype != given->dtype || count_of(result) != count)
        return refuse(frame, INVALID_ARGUMENT, NAME,
                      "operand and result are not integers of one type and size");
    if (has_zero(given->data, count, width)) {
        size_t length = where->size < MESSAGE / 2 ? where->size : MESSAGE / 2;
        fail(message, "OUT_OF_RANGE: %.*s: an integer is divided by zero", (int)length, where->data);
        ErrorArgs args = {sizeof args, NULL, message, OUT_OF_RANGE};
        return frame->api->create(&args);
    }
    if (result->data != given->data)
        memcpy(result->data, given->data, (size_t)count * width);
    return NULL;
}
