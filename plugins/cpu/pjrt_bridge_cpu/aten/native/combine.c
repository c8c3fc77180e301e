/* See combine.h. */

#include "combine.h"

#include "divide.h"

static const char NAME[] = "A combination along a dimension";

enum { SUM, PRODUCT, LARGEST, SMALLEST, LAST, HOWS };

/* Updates that are worth waking a thread. */
enum { WORTH_A_THREAD = 1 << 15 };

typedef struct {
    char *array;
    const char *updates;
    const int64_t *positions;
    int64_t outer, length, count, inner;
    int64_t to_outer, to_next; /* Positions from an outer one to the next; from an update. */
    bool each;                 /* There is a position for each inner one. */
    bool by_outer;             /* Threads divide the outer dimension, else the inner one. */
    int dtype, how;
} Combination;

/* A function of a range, for an element type and what `X`, which is there, and `Y` become. */
#define LOOPS(NAME, TYPE, RESULT)                                                                  \
    static void NAME(const Combination *c, const int64_t *range)                                   \
    {                                                                                              \
        for (int64_t o = range[0]; o < range[1]; o++) {                                            \
            TYPE *array = (TYPE *)(void *)c->array + o * c->length * c->inner;                     \
            const TYPE *updates =                                                                  \
                (const TYPE *)(const void *)c->updates + o * c->count * c->inner;                  \
            const int64_t *positions = c->positions + o * c->to_outer;                             \
            for (int64_t k = 0; c->inner == 1 && k < c->count; k++) {                              \
                uint64_t at = (uint64_t)positions[k];                                              \
                if (at < (uint64_t)c->length) {                                                    \
                    const TYPE X = array[at], Y = updates[k];                                      \
                    (void)X;                                                                       \
                    array[at] = RESULT;                                                            \
                }                                                                                  \
            }                                                                                      \
            for (int64_t k = 0; c->inner > 1 && k < c->count; k++) {                               \
                if (c->each) {                                                                     \
                    for (int64_t i = range[2]; i < range[3]; i++) {                                \
                        uint64_t at = (uint64_t)positions[i];                                      \
                        if (at < (uint64_t)c->length) {                                            \
                            TYPE *where = array + (int64_t)at * c->inner + i;                      \
                            const TYPE X = *where, Y = updates[i];                                 \
                            (void)X;                                                               \
                            *where = RESULT;                                                       \
                        }                                                                          \
                    }                                                                              \
                } else if ((uint64_t)*positions < (uint64_t)c->length) {                           \
                    TYPE *restrict row = array + *positions * c->inner;                            \
                    const TYPE *restrict update = updates;                                         \
                    for (int64_t i = range[2]; i < range[3]; i++) {                                \
                        const TYPE X = row[i], Y = update[i];                                      \
                        (void)X;                                                                   \
                        row[i] = RESULT;                                                           \
                    }                                                                              \
                }                                                                                  \
                positions += c->to_next;                                                           \
                updates += c->inner;                                                               \
            }                                                                                      \
        }                                                                                          \
    }

/* Integers wrap, so they are added as unsigned ones. */
#define HOWS_OF(NAME, TYPE, UNSIGNED)                                                              \
    LOOPS(NAME##_sum, UNSIGNED, (UNSIGNED)(X + Y))                                                 \
    LOOPS(NAME##_product, UNSIGNED, (UNSIGNED)(X * Y))                                             \
    LOOPS(NAME##_largest, TYPE, Y > X || Y != Y ? Y : X)                                           \
    LOOPS(NAME##_smallest, TYPE, Y < X || Y != Y ? Y : X)                                          \
    LOOPS(NAME##_last, TYPE, Y)

HOWS_OF(f32, float, float)
HOWS_OF(f64, double, double)
HOWS_OF(s32, int32_t, uint32_t)
HOWS_OF(s64, int64_t, uint64_t)

typedef void Loops(const Combination *combination, const int64_t *range);

#define ALL_OF(NAME)                                                                               \
    {                                                                                              \
        [SUM] = NAME##_sum, [PRODUCT] = NAME##_product, [LARGEST] = NAME##_largest,                \
        [SMALLEST] = NAME##_smallest, [LAST] = NAME##_last,                                        \
    }

static Loops *const F32_LOOPS[HOWS] = ALL_OF(f32), *const F64_LOOPS[HOWS] = ALL_OF(f64),
                    *const S32_LOOPS[HOWS] = ALL_OF(s32), *const S64_LOOPS[HOWS] = ALL_OF(s64);

static Loops *const *
loops_of(int dtype)
{
    switch (dtype) {
    case F32:
        return F32_LOOPS;
    case F64:
        return F64_LOOPS;
    case S32:
        return S32_LOOPS;
    case S64:
        return S64_LOOPS;
    default:
        return NULL;
    }
}

/* What a program says of a combination, which may come from anywhere. */
static int
read_combination(const Frame *frame, Combination *combination, char *message)
{
    const Buffer *all[4];
    if (read_arrays(frame, 3, 1, all, message))
        return -1;
    const Buffer *array = all[0], *positions = all[1], *updates = all[2], *result = all[3];
    if (!loops_of(array->dtype) || updates->dtype != array->dtype ||
        result->dtype != array->dtype || positions->dtype != S64)
        return fail(message, "found element types %d, %d and %d, expected a float or an integer of "
                    "32 or 64 bits, int64 and the first one", array->dtype, positions->dtype,
                    updates->dtype);
    const int64_t *how = array_of(frame, "how", S64, 1);
    if (!how || *how < 0 || *how >= HOWS)
        return fail(message, "its attributes are not those that the bridge writes");
    bool fits = true;
    for (int i = 0; i < 4; i++)
        fits = fits && all[i]->rank == 3;
    for (int d = 0; fits && d < 3; d++) {
        bool along = d == 1;
        fits = result->dims[d] == array->dims[d] && (along || updates->dims[d] == array->dims[d]) &&
               (positions->dims[d] == updates->dims[d] || (!along && positions->dims[d] == 1));
    }
    if (!fits)
        return fail(message, "its operands and its result do not fit each other");
    *combination = (Combination){
        .array = result->data, .updates = updates->data,
        .positions = (const int64_t *)positions->data, .outer = array->dims[0],
        .length = array->dims[1], .count = updates->dims[1], .inner = array->dims[2],
        .to_next = positions->dims[2], .each = positions->dims[2] > 1, .dtype = array->dtype,
        .how = (int)*how,
    };
    if (positions->dims[0] > 1)
        combination->to_outer = positions->dims[1] * positions->dims[2];
    combination->by_outer = combination->outer >= combination->inner;
    copy_array(result, array, array->dtype == F32 || array->dtype == S32 ? 4 : 8);
    return 0;
}

static int
combine_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Combination *combination = data;
    const int64_t range[] = {
        combination->by_outer ? begin : 0, combination->by_outer ? end : combination->outer,
        combination->by_outer ? 0 : begin, combination->by_outer ? combination->inner : end,
    };
    (void)message;
    loops_of(combination->dtype)[combination->how](combination, range);
    return 0;
}

Error *
combine_along(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Combination combination;
    if (check_caller(frame, message) || read_combination(frame, &combination, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    int64_t length = combination.by_outer ? combination.outer : combination.inner;
    int64_t each = combination.count * (combination.by_outer ? combination.inner : combination.outer);
    if (!length || !each || !combination.length)
        return NULL;
    const Division division = {combine_range, &combination, length, WORTH_A_THREAD / each + 1, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
