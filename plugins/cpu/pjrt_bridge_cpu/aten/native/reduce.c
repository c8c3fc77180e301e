/* See reduce.h. */

#include "reduce.h"

#include "divide.h"
#include "expression.h"
#include "functions.h"

#include <stdlib.h>

static const char NAME[] = "A reduction of an expression";

typedef enum { SUM, LARGEST, SMALLEST, HOWS } How;

/* Steps times elements that are worth waking a thread; elements of a part of what is reduced; rows
 * that are summed in float32 before they are added to the others; numbers that are reduced side by
 * side. */
enum { WORTH_A_THREAD = 1 << 17, PART = 1 << 16, ROWS = 64, SIDES = 32 };

/* Parts of what is reduced are units of work, which have results of their own. */
typedef struct {
    Expression expression;
    int64_t outer, length, inner;
    How how;
    int64_t part, parts;     /* Of the elements that are reduced. */
    int64_t columns, widths; /* Of the inner ones: of a unit, and how many units they make. */
    double *partial;         /* (outer, parts, inner) where there are several parts. */
    RunBlock *run;
} Reduction;

/* What one thread has, beside registers. */
typedef struct {
    Workspace work;
    _Alignas(64) float sums[BLOCK];
    double totals[BLOCK];
} Sums;

INLINE float
reduced(How how, float x, float y)
{
    return how == SUM ? x + y : how == LARGEST ? larger(x, y) : smaller(x, y);
}

INLINE double
combined(How how, double x, double y)
{
    if (how == SUM)
        return x + y;
    return x != x || (how == LARGEST ? x > y : x < y) ? x : y;
}

INLINE float
neutral(How how)
{
    return how == SUM ? 0.0F : how == LARGEST ? -INFINITY : INFINITY;
}

/* Reduce numbers that lie side by side to `SIDES`: number i is reduced into side i % SIDES. */
INLINE void
reduce_sides(How how, const float *x, int64_t count, float *restrict sides)
{
    for (int side = 0; side < SIDES; side++)
        sides[side] = neutral(how);
    int64_t i = 0;
    for (; i + SIDES <= count; i += SIDES)
        INDEPENDENT for (int side = 0; side < SIDES; side++)
            sides[side] = reduced(how, sides[side], x[i + side]);
    INDEPENDENT for (int64_t side = 0; side < count - i; side++)
        sides[side] = reduced(how, sides[side], x[i + side]);
}

/* Reduce 2 * half sides to half as many. The compiler makes no loop where it knows their number. */
INLINE void
fold(How how, float *sides, int half)
{
    INDEPENDENT for (int side = 0; side < half; side++)
        sides[side] = reduced(how, sides[side], sides[side + half]);
}

INLINE void
fold_to_four(How how, float *sides)
{
    fold(how, sides, 16);
    fold(how, sides, 8);
    fold(how, sides, 4);
}

_Static_assert(SIDES == 32, "the sides are folded in other steps");

/* Reduce numbers that lie side by side to one. */
INLINE float
reduce_run(How how, const float *x, int64_t count)
{
    float sides[SIDES];
    reduce_sides(how, x, count, sides);
    fold_to_four(how, sides);
    return reduced(how, reduced(how, sides[0], sides[2]), reduced(how, sides[1], sides[3]));
}

/* The same of each of four rows. */
INLINE void
reduce_four(How how, const float *x, int64_t length, float *results)
{
    float sides[4][SIDES], turned[4][4];
    for (int row = 0; row < 4; row++)
        reduce_sides(how, x + row * length, length, sides[row]);
    for (int row = 0; row < 4; row++)
        fold_to_four(how, sides[row]);
    turn_four(turned[0], sides[0], SIDES, 4);
    for (int row = 0; row < 4; row++)
        results[row] = reduced(how, reduced(how, turned[0][row], turned[2][row]),
                               reduced(how, turned[1][row], turned[3][row]));
}

INLINE void
put(const Reduction *reduction, int64_t outer, int64_t part, int64_t inner, double value)
{
    if (reduction->parts > 1) {
        const int64_t at = (outer * reduction->parts + part) * reduction->inner + inner;
        reduction->partial[at] = value;
        return;
    }
    const Output *output = &reduction->expression.outputs[0];
    const int64_t at = outer * reduction->inner + inner;
    if (output->type == F32)
        ((float *)output->data)[at] = (float)value;
    else
        ((uint16_t *)output->data)[at] = to_bfloat16((float)value);
}

