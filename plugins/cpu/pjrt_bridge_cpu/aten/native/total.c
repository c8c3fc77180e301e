/* See total.h. */

#include "total.h"

#include "divide.h"
#include "vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char NAME[] = "A reduction";

typedef enum { SUM, LARGEST, SMALLEST, HOWS } How;

/* Elements that are worth waking a thread, and of a part; numbers that are reduced side by side;
 * elements of a row, or rows, that are reduced before they are added to the others; columns at
 * once. */
enum { WORTH_A_THREAD = 1 << 15, PART = 1 << 16, SIDES = 32, BLOCK = 1024, ROWS = 64, COLUMNS = 256 };

typedef struct {
    const char *given;
    char *result; /* (outer, parts, inner) of parts, where there are several. */
    int64_t outer, length, inner;
    int64_t part, parts, widths; /* Of the length, and of the columns. */
    int dtype;
    How how;
} Total;

/* -- numbers --------------------------------------------------------------------------------- */

#define WHOLE(TYPE, UNSIGNED, NAME, LOWEST, HIGHEST)                                               \
    INLINE TYPE NAME##_with(How how, TYPE x, TYPE y)                                               \
    {                                                                                              \
        if (how == SUM)                                                                            \
            return (TYPE)((UNSIGNED)x + (UNSIGNED)y);                                              \
        return (how == LARGEST ? x > y : x < y) ? x : y;                                           \
    }                                                                                              \
    INLINE TYPE NAME##_of_none(How how)                                                            \
    {                                                                                              \
        return how == SUM ? 0 : how == LARGEST ? LOWEST : HIGHEST;                                 \
    }

WHOLE(int32_t, uint32_t, narrow, INT32_MIN, INT32_MAX)
WHOLE(int64_t, uint64_t, wide, INT64_MIN, INT64_MAX)

INLINE double
real_with(How how, double x, double y)
{
    if (how == SUM)
        return x + y;
    return (how == LARGEST ? x > y : x < y) || x != x ? x : y;
}

INLINE double
real_of_none(How how)
{
    return how == SUM ? 0 : how == LARGEST ? -INFINITY : INFINITY;
}

/* -- reductions ------------------------------------------------------------------------------ */

#define REDUCTIONS(TYPE, NAME)                                                                     \
    INLINE TYPE NAME##_run(How how, const TYPE *x, int64_t count)                                  \
    {                                                                                              \
        TYPE total = NAME##_of_none(how);                                                          \
        for (int64_t block = 0; block < count; block += BLOCK) {                                   \
            const int64_t length = count - block < BLOCK ? count - block : BLOCK;                  \
            TYPE sides[SIDES];                                                                     \
            for (int side = 0; side < SIDES; side++)                                               \
                sides[side] = NAME##_of_none(how);                                                 \
            int64_t i = 0;                                                                         \
            for (; i + SIDES <= length; i += SIDES)                                                \
                INDEPENDENT for (int side = 0; side < SIDES; side++)                               \
                    sides[side] = NAME##_with(how, x[block + i + side], sides[side]);              \
            for (; i < length; i++)                                                                \
                sides[0] = NAME##_with(how, x[block + i], sides[0]);                               \
            for (int half = SIDES / 2; half; half /= 2)                                            \
                for (int side = 0; side < half; side++)                                            \
                    sides[side] = NAME##_with(how, sides[side + half], sides[side]);               \
            total = NAME##_with(how, sides[0], total);                                             \
        }                                                                                          \
        return total;                                                                              \
    }                                                                                              \
    INLINE void NAME##_columns(How how, const TYPE *x, int64_t rows, int64_t columns,              \
                               int64_t stride, TYPE *result)                                       \
    {                                                                                              \
        TYPE sums[COLUMNS], totals[COLUMNS];                                                       \
        for (int64_t i = 0; i < columns; i++)                                                      \
            totals[i] = NAME##_of_none(how);                                                       \
        for (int64_t block = 0; block < rows; block += ROWS) {                                     \
            const int64_t end = rows - block < ROWS ? rows : block + ROWS;                         \
            for (int64_t i = 0; i < columns; i++)                                                  \
                sums[i] = NAME##_of_none(how);                                                     \
            for (int64_t row = block; row < end; row++)                                            \
                INDEPENDENT for (int64_t i = 0; i < columns; i++)                                  \
                    sums[i] = NAME##_with(how, x[row * stride + i], sums[i]);                      \
            for (int64_t i = 0; i < columns; i++)                                                  \
                totals[i] = NAME##_with(how, sums[i], totals[i]);                                  \
        }                                                                                          \
        memcpy(result, totals, (size_t)columns * sizeof *result);                                  \
    }                                                                                              \
    INLINE void NAME##_units(How how, const Total *t, int64_t begin, int64_t end)                  \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++) {                                           \
            const int64_t from = unit % t->widths * COLUMNS, rest = unit / t->widths;              \
            const int64_t first = rest % t->parts * t->part, outer = rest / t->parts;              \
            const int64_t left = t->length - first, rows = left < t->part ? left : t->part;        \
            const int64_t columns = t->inner - from < COLUMNS ? t->inner - from : COLUMNS;         \
            const TYPE *x = (const TYPE *)(const void *)t->given +                                 \
                            (outer * t->length + first) * t->inner + from;                         \
            TYPE *result = (TYPE *)(void *)t->result + rest * t->inner + from;                     \
            if (t->inner == 1)                                                                     \
                *result = NAME##_run(how, x, rows);                                                \
            else                                                                                   \
                NAME##_columns(how, x, rows, columns, t->inner, result);                           \
        }                                                                                          \
    }                                                                                              \
    INLINE void NAME(const Total *t, int64_t begin, int64_t end)                                   \
    {                                                                                              \
        if (t->how == SUM)                                                                         \
            NAME##_units(SUM, t, begin, end);                                                      \
        else if (t->how == LARGEST)                                                                \
            NAME##_units(LARGEST, t, begin, end);                                                  \
        else                                                                                       \
            NAME##_units(SMALLEST, t, begin, end);                                                 \
    }                                                                                              \
    static void NAME##_portable(const Total *t, int64_t begin, int64_t end)                        \
    {                                                                                              \
        NAME(t, begin, end);                                                                       \
    }                                                                                              \
    FOR_AVX2 static void NAME##_avx2(const Total *t, int64_t begin, int64_t end)                   \
    {                                                                                              \
        NAME(t, begin, end);                                                                       \
    }                                                                                              \
    FOR_AVX512 static void NAME##_avx512(const Total *t, int64_t begin, int64_t end)               \
    {                                                                                              \
        NAME(t, begin, end);                                                                       \
    }

