/* See scan.h.
 *
 * Lines that lie side by side are combined row by row. Elements of a line that do are combined in
 * vectors where any order is as good, and a long line in parts; else one after the other, of some
 * lines at a time.
 */

#include "scan.h"

#include "divide.h"
#include "exponentials.h"
#include "prefixes.h"

#include <math.h>
#include <stdlib.h>

static const char NAME[] = "A scan";

typedef enum { SUM, PRODUCT, LOGARITHM, HOWS } How;

/* Elements that are worth waking a thread; columns at once, and at least; lines that are combined
 * side by side; lines that are too few for all threads; lanes, and steps of lines that are turned;
 * elements of a part of a line. */
enum { WORTH_A_THREAD = 1 << 15, COLUMNS = 512, LEAST_COLUMNS = 16, SIDES = 4, FEW = 16 };
enum { LANES = 32, TURNED = 64, PART = 1 << 15 };

typedef struct {
    const char *given;
    char *result;
    char *totals; /* (lines, parts): of parts, then of what is before them; NULL: not cut. */
    int64_t lines, length, inner, part, parts; /* No parts: the elements are in order. */
    int64_t first, step; /* Where a line begins, and from one element to the next. */
    bool is_total;       /* The totals of parts are looked for, and no result. */
} Scan;

/* -- steps ----------------------------------------------------------------------------------- */

/* Combine an element with what two numbers hold of those before it; gives the result there. */
#define SUMS_OF(NAME, TYPE, UNSIGNED)                                                              \
    INLINE TYPE NAME##_sum(TYPE x, TYPE *total, TYPE *unused)                                      \
    {                                                                                              \
        (void)unused;                                                                              \
        return *total = (TYPE)((UNSIGNED)*total + (UNSIGNED)x);                                    \
    }

#define PRODUCTS_OF(NAME, TYPE)                                                                    \
    INLINE TYPE NAME##_product(TYPE x, TYPE *total, TYPE *unused)                                  \
    {                                                                                              \
        (void)unused;                                                                              \
        return *total = *total * x;                                                                \
    }

SUMS_OF(narrow, int32_t, uint32_t)
SUMS_OF(wide, int64_t, uint64_t)
SUMS_OF(single, float, float)
SUMS_OF(real, double, double)
PRODUCTS_OF(single, float)
PRODUCTS_OF(real, double)

/* What is held is the largest element, and the sum of the exponentials of the others' differences
 * from it: together with its own, which is 1, small ones would be rounded away. */
INLINE double
real_logarithm(double x, double *largest, double *others)
{
    const double far = x == *largest ? 0.0 : x - *largest;
    const double size = exponential_of_negative(-fabs(far));
    const bool is_larger = far > 0.0;
    *others = is_larger ? (*others + 1.0) * size : *others + size;
    *largest = is_larger ? x : *largest;
    return *largest + logarithm_of_one_and(*others);
}

/* -- scans ----------------------------------------------------------------------------------- */

INLINE int64_t
begin_of(const Scan *s, int64_t line)
{
    return line / s->inner * s->length * s->inner + line % s->inner + s->first;
}

/* For a type of elements, one of what is held, a step, what is held where there is no element, what
 * makes an element what is held, and back, whether lines are turned, and prefixes in vectors. */
