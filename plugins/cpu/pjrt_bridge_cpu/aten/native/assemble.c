/* See assemble.h. */

#include "assemble.h"

#include "divide.h"
#include "tiles.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char NAME[] = "An assembly";

/* Bytes that are worth waking a thread; the most of each that a call has; numbers of a box in the
 * attribute. */
enum {
    WORTH_A_THREAD = 1 << 18,
    MOST_OPERANDS = 16,
    MOST_BOXES = 64,
    MOST_DIMS = 6,
    BOX = 4 + MOST_DIMS + 3 * MOST_DIMS,
};

/* Bytes from which on a row is copied by the C library, and up to which at once; rows and columns of a tile of elements that lie
 * side by side along the rows. */
enum { FEW = 8, LONG_ROW = 64, LONGEST_COPY = 1 << 11, SIDE = 16 };

typedef struct {
    int64_t size, to, from;
} Dim;

/* Rows of elements, whose last dimension is that of the columns. */
typedef struct {
    Dim rows, columns;
} Part;

typedef void CopyPart(void *to, const void *from, const Part *part, int64_t width);

typedef struct {
    const char *data; /* Of the operand. */
    int64_t to, from; /* The first element in a slab, and in the operand. */
    int64_t size;     /* Elements. */
    int64_t outer[MOST_DIMS];
    int dims; /* At least two. */
    Dim along[MOST_DIMS];
} Box;

typedef struct {
    char *result;
    CopyPart *copy;
    int64_t slab, width; /* Elements of a slab; bytes of an element. */
    int outer_dims, count;
    int64_t outer[MOST_DIMS];
    Box boxes[MOST_BOXES];
} Assembly;

/* -- copies ---------------------------------------------------------------------------------- */

typedef struct {
    uint64_t halves[2];
} Wide;

/* Rows whose elements lie side by side, each read along the same step. */
#define COPY_ALONG(STEP)                                                                           \
    for (int64_t row = 0; row < rows.size; row++, to += rows.to, from += rows.from) {              \
        INDEPENDENT                                                                                \
        for (int64_t at = 0; at < count; at++)                                                     \
            to[at] = from[at * (STEP)];                                                            \
    }

/* In tiles, as elements that lie side by side in the operand are read for several rows. */
#define COPY_TILES(TILE)                                                                           \
    for (int64_t left = 0; left < count; left += SIDE)                                        \
        for (int64_t top = 0; top < rows.size; top += SIDE) {                                 \
            const int64_t right = count < left + SIDE ? count : left + SIDE;             \
            const int64_t end = rows.size < top + SIDE ? rows.size : top + SIDE;         \
            TILE                                                                                   \
        }

#define COPY_TILE                                                                                  \
    for (int64_t row = top; row < end; row++)                                                      \
        for (int64_t at = left; at < right; at++)                                                  \
            to[row * rows.to + at * columns.to] = from[row * rows.from + at * columns.from];

#define COPY(TARGET, NAME, TYPE, TURN)                                                             \
    TARGET static void NAME(TYPE *to, const TYPE *from, const Part *part)                          \
    {                                                                                              \
        const Dim rows = part->rows, columns = part->columns;                                      \
        const int64_t count = columns.size;                                                        \
        const bool lies = columns.to == 1, is_turned = llabs(rows.from) == 1 && rows.size > 3;     \
        if (count < FEW && rows.size > count && !is_turned)                                        \
            for (int64_t at = 0; at < count; at++, to += columns.to, from += columns.from)         \
                for (int64_t row = 0; row < rows.size; row++)                                      \
                    to[row * rows.to] = from[row * rows.from];                                     \
        else if (lies && columns.from == 1 && count * (int64_t)sizeof *to >= LONG_ROW)                  \
            for (int64_t row = 0; row < rows.size; row++)                                          \
                copy_row(to + row * rows.to, from + row * rows.from, count * (int64_t)sizeof *to); \
        else if (lies && columns.from == 1)                                                        \
            COPY_ALONG(1)                                                                          \
        else if (lies && !columns.from)                                                            \
            COPY_ALONG(0)                                                                          \
        else if (lies && columns.from == -1)                                                       \
            COPY_ALONG(-1)                                                                         \
        else if (TURN && lies && is_turned && rows.from == 1)                                      \
            COPY_TILES(turn_tile(to, from, part, left, right, top, end);)                          \
        else if (is_turned)                                                                        \
            COPY_TILES(COPY_TILE)                                                                  \
        else if (lies && columns.from == 2)                                                        \
            COPY_ALONG(2)                                                                          \
        else                                                                                       \
            for (int64_t row = 0; row < rows.size; row++, to += rows.to, from += rows.from)        \
                for (int64_t at = 0; at < count; at++)                                             \
                    to[at * columns.to] = from[at * columns.from];                                 \
    }

/* A row that is not shorter than LONG_ROW. The C library takes other ways around the caches for a
 * large one, which other threads' work does not need. */
