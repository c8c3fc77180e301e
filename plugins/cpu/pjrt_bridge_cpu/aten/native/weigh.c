/* See weigh.h. */

#include "weigh.h"

#include "divide.h"
#include "vectors.h"

static const char NAME[] = "A weighted sum along a dimension";

/* Products that are worth waking a thread; rows of the result that are summed at once where they
 * have one element each: they stay in the first cache. */
enum { WORTH_A_THREAD = 1 << 16, BLOCK = 1024 };

typedef struct {
    const char *array, *weights;
    const int32_t *places;
    char *result;
    int64_t length, count, terms, inner;
    int64_t rows; /* Of the result, of all outer ones. */
    Vectors vectors;
    bool is_wide; /* float64, else float32. */
} Sums;

static inline bool
is_place(int32_t place, int64_t length)
{
    return (uint32_t)place < (uint64_t)length;
}

/* Rows of the result of one outer one, from `first` on. */
#define LOOPS(NAME, TYPE)                                                                          \
    INLINE void NAME##_elements(const Sums *sums, const TYPE *array, TYPE *restrict result,        \
                                int64_t first, int64_t rows)                                       \
    {                                                                                              \
        for (int64_t term = 0; term < sums->terms; term++) {                                       \
            const int64_t from = term * sums->count + first;                                       \
            const int32_t *places = sums->places + from;                                           \
            const TYPE *weights = (const TYPE *)(const void *)sums->weights + from;                \
            const uint64_t length = (uint64_t)sums->length;                                        \
            for (int64_t row = 0; row < rows; row++) {                                             \
                const bool is_in = (uint32_t)places[row] < length;                                 \
                const TYPE found = array[is_in ? places[row] : 0] * weights[row];                  \
                const TYPE before = term ? result[row] : 0;                                        \
                result[row] = is_in ? before + found : before;                                     \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    INLINE void NAME##_row(const Sums *sums, const TYPE *array, TYPE *restrict result,             \
                           int64_t row)                                                            \
    {                                                                                              \
        const int64_t inner = sums->inner;                                                         \
        bool is_begun = false;                                                                     \
        for (int64_t term = 0; term < sums->terms; term++) {                                       \
            const int64_t at = term * sums->count + row;                                           \
            const TYPE weight = ((const TYPE *)(const void *)sums->weights)[at];                   \
            if (!is_place(sums->places[at], sums->length))                                         \
                continue;                                                                          \
            const TYPE *from = array + sums->places[at] * inner;                                   \
            if (is_begun)                                                                          \
                for (int64_t i = 0; i < inner; i++)                                                \
                    result[i] += from[i] * weight;                                                 \
            else                                                                                   \
                for (int64_t i = 0; i < inner; i++)                                                \
                    result[i] = from[i] * weight;                                                  \
            is_begun = true;                                                                       \
        }                                                                                          \
        if (!is_begun)                                                                             \
            memset(result, 0, (size_t)inner * sizeof *result);                                     \
    }                                                                                              \
                                                                                                   \
    INLINE void NAME##_rows(const Sums *sums, int64_t begin, int64_t end)                          \
    {                                                                                              \
        while (begin < end) {                                                                      \
            const int64_t outer = begin / sums->count, first = begin % sums->count;                \
            const TYPE *array =                                                                    \
                (const TYPE *)(const void *)sums->array + outer * sums->length * sums->inner;      \
            TYPE *result = (TYPE *)(void *)sums->result + begin * sums->inner;                     \
            int64_t rows = sums->inner > 1 ? 1 : BLOCK;                                            \
            rows = sums->count - first < rows ? sums->count - first : rows;                        \
            rows = end - begin < rows ? end - begin : rows;                                        \
            if (sums->inner > 1)                                                                   \
                NAME##_row(sums, array, result, first);                                            \
            else                                                                                   \
                NAME##_elements(sums, array, result, first, rows);                                 \
            begin += rows;                                                                         \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void NAME##_portable(const Sums *sums, int64_t begin, int64_t end)                      \
    {                                                                                              \
        NAME##_rows(sums, begin, end);                                                             \
    }                                                                                              \
    FOR_AVX2 static void NAME##_avx2(const Sums *sums, int64_t begin, int64_t end)                 \
    {                                                                                              \
        NAME##_rows(sums, begin, end);                                                             \
    }                                                                                              \
    FOR_AVX512 static void NAME##_avx512(const Sums *sums, int64_t begin, int64_t end)             \
    {                                                                                              \
        NAME##_rows(sums, begin, end);                                                             \
    }

LOOPS(narrow, float)
LOOPS(wide, double)

static void (*const RUN[][3])(const Sums *, int64_t, int64_t) = {
    {narrow_portable, narrow_avx2, narrow_avx512},
    {wide_portable, wide_avx2, wide_avx512},
};

/* What a program says of the sums, which may come from anywhere. */
static int
read_sums(const Frame *frame, Sums *sums, char *message)
{
    const Buffer *all[4];
    if (read_arrays(frame, 3, 1, all, message))
        return -1;
    const Buffer *array = all[0], *places = all[1], *weights = all[2], *result = all[3];
    const int type = array->dtype;
    if ((type != F32 && type != F64) || result->dtype != type || weights->dtype != type ||
        places->dtype != S32)
        return fail(message, "found element types %d, %d and %d, expected a float of 32 or 64 bits, "
                    "int32 and the first one", type, places->dtype, weights->dtype);
    bool fits = array->rank == 3 && result->rank == 3 && places->rank == 2 && weights->rank == 2;
    fits = fits && array->dims[0] == result->dims[0] && array->dims[2] == result->dims[2];
    for (int d = 0; fits && d < 2; d++)
        fits = places->dims[d] == weights->dims[d];
    if (!fits || places->dims[1] != result->dims[1] || array->dims[1] > INT32_MAX ||
        (!array->dims[1] && count_of(result)))
        return fail(message, "its operands and its result do not fit each other");
    *sums = (Sums){
        .array = array->data, .weights = weights->data, .result = result->data,
        .places = (const int32_t *)(const void *)places->data, .length = array->dims[1],
        .count = result->dims[1], .terms = places->dims[0], .inner = array->dims[2],
        .rows = result->dims[0] * result->dims[1], .vectors = widest_vectors(),
        .is_wide = type == F64,
    };
    return 0;
}

static int
weigh_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Sums *sums = data;
    (void)message;
    RUN[sums->is_wide][sums->vectors](sums, begin, end);
    return 0;
}

Error *
weigh_along(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Sums sums;
    if (check_caller(frame, message) || read_sums(frame, &sums, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (!sums.rows || !sums.inner)
        return NULL;
    if (!sums.terms) {
        memset(sums.result, 0, (size_t)(sums.rows * sums.inner) * (sums.is_wide ? 8 : 4));
        return NULL;
    }
    const int64_t least = WORTH_A_THREAD / (sums.inner * sums.terms) + 1;
    const Division division = {weigh_range, &sums, sums.rows, least, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
