/* See bags.h. */

#include "bags.h"

#include "divide.h"
#include "lanes.h"
#include "vectors.h"

static const char NAME[] = "Sums of bags";

/* Elements of the table that are worth waking a thread; columns that are summed at once; rows that
 * are fetched ahead. */
enum { WORTH_A_THREAD = 1 << 15, COLUMNS = 64, AHEAD = 8, LINE = 64 };

typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef Halves HalvesAt __attribute__((aligned(1), may_alias));

typedef struct {
    const char *table, *positions, *factors;
    const int64_t *ends;
    char *result;
    int64_t rows, width, count, bags, ignored;
    int dtype;
    bool is_wide, has_factors, is_mean; /* Positions are int64, else int32. */
} Bags;

INLINE int64_t
position_of(const Bags *bags, int64_t at)
{
    return bags->is_wide ? ((const int64_t *)(const void *)bags->positions)[at]
                         : ((const int32_t *)(const void *)bags->positions)[at];
}

/* The range of a bag, which lies in that of the positions. */
INLINE int64_t
end_of(const Bags *bags, int64_t bag)
{
    const int64_t end = bags->ends[bag];
    return end < 0 ? 0 : end > bags->count ? bags->count : end;
}

/* What lies at an address, which may be one of no row. */
INLINE void
fetch(const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch((const char *)from + at);
}

/* The row of a position; -1 where that has none. What is needed soon is fetched. size: bytes of an
 * element, a constant. */
INLINE int64_t
row_at(const Bags *bags, int64_t at, int64_t left, int64_t columns, int64_t size)
{
    const int64_t row = position_of(bags, at);
    if (at + AHEAD < bags->count)
        fetch(bags->table + (position_of(bags, at + AHEAD) * bags->width + left) * size,
              columns * size);
    return row < 0 || row >= bags->rows || row == bags->ignored ? -1 : row;
}

INLINE void
read_lanes(Lanes *lanes, const Bags *bags, int type, int64_t at)
{
    if (type == F32) {
        *lanes = *(const LanesAt *)(const void *)(bags->table + at * 4);
        return;
    }
    const HalvesAt *halves = (const void *)(bags->table + at * 2);
    const Words words = __builtin_convertvector(*halves, Words) << 16;
    *lanes = (Lanes)words;
}

/* The sums of `vectors` vectors of columns of a bag, and how many rows that takes. type and
 * vectors: constants. */
INLINE int64_t
sum_lanes(const Bags *bags, int type, int64_t first, int64_t last, int64_t left, int vectors,
          float *sums)
{
    const float *factors = (const float *)(const void *)bags->factors;
    Lanes a = {0}, b = {0}, c = {0}, d = {0}, lanes;
    int64_t taken = 0;
    for (int64_t at = first; at < last; at++) {
        const int64_t row = row_at(bags, at, left, vectors * LANES, type == F32 ? 4 : 2);
        if (row < 0)
            continue;
        const int64_t from = row * bags->width + left;
        const float factor = bags->has_factors ? factors[at] : 1;
#define ADD(i, sum)                                                                                \
    if (vectors > i) {                                                                             \
        read_lanes(&lanes, bags, type, from + i * LANES);                                          \
        sum += lanes * factor;                                                                     \
    }
        ADD(0, a)
        ADD(1, b)
        ADD(2, c)
        ADD(3, d)
#undef ADD
        taken++;
    }
    const Lanes found[] = {a, b, c, d};
    memcpy(sums, found, sizeof found);
    return taken;
}

/* Columns of a bag that have no vectors. */
#define SUM_COLUMNS(NAME, TYPE, SUM, FROM)                                                         \
    INLINE int64_t NAME(const Bags *bags, int64_t first, int64_t last, int64_t left,               \
                        int64_t columns, SUM *sums)                                                \
    {                                                                                              \
        const TYPE *table = (const TYPE *)(const void *)bags->table;                               \
        const SUM *factors = (const SUM *)(const void *)bags->factors;                             \
        const TYPE *restrict x;                                                                    \
        int64_t taken = 0;                                                                         \
        for (int64_t i = 0; i < columns; i++)                                                      \
            sums[i] = 0;                                                                           \
        for (int64_t at = first; at < last; at++) {                                                \
            const int64_t row = row_at(bags, at, left, columns, sizeof *x);                        \
            if (row < 0)                                                                           \
                continue;                                                                          \
            x = table + row * bags->width + left;                                                  \
            const SUM factor = bags->has_factors ? factors[at] : 1;                                \
            for (int64_t i = 0; i < columns; i++)                                                  \
                sums[i] += FROM(x[i]) * factor;                                                    \
            taken++;                                                                               \
        }                                                                                          \
        return taken;                                                                              \
    }

#define SAME(value) (value)
SUM_COLUMNS(sum_columns_float32, float, float, SAME)
SUM_COLUMNS(sum_columns_float64, double, double, SAME)
SUM_COLUMNS(sum_columns_bfloat16, uint16_t, float, from_bfloat16)

/* Some columns of a bag in float32; how many these are. */
INLINE int64_t
sum_floats(const Bags *bags, int type, int64_t first, int64_t last, int64_t left, float *sums,
           int64_t *taken)
{
    const int64_t rest = bags->width - left;
    switch (rest < COLUMNS ? rest / LANES : COLUMNS / LANES) {
    case 4:
        *taken = sum_lanes(bags, type, first, last, left, 4, sums);
        return 4 * LANES;
    case 3:
        *taken = sum_lanes(bags, type, first, last, left, 3, sums);
        return 3 * LANES;
    case 2:
        *taken = sum_lanes(bags, type, first, last, left, 2, sums);
        return 2 * LANES;
    case 1:
        *taken = sum_lanes(bags, type, first, last, left, 1, sums);
        return LANES;
    default:
        break;
    }
    *taken = type == F32 ? sum_columns_float32(bags, first, last, left, rest, sums)
                         : sum_columns_bfloat16(bags, first, last, left, rest, sums);
    return rest;
}

