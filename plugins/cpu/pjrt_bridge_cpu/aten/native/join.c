/* See join.h. */

#include "join.h"

#include "divide.h"

#include <string.h>

static const char NAME[] = "A concatenation";

/* Bytes that are worth waking a thread; operands of a call. */
enum { WORTH_A_THREAD = 1 << 18, MOST_PARTS = 8 };

/* All in bytes. */
typedef struct {
    const char *data;      /* From the first element that is taken on. */
    int64_t row;           /* From one outer element to the next. */
    int64_t begin, length; /* In a row of the result. */
} Part;

typedef struct {
    char *result;
    int64_t row, rows; /* Bytes of a row of the result, and how many rows there are. */
    int count;
    Part parts[MOST_PARTS];
} Join;

/* What a program says of a concatenation, which may come from anywhere. */
static int
read_join(const Frame *frame, Join *join, char *message)
{
    const Buffer *all[MOST_PARTS + 1];
    const int64_t count = frame->operands.count;
    if (count < 1 || count > MOST_PARTS)
        return fail(message, "found %lld operands, expected 1 to %d", (long long)count, MOST_PARTS);
    if (read_arrays(frame, (int)count, 1, all, message))
        return -1;
    const Buffer *result = all[count];
    const int64_t *ranges = array_of(frame, "ranges", S64, (size_t)(2 * count));
    const int64_t width = size_of_type(result->dtype);
    if (!ranges || !width || result->rank != 3)
        return fail(message, "its attributes or its result are not those that the bridge writes");
    const int64_t inner = result->dims[2] * width;
    int64_t length = 0;
    for (int i = 0; i < count; i++) {
        const Buffer *array = all[i];
        const int64_t first = ranges[2 * i], last = ranges[2 * i + 1];
        if (array->dtype != result->dtype || array->rank != 3 ||
            array->dims[0] != result->dims[0] || array->dims[2] != result->dims[2] || first < 0 ||
            last < first || last > array->dims[1])
            return fail(message, "operand %d does not fit its range and the result", i);
        join->parts[i] = (Part){
            .data = array->data + first * inner, .row = array->dims[1] * inner,
            .begin = length * inner, .length = (last - first) * inner,
        };
        length += last - first;
    }
    if (length != result->dims[1])
        return fail(message, "its ranges have %lld elements, expected %lld", (long long)length,
                    (long long)result->dims[1]);
    join->result = result->data, join->count = (int)count;
    join->row = length * inner, join->rows = result->dims[0];
    return 0;
}

/* A range of the result's bytes. */
static int
join_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Join *join = data;
    (void)message;
    int64_t outer = begin / join->row, within = begin - outer * join->row;
    for (int64_t at = begin; at < end; outer++, within = 0)
        for (int i = 0; i < join->count && at < end; i++) {
            const Part *part = &join->parts[i];
            const int64_t skipped = within > part->begin ? within - part->begin : 0;
            if (skipped >= part->length)
                continue;
            const int64_t rest = part->length - skipped, left = end - at;
            const int64_t count = rest < left ? rest : left;
            memcpy(join->result + at, part->data + outer * part->row + skipped, (size_t)count);
            at += count;
        }
    return 0;
}

Error *
join_parts(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Join join;
    if (check_caller(frame, message) || read_join(frame, &join, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    const Division division = {join_range, &join, join.rows * join.row, WORTH_A_THREAD, 1};
    if (division.length && divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