#define SCAN(NAME, TYPE, HELD, STEP, NONE, NO_OTHERS, LOAD, STORE, IS_TURNED, PREFIXES)            \
    INLINE void NAME##_columns(const TYPE *x, TYPE *result, int64_t rows, int64_t columns,         \
                               int64_t step, HELD *one, HELD *other)                               \
    {                                                                                              \
        for (int64_t row = 0; row < rows; row++) {                                                 \
            const TYPE *from = x + row * step;                                                     \
            TYPE *to = result + row * step;                                                        \
            INDEPENDENT for (int64_t i = 0; i < columns; i++)                                      \
                to[i] = STORE(STEP(LOAD(from[i]), &one[i], &other[i]));                            \
        }                                                                                          \
    }                                                                                              \
    INLINE void NAME##_forget(HELD *one, HELD *other, int64_t columns)                             \
    {                                                                                              \
        for (int64_t i = 0; i < columns; i++)                                                      \
            one[i] = NONE, other[i] = NO_OTHERS;                                                   \
    }                                                                                              \
    /* Lines that are far from each other: the processor waits for none of them. */                \
    INLINE void NAME##_together(const Scan *s, const int64_t *begins, int64_t lines,               \
                                int64_t steps, HELD *held)                                         \
    {                                                                                              \
        const TYPE *x = (const TYPE *)(const void *)s->given;                                      \
        TYPE *result = (TYPE *)(void *)s->result;                                                  \
        HELD one[SIDES], other[SIDES];                                                             \
        int64_t at[SIDES];                                                                         \
        for (int64_t line = 0; line < lines; line++)                                               \
            one[line] = held[line], other[line] = NO_OTHERS, at[line] = begins[line];              \
        for (int64_t i = 0; i < steps; i++, x += s->step, result += s->step)                       \
            for (int64_t line = 0; line < lines; line++)                                           \
                result[at[line]] =                                                                 \
                    STORE(STEP(LOAD(x[at[line]]), &one[line], &other[line]));                      \
        for (int64_t line = 0; line < lines; line++)                                               \
            held[line] = one[line];                                                                \
    }                                                                                              \
    /* Turned, for a step that is many operations: vectors do those of many lines. */              \
    INLINE void NAME##_turned(const Scan *s, int64_t first, int64_t lines)                         \
    {                                                                                              \
        HELD one[LANES], other[LANES];                                                             \
        TYPE turned[TURNED * LANES] = {0};                                                         \
        NAME##_forget(one, other, LANES);                                                          \
        for (int64_t from = 0; from < s->length; from += TURNED) {                                 \
            const int64_t steps = s->length - from < TURNED ? s->length - from : TURNED;           \
            for (int64_t line = 0; line < lines; line++) {                                         \
                const int64_t at = begin_of(s, first + line) + from * s->step;                     \
                const TYPE *x = (const TYPE *)(const void *)s->given + at;                         \
                for (int64_t i = 0; i < steps; i++)                                                \
                    turned[i * LANES + line] = x[i * s->step];                                     \
            }                                                                                      \
            NAME##_columns(turned, turned, steps, LANES, LANES, one, other);                       \
            for (int64_t line = 0; line < lines; line++) {                                         \
                const int64_t at = begin_of(s, first + line) + from * s->step;                     \
                TYPE *result = (TYPE *)(void *)s->result + at;                                     \
                for (int64_t i = 0; i < steps; i++)                                                \
                    result[i * s->step] = turned[i * LANES + line];                                \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    INLINE void NAME##_lines(const Scan *s, int64_t first, int64_t lines)                          \
    {                                                                                              \
        HELD held[SIDES];                                                                          \
        int64_t begins[SIDES];                                                                     \
        for (int64_t line = 0; line < lines; line++)                                               \
            held[line] = NONE, begins[line] = begin_of(s, first + line);                           \
        if (lines == SIDES)                                                                        \
            NAME##_together(s, begins, SIDES, s->length, held);                                    \
        else                                                                                       \
            for (int64_t line = 0; line < lines; line++)                                           \
                NAME##_together(s, begins + line, 1, s->length, held + line);                      \
    }                                                                                              \
    /* Of elements that lie side by side, in any order. */                                         \
    INLINE HELD NAME##_total(const TYPE *x, int64_t count, int64_t step)                           \
    {                                                                                              \
        HELD one[LANES], other[LANES];                                                             \
        int64_t i = 0;                                                                             \
        NAME##_forget(one, other, LANES);                                                          \
        x = step < 0 ? x + 1 - count : x;                                                          \
        for (; i + LANES <= count; i += LANES)                                                     \
            INDEPENDENT for (int64_t lane = 0; lane < LANES; lane++)                               \
                STEP(LOAD(x[i + lane]), &one[lane], &other[lane]);                                 \
        for (; i < count; i++)                                                                     \
            STEP(LOAD(x[i]), &one[0], &other[0]);                                                  \
        for (int64_t lane = 1; lane < LANES; lane++)                                               \
            STEP(one[lane], &one[0], &other[0]);                                                   \
        return one[0];                                                                             \
    }                                                                                              \
    /* Of a line whose elements lie side by side. */                                               \
    INLINE void NAME##_part(const Scan *s, int64_t unit)                                           \
    {                                                                                              \
        const int64_t line = s->parts > 1 ? unit / s->parts : unit;                                \
        const int64_t from = (unit - line * s->parts) * s->part, left = s->length - from;          \
        const int64_t count = left < s->part ? left : s->part;                                     \
        const TYPE *x = (const TYPE *)(const void *)s->given;                                      \
        TYPE *result = (TYPE *)(void *)s->result;                                                  \
        HELD *totals = (HELD *)(void *)s->totals, total = totals ? totals[unit] : NONE;            \
        int64_t at = line * s->length + s->first + from * s->step, done;                           \
        if (s->is_total) {                                                                         \
            totals[unit] = NAME##_total(x + at, count, s->step);                                   \
            return;                                                                                \
        }                                                                                          \
        if (s->step > 0)                                                                           \
            total = PREFIXES(x + at, result + at, count, false, total, &done);                     \
        else                                                                                       \
            total = PREFIXES(x + at, result + at, count, true, total, &done);                      \
        at += done * s->step;                                                                      \
        NAME##_together(s, &at, 1, count - done, &total);                                          \
    }                                                                                              \
    /* What is before each part, of the parts' totals. */                                          \
    INLINE void NAME##_totals(const Scan *s)                                                       \
    {                                                                                              \
        HELD *held = (HELD *)(void *)s->totals, total = NONE, unused = NO_OTHERS;                  \
        for (int64_t unit = 0; unit < s->lines * s->parts; unit++) {                               \
            const HELD part = held[unit];                                                          \
            held[unit] = total = unit % s->parts ? total : NONE;                                   \
            STEP(part, &total, &unused);                                                           \
        }                                                                                          \
    }                                                                                              \
    /* Of lines or parts; of none: the totals of parts. */                                         \
    INLINE void NAME(const Scan *s, int64_t begin, int64_t end)                                    \
    {                                                                                              \
        if (begin == end)                                                                          \
            NAME##_totals(s);                                                                      \
        for (int64_t count; begin < end; begin += count) {                                         \
            const int64_t left = end - begin;                                                      \
            if (s->parts) {                                                                        \
                count = 1;                                                                         \
                NAME##_part(s, begin);                                                             \
            } else if (s->inner < LANES && IS_TURNED) {                                            \
                count = left < LANES ? left : LANES;                                               \
                NAME##_turned(s, begin, count);                                                    \
            } else if (s->inner < LEAST_COLUMNS) {                                                 \
                count = left < SIDES ? left : SIDES;                                               \
                NAME##_lines(s, begin, count);                                                     \
            } else {                                                                               \
                HELD one[COLUMNS], other[COLUMNS];                                                 \
                const int64_t rest = s->inner - begin % s->inner, at = begin_of(s, begin);         \
                count = left < COLUMNS ? left : COLUMNS;                                           \
                count = rest < count ? rest : count;                                               \
                NAME##_forget(one, other, count);                                                  \
                NAME##_columns((const TYPE *)(const void *)s->given + at,                          \
                               (TYPE *)(void *)s->result + at, s->length, count, s->step, one,     \
                               other);                                                             \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    FOR_PORTABLE static void NAME##_portable(const Scan *s, int64_t begin, int64_t end)            \
    {                                                                                              \
        NAME(s, begin, end);                                                                       \
    }                                                                                              \
    FOR_AVX2 static void NAME##_avx2(const Scan *s, int64_t begin, int64_t end)                    \
    {                                                                                              \
        NAME(s, begin, end);                                                                       \
    }                                                                                              \
    FOR_AVX512 __attribute__((unused)) static void NAME##_avx512(const Scan *s, int64_t begin,     \
                                                                 int64_t end)                      \
    {                                                                                              \
        NAME(s, begin, end);                                                                       \
    }

#if HAS_PREFIXES
PREFIXES(sum_of_s32, int32_t, Words8, int32_t, Words8, +, 0, SAME_OF, SAME_OF)
PREFIXES(sum_of_s64, int64_t, Longs8, int64_t, Longs8, +, 0, SAME_OF, SAME_OF)
PREFIXES(sum_of_f32, float, Singles8, double, Reals8, +, 0, REALS_OF, SINGLES_OF)
PREFIXES(sum_of_bf16, uint16_t, Halves8, float, Singles8, +, 0, SINGLES_OF_HALVES, HALVES_OF)
#else
#define sum_of_s32_prefixes NO_PREFIXES
#define sum_of_s64_prefixes NO_PREFIXES
#define sum_of_f32_prefixes NO_PREFIXES
#define sum_of_bf16_prefixes NO_PREFIXES
#endif

#define AS_IT_IS(x) (x)
#define OF_REAL(x) ((float)(x))
#define HALF_OF_REAL(x) to_bfloat16((float)(x))

SCAN(sum_of_s32, int32_t, int32_t, narrow_sum, 0, 0, AS_IT_IS, AS_IT_IS, 0, sum_of_s32_prefixes)
SCAN(sum_of_s64, int64_t, int64_t, wide_sum, 0, 0, AS_IT_IS, AS_IT_IS, 0, sum_of_s64_prefixes)
SCAN(sum_of_bf16, uint16_t, float, single_sum, 0, 0, from_bfloat16, to_bfloat16, 0,
     sum_of_bf16_prefixes)
SCAN(sum_of_f32, float, double, real_sum, 0, 0, AS_IT_IS, OF_REAL, 0, sum_of_f32_prefixes)
SCAN(sum_of_f64, double, double, real_sum, 0, 0, AS_IT_IS, AS_IT_IS, 0, NO_PREFIXES)
SCAN(product_of_bf16, uint16_t, float, single_product, 1, 0, from_bfloat16, to_bfloat16, 0,
     NO_PREFIXES)
SCAN(product_of_f32, float, double, real_product, 1, 0, AS_IT_IS, OF_REAL, 0, NO_PREFIXES)
SCAN(product_of_f64, double, double, real_product, 1, 0, AS_IT_IS, AS_IT_IS, 0, NO_PREFIXES)
SCAN(log_of_bf16, uint16_t, double, real_logarithm, -INFINITY, -1, from_bfloat16, HALF_OF_REAL, 1,
     NO_PREFIXES)
SCAN(log_of_f32, float, double, real_logarithm, -INFINITY, -1, AS_IT_IS, OF_REAL, 1, NO_PREFIXES)

typedef void Run(const Scan *, int64_t, int64_t);

/* How a type is scanned; NULL: not at all. */
typedef struct {
    Run *run[3];
    bool any_order; /* Other ones give as good results. */
} Kind;

#define RUNS(NAME) {NAME##_portable, NAME##_avx2, NAME##_avx512}
/* Of a kind that wider vectors make no faster, or that is rare. */
#define NARROW(NAME) {NAME##_portable, NAME##_avx2, NAME##_avx2}
static const Kind KINDS[HOWS][BF16 + 1] = {
    [SUM] = {
        [S32] = {NARROW(sum_of_s32), true}, [S64] = {NARROW(sum_of_s64), true},
        [F32] = {RUNS(sum_of_f32), true}, [F64] = {NARROW(sum_of_f64), false},
        [BF16] = {RUNS(sum_of_bf16), true},
    },
    [PRODUCT] = {
        [F32] = {NARROW(product_of_f32), false}, [F64] = {NARROW(product_of_f64), false},
        [BF16] = {NARROW(product_of_bf16), false},
    },
    [LOGARITHM] = {
        [F32] = {RUNS(log_of_f32), false}, [BF16] = {RUNS(log_of_bf16), false},
    },
};

/* -- the call -------------------------------------------------------------------------------- */

typedef struct {
    Scan scan;
    Run *run;
} Work;

static int
scan_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Work *work = data;
    (void)message;
    work->run(&work->scan, begin, end);
    return 0;
}

/* What a program says of a scan, which may come from anywhere. */
static int
read_scan(const Frame *frame, Work *work, char *message)
{
    const Buffer *all[2];
    if (read_arrays(frame, 1, 1, all, message))
        return -1;
    const Buffer *given = all[0], *result = all[1];
    const int64_t *how = array_of(frame, "how", S64, 2);
    if (!how || how[0] < 0 || how[0] >= HOWS || how[1] < 0 || how[1] > 1)
        return fail(message, "its attributes are not those that the bridge writes");
    const int type = given->dtype;
    if (type <= 0 || type > BF16 || !KINDS[how[0]][type].run[0] || result->dtype != type)
        return fail(message, "found element types %d and %d, expected twice one that it takes",
                    type, result->dtype);
    if (given->rank != 3 || result->rank != 3 || given->dims[0] != result->dims[0] ||
        given->dims[1] != result->dims[1] || given->dims[2] != result->dims[2])
        return fail(message, "its operand and its result do not fit each other");
    const int64_t length = given->dims[1], inner = given->dims[2], lines = given->dims[0] * inner;
    const Kind *kind = &KINDS[how[0]][type];
    const bool is_cut = kind->any_order && inner == 1;
    const int64_t part = lines < FEW ? PART : length + 1;
    *work = (Work){
        .scan = {
            .given = given->data, .result = result->data, .lines = lines, .length = length,
            .inner = inner, .first = how[1] ? (length - 1) * inner : 0,
            .step = how[1] ? -inner : inner, .part = part,
            .parts = is_cut ? (length + part - 1) / part : 0,
        },
        .run = kind->run[widest_vectors()],
    };
    return 0;
}

/* Parts: their totals, what is before each, and then the elements. */
static int
scan_parts(const Frame *frame, Work *work, Division division, char *message)
{
    Scan *scan = &work->scan;
    division.length = scan->lines * scan->parts;
    division.grain = 1;
    scan->totals = calloc((size_t)division.length, sizeof(double));
    if (!scan->totals)
        return fail(message, "no memory is left");
    scan->is_total = true;
    int failed = divide(frame, &division, message);
    scan->is_total = false;
    work->run(scan, 0, 0);
    failed = failed ? failed : divide(frame, &division, message);
    free(scan->totals);
    return failed;
}

Error *
scan_along(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Work work;
    if (check_caller(frame, message) || read_scan(frame, &work, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    const Scan *scan = &work.scan;
    if (!scan->lines || !scan->length)
        return NULL;
    const Division division = {
        scan_range, &work, scan->lines, WORTH_A_THREAD / scan->length + 1, 1,
    };
    if (scan->parts > 1 ? scan_parts(frame, &work, division, message)
                    : divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