INLINE int64_t
sum_doubles(const Bags *bags, int type, int64_t first, int64_t last, int64_t left, double *sums,
            int64_t *taken)
{
    (void)type;
    const int64_t rest = bags->width - left, columns = rest < COLUMNS ? rest : COLUMNS;
    *taken = sum_columns_float64(bags, first, last, left, columns, sums);
    return columns;
}

/* A function for an element type: the type of sums, how some columns are summed, and how a sum
 * becomes an element. */
#define LOOPS(NAME, DTYPE, TYPE, SUM, SUM_SOME, TO)                                                \
    INLINE void NAME(const Bags *bags, int64_t begin, int64_t end)                                 \
    {                                                                                              \
        for (int64_t bag = begin; bag < end; bag++) {                                              \
            const int64_t first = end_of(bags, bag), last = end_of(bags, bag + 1);                 \
            TYPE *restrict result = (TYPE *)(void *)bags->result + bag * bags->width;              \
            for (int64_t left = 0, columns; left < bags->width; left += columns) {                 \
                SUM sums[COLUMNS];                                                                 \
                int64_t taken;                                                                     \
                columns = SUM_SOME(bags, DTYPE, first, last, left, sums, &taken);                  \
                const SUM divisor = bags->is_mean && taken ? (SUM)taken : 1;                       \
                for (int64_t i = 0; i < columns; i++)                                              \
                    result[left + i] = TO(sums[i] / divisor);                                      \
            }                                                                                      \
        }                                                                                          \
    }

LOOPS(of_float32, F32, float, float, sum_floats, SAME)
LOOPS(of_float64, F64, double, double, sum_doubles, SAME)
LOOPS(of_bfloat16, BF16, uint16_t, float, sum_floats, to_bfloat16)

/* What a program says of bags, which may come from anywhere. */
static int
read_bags(const Frame *frame, Bags *bags, char *message)
{
    const int64_t *how = array_of(frame, "how", S64, 2);
    if (!how)
        return fail(message, "its attributes are not those that the bridge writes");
    const Buffer *all[5];
    if (read_arrays(frame, 4, 1, all, message))
        return -1;
    static const int RANKS[] = {2, 1, 1, 1, 2};
    for (int i = 0; i < 5; i++)
        if (all[i]->rank != RANKS[i])
            return fail(message, "found an array of rank %lld, expected %d",
                        (long long)all[i]->rank, RANKS[i]);
    const Buffer *table = all[0], *positions = all[1], *ends = all[2], *factors = all[3];
    if ((table->dtype != F32 && table->dtype != F64 && table->dtype != BF16) ||
        all[4]->dtype != table->dtype || (positions->dtype != S64 && positions->dtype != S32) ||
        ends->dtype != S64 || factors->dtype != (table->dtype == F64 ? F64 : F32))
        return fail(message, "found element types %d, %d, %d and %d, expected a float, an integer, "
                    "int64 and a float", table->dtype, positions->dtype, ends->dtype,
                    factors->dtype);
    if (ends->dims[0] != all[4]->dims[0] + 1 || all[4]->dims[1] != table->dims[1] ||
        (factors->dims[0] && factors->dims[0] != positions->dims[0]))
        return fail(message, "its operands and its result do not fit each other");
    *bags = (Bags){
        .table = table->data, .positions = positions->data, .factors = factors->data,
        .ends = (const int64_t *)ends->data, .result = all[4]->data, .rows = table->dims[0],
        .width = table->dims[1], .count = positions->dims[0], .bags = all[4]->dims[0],
        .ignored = how[1], .dtype = table->dtype, .is_wide = positions->dtype == S64,
        .has_factors = factors->dims[0] > 0, .is_mean = how[0] != 0,
    };
    return 0;
}

INLINE void
run(const Bags *bags, int64_t begin, int64_t end)
{
    if (bags->dtype == F32)
        of_float32(bags, begin, end);
    else if (bags->dtype == F64)
        of_float64(bags, begin, end);
    else
        of_bfloat16(bags, begin, end);
}

static void
run_portable(const Bags *bags, int64_t begin, int64_t end)
{
    run(bags, begin, end);
}

FOR_AVX2 static void
run_avx2(const Bags *bags, int64_t begin, int64_t end)
{
    run(bags, begin, end);
}

FOR_AVX512 static void
run_avx512(const Bags *bags, int64_t begin, int64_t end)
{
    run(bags, begin, end);
}

static int
sum_range(const void *data, int64_t begin, int64_t end, char *message)
{
    static void (*const RUN[])(const Bags *, int64_t, int64_t) = {run_portable, run_avx2,
                                                                  run_avx512};
    (void)message;
    RUN[widest_vectors()](data, begin, end);
    return 0;
}

Error *
sum_bags(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Bags bags;
    if (check_caller(frame, message) || read_bags(frame, &bags, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (!bags.bags)
        return NULL;
    const int64_t each = bags.count / bags.bags * bags.width + bags.width + 1;
    const Division division = {sum_range, &bags, bags.bags, WORTH_A_THREAD / each + 1, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