INLINE const float *
run_at(const Reduction *reduction, Sums *sums, int64_t first, int64_t count)
{
    const Tile block = {.first = first, .rows = 1, .columns = count};
    return reduction->run(&reduction->expression, &sums->work, &block);
}

/* A part of a row whose elements are reduced to one. */
INLINE void
reduce_part(How how, const Reduction *reduction, Sums *sums, int64_t outer, int64_t part)
{
    const int64_t begin = part * reduction->part, left = reduction->length - begin;
    const int64_t count = left < reduction->part ? left : reduction->part;
    double total = neutral(how);
    for (int64_t done = 0; done < count; done += BLOCK) {
        const int64_t length = count - done < BLOCK ? count - done : BLOCK;
        const int64_t first = outer * reduction->length + begin + done;
        const float *found = run_at(reduction, sums, first, length);
        total = combined(how, total, reduce_run(how, found, length));
    }
    put(reduction, outer, part, 0, total);
}

/* Short rows, several in a block. */
INLINE void
reduce_rows(How how, const Reduction *reduction, Sums *sums, int64_t begin, int64_t end)
{
    const int64_t length = reduction->length, most = BLOCK / length;
    for (int64_t outer = begin; outer < end; outer += most) {
        const int64_t rows = end - outer < most ? end - outer : most;
        const float *found = run_at(reduction, sums, outer * length, rows * length);
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4) {
            float results[4];
            reduce_four(how, found + row * length, length, results);
            for (int k = 0; k < 4; k++)
                put(reduction, outer + row + k, 0, 0, results[k]);
        }
        for (; row < rows; row++)
            put(reduction, outer + row, 0, 0, reduce_run(how, found + row * length, length));
    }
}

/* Add the sums of some rows to the totals. */
INLINE void
add_up(How how, Sums *sums, int64_t count, int64_t columns)
{
    for (int64_t i = 0; i < count; i += columns)
        for (int64_t column = 0; column < columns; column++)
            sums->totals[column] =
                combined(how, sums->totals[column], sums->sums[i + column]);
    for (int64_t i = 0; i < count; i++)
        sums->sums[i] = neutral(how);
}

/* A part of some columns, each of which is reduced to one. */
INLINE void
reduce_columns(How how, const Reduction *reduction, Sums *sums, int64_t outer, int64_t part,
               int64_t width)
{
    const int64_t inner = reduction->inner, from = width * reduction->columns;
    const int64_t columns =
        inner - from < reduction->columns ? inner - from : reduction->columns;
    const int64_t begin = part * reduction->part, left = reduction->length - begin;
    const int64_t end = begin + (left < reduction->part ? left : reduction->part);
    /* Whole rows lie side by side. */
    const int64_t most = columns == inner ? BLOCK / inner : 1, count = most * columns;
    for (int64_t i = 0; i < count; i++)
        sums->sums[i] = neutral(how);
    for (int64_t column = 0; column < columns; column++)
        sums->totals[column] = neutral(how);
    int64_t summed = 0;
    for (int64_t row = begin; row < end; row += most) {
        const int64_t rows = end - row < most ? end - row : most;
        const int64_t first = (outer * reduction->length + row) * inner + from;
        const float *found = run_at(reduction, sums, first, rows * columns);
        float *restrict to = sums->sums;
        INDEPENDENT for (int64_t i = 0; i < rows * columns; i++)
            to[i] = reduced(how, to[i], found[i]);
        if (++summed % ROWS == 0)
            add_up(how, sums, count, columns);
    }
    add_up(how, sums, count, columns);
    for (int64_t column = 0; column < columns; column++)
        put(reduction, outer, part, from + column, sums->totals[column]);
}

