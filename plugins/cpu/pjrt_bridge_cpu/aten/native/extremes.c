/* See extremes.h.
 *
 * Elements are compared by integers of their order, their keys: a processor may take subnormal
 * numbers for 0. The key of the smallest is the largest where the smallest are asked for.
 */

#include "extremes.h"

#include "divide.h"
#include "vectors.h"

#include <string.h>

static const char NAME[] = "A search for extremes";

/* Elements that are worth waking a thread; of a row that are compared before a position is looked
 * for; numbers that are compared side by side; columns at once. */
enum { WORTH_A_THREAD = 1 << 15, BLOCK = 1024, SIDES = 64, COLUMNS = 256 };

typedef struct {
    const char *given;
    char *positions;
    int64_t outer, length, inner;
    int dtype;
    bool is_smallest, is_wide; /* Wide: positions are int64, else int32. */
} Search;

/* -- keys ------------------------------------------------------------------------------------ */

/* Of the bits of a float, in the order of its numbers. */
#define KEY_OF_FLOAT(BITS)                                                                         \
    INLINE int##BITS##_t key_of_float_##BITS(int##BITS##_t bits, int##BITS##_t infinite,           \
                                             bool is_smallest)                                     \
    {                                                                                              \
        const int##BITS##_t size = bits & INT##BITS##_MAX;                                         \
        const int##BITS##_t key = bits < 0 ? (int##BITS##_t)-size : size;                          \
        return size > infinite ? INT##BITS##_MAX : is_smallest ? (int##BITS##_t)~key : key;        \
    }

KEY_OF_FLOAT(32)
KEY_OF_FLOAT(64)

#define INTEGER(BITS, x) (is_smallest ? (int##BITS##_t)~(int##BITS##_t)(x) : (int##BITS##_t)(x))
#define UNSIGNED(BITS, x) INTEGER(BITS, (x) ^ (uint##BITS##_t)1 << (BITS - 1))
#define SHORT_FLOAT(INFINITE, x)                                                                   \
    key_of_float_32((int32_t)((uint32_t)(x) << 16), (int32_t)((uint32_t)(INFINITE) << 16),         \
                    is_smallest)
#define BRAIN(x) SHORT_FLOAT(0x7f80, x)
#define HALF(x) SHORT_FLOAT(0x7c00, x)
#define SINGLE(x) key_of_float_32(x, 0x7f800000, is_smallest)
#define DOUBLE(x) key_of_float_64(x, 0x7ff0000000000000, is_smallest)
#define NARROW(x) INTEGER(32, x)
#define WIDE(x) INTEGER(64, x)
#define NARROW_UNSIGNED(x) UNSIGNED(32, x)
#define WIDE_UNSIGNED(x) UNSIGNED(64, x)

/* -- searches -------------------------------------------------------------------------------- */

INLINE void
put(const Search *search, int64_t at, int64_t position)
{
    if (search->is_wide)
        ((int64_t *)(void *)search->positions)[at] = position;
    else
        ((int32_t *)(void *)search->positions)[at] = (int32_t)position;
}