REDUCTIONS(int32_t, narrow)
REDUCTIONS(int64_t, wide)
REDUCTIONS(double, real)

typedef void Run(const Total *, int64_t, int64_t);

static Run *
run_of(int dtype)
{
    static Run *const RUN[][3] = {
        {narrow_portable, narrow_avx2, narrow_avx512},
        {wide_portable, wide_avx2, wide_avx512},
        {real_portable, real_avx2, real_avx512},
    };
    return RUN[dtype == S32 ? 0 : dtype == S64 ? 1 : 2][widest_vectors()];
}

static int
total_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Total *total = data;
    (void)message;
    run_of(total->dtype)(total, begin, end);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* What a program says of a reduction, which may come from anywhere. */
static int
read_total(const Frame *frame, Total *total, char *message)
{
    const Buffer *all[2];
    if (read_arrays(frame, 1, 1, all, message))
        return -1;
    const Buffer *given = all[0], *result = all[1];
    const int64_t *how = array_of(frame, "how", S64, 1);
    if (!how || *how < 0 || *how >= HOWS)
        return fail(message, "its attributes are not those that the bridge writes");
    if ((given->dtype != S32 && given->dtype != S64 && given->dtype != F64) ||
        result->dtype != given->dtype)
        return fail(message, "found element types %d and %d, expected twice int32, int64 or float64",
                    given->dtype, result->dtype);
    if (given->rank != 3 || result->rank != 2 || given->dims[0] != result->dims[0] ||
        given->dims[2] != result->dims[1] || given->dims[1] < 1)
        return fail(message, "its operand and its result do not fit each other");
    const int64_t inner = given->dims[2], columns = inner < COLUMNS ? inner : COLUMNS;
    const int64_t part = columns ? PART / columns : PART;
    *total = (Total){
        .given = given->data, .result = result->data, .outer = given->dims[0],
        .length = given->dims[1], .inner = inner, .part = part,
        .parts = (given->dims[1] + part - 1) / part, .widths = (inner + COLUMNS - 1) / COLUMNS,
        .dtype = given->dtype, .how = (How)*how,
    };
    return 0;
}

Error *
total_along(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Total total;
    if (check_caller(frame, message) || read_total(frame, &total, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    const int64_t units = total.outer * total.parts * total.widths;
    if (!units)
        return NULL;
    const Total whole = total;
    const size_t width = (size_t)size_of_type(total.dtype);
    if (total.parts > 1 &&
        !(total.result = malloc((size_t)(total.outer * total.parts * total.inner) * width)))
        return refuse(frame, INTERNAL, NAME, "no memory is left");
    const int64_t rows = total.length < total.part ? total.length : total.part;
    const int64_t columns = total.inner < COLUMNS ? total.inner : COLUMNS;
    const Division division = {
        total_range, &total, units, WORTH_A_THREAD / (rows * columns) + 1, 1,
    };
    const int failed = divide(frame, &division, message);
    if (!failed && total.parts > 1) {
        const Total last = {
            .given = total.result, .result = whole.result, .outer = total.outer,
            .length = total.parts, .inner = total.inner, .part = total.parts, .parts = 1,
            .widths = total.widths, .dtype = total.dtype, .how = total.how,
        };
        run_of(last.dtype)(&last, 0, last.outer * last.widths);
    }
    if (total.parts > 1)
        free(total.result);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}