INLINE void
run_units(How how, const Reduction *reduction, Sums *sums, int64_t begin, int64_t end)
{
    if (reduction->inner == 1 && 2 * reduction->length <= BLOCK) {
        reduce_rows(how, reduction, sums, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t width = unit % reduction->widths, part = unit / reduction->widths;
        const int64_t outer = part / reduction->parts;
        if (reduction->inner == 1)
            reduce_part(how, reduction, sums, outer, part % reduction->parts);
        else
            reduce_columns(how, reduction, sums, outer, part % reduction->parts, width);
    }
}

#define FOR_HOW(TARGET, NAME, HOW)                                                                 \
    TARGET static void NAME(const Reduction *reduction, Sums *sums, int64_t begin, int64_t end)    \
    {                                                                                              \
        run_units(HOW, reduction, sums, begin, end);                                               \
    }
#define NONE
#define FOR_VECTORS(NAME, HOW)                                                                     \
    FOR_HOW(NONE, NAME##_portable, HOW)                                                            \
    FOR_HOW(FOR_AVX2, NAME##_avx2, HOW)                                                            \
    FOR_HOW(FOR_AVX512, NAME##_avx512, HOW)

FOR_VECTORS(sum, SUM)
FOR_VECTORS(largest, LARGEST)
FOR_VECTORS(smallest, SMALLEST)

static void (*const RUN[HOWS][3])(const Reduction *, Sums *, int64_t, int64_t) = {
    {sum_portable, sum_avx2, sum_avx512},
    {largest_portable, largest_avx2, largest_avx512},
    {smallest_portable, smallest_avx2, smallest_avx512},
};

static int
reduce_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Reduction *reduction = data;
    Sums *sums = aligned_alloc(_Alignof(Sums), sizeof *sums);
    if (!sums)
        return fail(message, "no memory is left");
    clear_workspace(&sums->work);
    RUN[reduction->how][reduction->expression.vectors](reduction, sums, begin, end);
    free(sums);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* What a program says of a reduction, which may come from anywhere. */
static int
read_reduction(const Frame *frame, Reduction *reduction, char *message)
{
    const int64_t *given = array_of(frame, "reduced", S64, 4);
    int64_t size = 1;
    for (int i = 0; given && i < 3; i++)
        if (given[i] < 1 || __builtin_mul_overflow(size, given[i], &size))
            given = NULL;
    if (!given || given[3] < 0 || given[3] >= HOWS)
        return fail(message, "its attributes are not those that the bridge writes");
    Expression *expression = &reduction->expression;
    if (read_expression(frame, expression, size, message))
        return -1;
    reduction->outer = given[0], reduction->length = given[1], reduction->inner = given[2];
    reduction->how = (How)given[3];
    const int64_t steps = expression->step_count;
    if (frame->results.count != 1 || !steps || expression->outputs[0].type == PRED ||
        count_of(frame->results.buffers[0]) != reduction->outer * reduction->inner)
        return fail(message, "its result is not of the elements that are left");
    for (int64_t index = 0; index < steps; index++)
        if (expression->steps[index].operation == WRITE)
            return fail(message, "its attributes are not those that the bridge writes");
    expression->tiles.dims = 0;
    reduction->run = block_function(expression);
    return 0;
}

/* Divide what is reduced, by its sizes alone: results do not depend on how many threads there are. */
static void
divide_reduction(Reduction *reduction)
{
    reduction->columns = reduction->inner < BLOCK ? reduction->inner : BLOCK;
    reduction->widths = (reduction->inner + reduction->columns - 1) / reduction->columns;
    const int64_t rows = PART / reduction->columns, least = rows < 1 ? 1 : rows;
    reduction->parts = (reduction->length + least - 1) / least;
    reduction->part = (reduction->length + reduction->parts - 1) / reduction->parts;
    reduction->parts = (reduction->length + reduction->part - 1) / reduction->part;
}

static void
combine_parts(Reduction *reduction)
{
    const double *partial = reduction->partial;
    const int64_t parts = reduction->parts, inner = reduction->inner;
    reduction->parts = 1;
    for (int64_t outer = 0; outer < reduction->outer; outer++)
        for (int64_t column = 0; column < inner; column++) {
            const double *from = partial + outer * parts * inner + column;
            double total = from[0];
            for (int64_t part = 1; part < parts; part++)
                total = combined(reduction->how, total, from[part * inner]);
            put(reduction, outer, 0, column, total);
        }
}

Error *
reduce_expression(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Reduction reduction = {.expression = {0}};
    if (check_caller(frame, message) || read_reduction(frame, &reduction, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    divide_reduction(&reduction);
    const bool is_short = reduction.inner == 1 && 2 * reduction.length <= BLOCK;
    const int64_t results = reduction.outer * reduction.parts * reduction.inner;
    if (reduction.parts > 1 && !(reduction.partial = malloc((size_t)results * sizeof(double))))
        return refuse(frame, INTERNAL, NAME, "no memory is left");
    const int64_t units =
        is_short ? reduction.outer : reduction.outer * reduction.parts * reduction.widths;
    const int64_t elements = (is_short ? 1 : reduction.columns) * reduction.part;
    const int64_t work = elements * (reduction.expression.step_count + 1);
    const Division division = {reduce_range, &reduction, units, WORTH_A_THREAD / work + 1, 1};
    const int failed = divide(frame, &division, message);
    if (!failed && reduction.parts > 1)
        combine_parts(&reduction);
    free(reduction.partial);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}