INLINE void
copy_row(void *to, const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LONGEST_COPY) {
        const int64_t left = bytes - at;
        memcpy((char *)to + at, (const char *)from + at,
               (size_t)(left < LONGEST_COPY ? left : LONGEST_COPY));
    }
}

/* A tile of rows and columns, of elements of four bytes. */
INLINE void
turn_tile(void *to, const void *from, const Part *part, int64_t left, int64_t right, int64_t top,
          int64_t end)
{
    const int64_t far = part->columns.from, width = part->rows.to;
    const int64_t last = left + (right - left) / 4 * 4, whole = top + (end - top) / 4 * 4;
    float *places = to;
    const float *sources = from;
    for (int64_t at = left; at < last; at += 4)
        for (int64_t row = top; row < whole; row += 4)
            turn_four(places + row * width + at, sources + at * far + row, far, width);
    for (int64_t row = whole; row < end; row++)
        for (int64_t at = left; at < last; at++)
            places[row * width + at] = sources[at * far + row];
    for (int64_t row = top; row < end; row++)
        for (int64_t at = last; at < right; at++)
            places[row * width + at] = sources[at * far + row];
}

#define COPIES(TARGET, END)                                                                        \
    COPY(TARGET, copy_bytes_##END, uint8_t, false)                                                 \
    COPY(TARGET, copy_halves_##END, uint16_t, false)                                               \
    COPY(TARGET, copy_words_##END, uint32_t, true)                                                 \
    COPY(TARGET, copy_longs_##END, uint64_t, false)                                                \
    COPY(TARGET, copy_wides_##END, Wide, false)                                                    \
    TARGET static void copy_part_##END(void *to, const void *from, const Part *part, int64_t width) \
    {                                                                                              \
        if (width == 1)                                                                            \
            copy_bytes_##END(to, from, part);                                                      \
        else if (width == 2)                                                                       \
            copy_halves_##END(to, from, part);                                                     \
        else if (width == 4)                                                                       \
            copy_words_##END(to, from, part);                                                      \
        else if (width == 8)                                                                       \
            copy_longs_##END(to, from, part);                                                      \
        else                                                                                       \
            copy_wides_##END(to, from, part);                                                      \
    }
#define PLAIN

COPIES(PLAIN, portable)
COPIES(FOR_AVX2, avx2)

/* -- what a program says --------------------------------------------------------------------- */

/* Widen the range of places from `*low` to `*high` by a dimension; false where that overflows. */
static bool
reach(int64_t size, int64_t step, int64_t *low, int64_t *high)
{
    int64_t way, *end = step < 0 ? low : high;
    return !__builtin_mul_overflow(size - 1, step, &way) &&
           !__builtin_add_overflow(*end, way, end);
}

/* A box of the attribute; whether it lies in a slab, and what it reads in the operand. */
static bool
read_box(const int64_t *numbers, const Assembly *assembly, int64_t elements, Box *box)
{
    const int64_t *outer = numbers + 4, *along = outer + MOST_DIMS;
    const int64_t dims = numbers[3];
    int64_t first = numbers[1], last = first, low = numbers[2], high = low;
    if (dims < 0 || dims > MOST_DIMS)
        return false;
    box->to = first, box->from = low, box->size = 1;
    for (int dim = 0; dim < assembly->outer_dims; dim++) {
        box->outer[dim] = outer[dim];
        if (!reach(assembly->outer[dim], outer[dim], &low, &high))
            return false;
    }
    /* Two dimensions are there always. */
    box->dims = dims < 2 ? 2 : (int)dims;
    const int missing = box->dims - (int)dims;
    for (int dim = 0; dim < box->dims; dim++) {
        const int64_t *own = along + 3 * (dim - missing);
        const Dim found = dim < missing ? (Dim){1, 1, 1} : (Dim){own[0], own[1], own[2]};
        if (found.size < 1 || found.to < 0 ||
            __builtin_mul_overflow(box->size, found.size, &box->size) ||
            !reach(found.size, found.to, &first, &last) ||
            !reach(found.size, found.from, &low, &high))
            return false;
        box->along[dim] = found;
    }
    return first >= 0 && last < assembly->slab && low >= 0 && high < elements;
}

static int
read_assembly(const Frame *frame, Assembly *assembly, char *message)
{
    const Buffers *operands = &frame->operands, *results = &frame->results;
    int64_t outer_dims = 0, count = 0, slabs = 1, elements = 0;
    const int64_t *outer = list_of(frame, "outer", S64, 1, &outer_dims);
    const int64_t *numbers = list_of(frame, "boxes", S64, BOX, &count);
    if (operands->count < 1 || operands->count > MOST_OPERANDS || results->count != 1)
        return fail(message, "found %lld operands and %lld results, expected 1 to %d and 1",
                    (long long)operands->count, (long long)results->count, MOST_OPERANDS);
    for (int64_t index = 0; index <= operands->count; index++) {
        const bool is_result = index == operands->count;
        const Buffers *side = is_result ? results : operands;
        const int64_t at = is_result ? 0 : index;
        if (side->types[at] != BUFFER || !REACHES(side->buffers[at]->size, Buffer, dims))
            return fail(message, "an operand or the result is no array, or ends early");
    }
    const Buffer *result = results->buffers[0];
    assembly->width = size_of_type(result->dtype);
    if (!outer || !numbers || outer_dims > MOST_DIMS || count > MOST_BOXES || !assembly->width)
        return fail(message, "its attributes or its result are not those that the bridge writes");
    for (int64_t dim = 0; dim < outer_dims; dim++)
        if (outer[dim] < 1 || __builtin_mul_overflow(slabs, outer[dim], &slabs))
            return fail(message, "dimension %lld of slabs has %lld elements", (long long)dim,
                        (long long)outer[dim]);
    const int64_t size = count_of(result);
    if (size % slabs)
        return fail(message, "%lld elements are no %lld slabs", (long long)size, (long long)slabs);
    assembly->result = result->data;
    assembly->slab = size / slabs;
    assembly->outer_dims = (int)outer_dims, assembly->count = (int)count;
    static CopyPart *const COPIES[] = {copy_part_portable, copy_part_avx2, copy_part_avx2};
    assembly->copy = COPIES[widest_vectors()];
    memcpy(assembly->outer, outer, (size_t)outer_dims * sizeof *outer);
    for (int64_t index = 0; index < count; index++, numbers += BOX) {
        const int64_t at = numbers[0];
        if (at < 0 || at >= operands->count)
            return fail(message, "box %lld is of operand %lld", (long long)index, (long long)at);
        const Buffer *array = operands->buffers[at];
        Box *box = &assembly->boxes[index];
        if (array->dtype != result->dtype || !read_box(numbers, assembly, count_of(array), box) ||
            __builtin_add_overflow(elements, box->size, &elements))
            return fail(message, "box %lld does not fit operand %lld and the result",
                        (long long)index, (long long)at);
        box->data = array->data;
    }
    if (elements != assembly->slab)
        return fail(message, "its boxes have %lld elements, expected %lld", (long long)elements,
                    (long long)assembly->slab);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* Elements of a box in the order of its dimensions, from one on.
 *
 * to: the slab. from: the operand, where the slab begins to read it. */
static void
copy_box(const Assembly *assembly, const Box *box, char *to, const char *from, int64_t begin,
         int64_t count)
{
    const Dim rows = box->along[box->dims - 2], columns = box->along[box->dims - 1];
    const int64_t width = assembly->width;
    while (count > 0) {
        const int64_t column = begin % columns.size, row = begin / columns.size % rows.size;
        int64_t place = row * rows.to + column * columns.to;
        int64_t source = row * rows.from + column * columns.from;
        int64_t rest = begin / columns.size / rows.size;
        for (int dim = box->dims - 3; dim >= 0; dim--) {
            const Dim along = box->along[dim];
            place += rest % along.size * along.to;
            source += rest % along.size * along.from;
            rest /= along.size;
        }
        Part part = {rows, columns};
        if (column || count < columns.size) {
            const int64_t left = columns.size - column;
            part.rows.size = 1;
            part.columns.size = count < left ? count : left;
        } else {
            const int64_t left = rows.size - row, whole = count / columns.size;
            part.rows.size = whole < left ? whole : left;
        }
        assembly->copy(to + place * width, from + source * width, &part, width);
        begin += part.rows.size * part.columns.size;
        count -= part.rows.size * part.columns.size;
    }
}

/* A range of elements: slab by slab, and box by box in each. */
static int
assemble_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Assembly *assembly = data;
    const int64_t width = assembly->width;
    (void)message;
    int64_t slab = begin / assembly->slab, within = begin % assembly->slab;
    for (int64_t left = end - begin; left > 0; slab++, within = 0) {
        char *to = assembly->result + slab * assembly->slab * width;
        for (int index = 0; index < assembly->count && left > 0; index++) {
            const Box *box = &assembly->boxes[index];
            if (within >= box->size) {
                within -= box->size;
                continue;
            }
            int64_t source = box->from, rest = slab;
            for (int dim = assembly->outer_dims - 1; dim >= 0; dim--) {
                source += rest % assembly->outer[dim] * box->outer[dim];
                rest /= assembly->outer[dim];
            }
            const int64_t most = box->size - within, count = most < left ? most : left;
            copy_box(assembly, box, to + box->to * width, box->data + source * width, within,
                     count);
            left -= count;
            within = 0;
        }
    }
    return 0;
}

Error *
assemble_boxes(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Assembly *assembly = calloc(1, sizeof *assembly);
    if (!assembly)
        return refuse(frame, INTERNAL, NAME, "no memory is left");
    int code = 0;
    if (check_caller(frame, message) || read_assembly(frame, assembly, message))
        code = INVALID_ARGUMENT;
    else if (assembly->slab) {
        const int64_t size = count_of(frame->results.buffers[0]);
        const int64_t grain = WORTH_A_THREAD / assembly->width;
        const Division division = {assemble_range, assembly, size, grain, 1};
        if (divide(frame, &division, message))
            code = INTERNAL;
    }
    free(assembly);
    return code ? refuse(frame, code, NAME, message) : NULL;
}