/* For a type of elements, one of keys, and what makes a key of an element. */
#define SEARCH(NAME, TYPE, BITS, KEY)                                                              \
    INLINE void NAME##_rows(const Search *search, bool is_smallest, int64_t begin, int64_t end)    \
    {                                                                                              \
        const int64_t length = search->length;                                                     \
        for (int64_t row = begin; row < end; row++) {                                              \
            const TYPE *x = (const TYPE *)(const void *)search->given + row * length;              \
            int##BITS##_t best = INT##BITS##_MIN;                                                  \
            int64_t where = 0;                                                                     \
            for (int64_t block = 0; block < length; block += BLOCK) {                              \
                const int64_t count = length - block < BLOCK ? length - block : BLOCK;             \
                const TYPE *from = x + block;                                                      \
                int##BITS##_t sides[SIDES], largest = INT##BITS##_MIN;                             \
                for (int side = 0; side < SIDES; side++)                                           \
                    sides[side] = INT##BITS##_MIN;                                                 \
                int64_t i = 0;                                                                     \
                for (; i + SIDES <= count; i += SIDES)                                             \
                    for (int side = 0; side < SIDES; side++) {                                     \
                        const int##BITS##_t key = KEY(from[i + side]);                             \
                        sides[side] = key > sides[side] ? key : sides[side];                       \
                    }                                                                              \
                for (; i < count; i++) {                                                           \
                    const int##BITS##_t key = KEY(from[i]);                                        \
                    largest = key > largest ? key : largest;                                       \
                }                                                                                  \
                for (int side = 0; side < SIDES; side++)                                           \
                    largest = sides[side] > largest ? sides[side] : largest;                       \
                if (largest > best)                                                                \
                    best = largest, where = block;                                                 \
            }                                                                                      \
            while (KEY(x[where]) != best)                                                          \
                where++;                                                                           \
            put(search, row, where);                                                               \
        }                                                                                          \
    }                                                                                              \
    INLINE void NAME##_columns(const Search *search, bool is_smallest, int64_t begin, int64_t end) \
    {                                                                                              \
        const int64_t inner = search->inner, widths = (inner + COLUMNS - 1) / COLUMNS;             \
        for (int64_t unit = begin; unit < end; unit++) {                                           \
            const int64_t outer = unit / widths, from = unit % widths * COLUMNS;                   \
            const int64_t columns = inner - from < COLUMNS ? inner - from : COLUMNS;               \
            const TYPE *x = (const TYPE *)(const void *)search->given +                            \
                            outer * search->length * inner + from;                                 \
            int##BITS##_t best[COLUMNS], where[COLUMNS];                                           \
            for (int64_t i = 0; i < columns; i++)                                                  \
                best[i] = KEY(x[i]), where[i] = 0;                                                 \
            for (int64_t row = 1; row < search->length; row++)                                     \
                INDEPENDENT for (int64_t i = 0; i < columns; i++)                                  \
                {                                                                                  \
                    const int##BITS##_t key = KEY(x[row * inner + i]);                             \
                    where[i] = key > best[i] ? (int##BITS##_t)row : where[i];                      \
                    best[i] = key > best[i] ? key : best[i];                                       \
                }                                                                                  \
            for (int64_t i = 0; i < columns; i++)                                                  \
                put(search, outer * inner + from + i, where[i]);                                   \
        }                                                                                          \
    }                                                                                              \
    INLINE void NAME(const Search *search, int64_t begin, int64_t end)                             \
    {                                                                                              \
        if (search->inner == 1 && search->is_smallest)                                             \
            NAME##_rows(search, true, begin, end);                                                 \
        else if (search->inner == 1)                                                               \
            NAME##_rows(search, false, begin, end);                                                \
        else if (search->is_smallest)                                                              \
            NAME##_columns(search, true, begin, end);                                              \
        else                                                                                       \
            NAME##_columns(search, false, begin, end);                                             \
    }                                                                                              \
    static void NAME##_portable(const Search *search, int64_t begin, int64_t end)                  \
    {                                                                                              \
        NAME(search, begin, end);                                                                  \
    }                                                                                              \
    FOR_AVX2 static void NAME##_avx2(const Search *search, int64_t begin, int64_t end)             \
    {                                                                                              \
        NAME(search, begin, end);                                                                  \
    }                                                                                              \
    FOR_AVX512 static void NAME##_avx512(const Search *search, int64_t begin, int64_t end)         \
    {                                                                                              \
        NAME(search, begin, end);                                                                  \
    }

SEARCH(of_u8, uint8_t, 32, NARROW)
SEARCH(of_u16, uint16_t, 32, NARROW)
SEARCH(of_u32, uint32_t, 32, NARROW_UNSIGNED)
SEARCH(of_u64, uint64_t, 64, WIDE_UNSIGNED)
SEARCH(of_s8, int8_t, 32, NARROW)
SEARCH(of_s16, int16_t, 32, NARROW)
SEARCH(of_s32, int32_t, 32, NARROW)
SEARCH(of_s64, int64_t, 64, WIDE)
SEARCH(of_f16, uint16_t, 32, HALF)
SEARCH(of_bf16, uint16_t, 32, BRAIN)
SEARCH(of_f32, int32_t, 32, SINGLE)
SEARCH(of_f64, int64_t, 64, DOUBLE)

typedef void Run(const Search *, int64_t, int64_t);

#define RUNS(NAME) {NAME##_portable, NAME##_avx2, NAME##_avx512}
static Run *const RUN[][3] = {
    [PRED] = RUNS(of_u8), [U8] = RUNS(of_u8),   [U16] = RUNS(of_u16), [U32] = RUNS(of_u32),
    [U64] = RUNS(of_u64), [S8] = RUNS(of_s8),   [S16] = RUNS(of_s16), [S32] = RUNS(of_s32),
    [S64] = RUNS(of_s64), [F16] = RUNS(of_f16), [F32] = RUNS(of_f32), [F64] = RUNS(of_f64),
    [BF16] = RUNS(of_bf16),
};

static int
search_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Search *search = data;
    (void)message;
    RUN[search->dtype][widest_vectors()](search, begin, end);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* What a program says of a search, which may come from anywhere. */
static int
read_search(const Frame *frame, Search *search, char *message)
{
    const Buffer *all[2];
    if (read_arrays(frame, 1, 1, all, message))
        return -1;
    const Buffer *given = all[0], *positions = all[1];
    const int type = given->dtype;
    if (type <= 0 || type >= (int)(sizeof RUN / sizeof *RUN) || !RUN[type][0] ||
        (positions->dtype != S64 && positions->dtype != S32))
        return fail(message, "found element types %d and %d, expected one that has an order, and "
                    "int32 or int64", type, positions->dtype);
    if (given->rank != 3 || positions->rank != 2 || given->dims[0] != positions->dims[0] ||
        given->dims[2] != positions->dims[1] || given->dims[1] < 1 || given->dims[1] > INT32_MAX)
        return fail(message, "its operand and its result do not fit each other");
    *search = (Search){
        .given = given->data, .positions = positions->data, .outer = given->dims[0],
        .length = given->dims[1], .inner = given->dims[2], .dtype = type,
        .is_smallest = text_of(frame, "smallest"), .is_wide = positions->dtype == S64,
    };
    return 0;
}

Error *
find_extremes(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Search search;
    if (check_caller(frame, message) || read_search(frame, &search, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    const int64_t columns = search.inner < COLUMNS ? search.inner : COLUMNS;
    const int64_t widths = (search.inner + COLUMNS - 1) / COLUMNS;
    const Division division = {
        search_range, &search, search.outer * widths,
        search.inner ? WORTH_A_THREAD / (columns * search.length) + 1 : 1, 1,
    };
    if (division.length && divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
