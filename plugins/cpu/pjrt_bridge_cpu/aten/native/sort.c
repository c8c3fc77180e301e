/* See sort.h.
 *
 * A radix sort: an element becomes an unsigned word of its order, its rank, in front of its
 * position, and the words are counted out by one digit of the rank after another, from the lowest.
 * Digits that are the same in a whole row are left out, so that small integers take one round.
 */

#include "sort.h"

#include "divide.h"
#include "vectors.h"

#include <stdlib.h>
#include <string.h>

static const char NAME[] = "A sort of rows";

/* Elements that are worth waking a thread; that are inserted one by one; from which on digits are
 * long; the bits of a short digit and of a long one. */
enum { WORTH_A_THREAD = 1 << 12, FEW = 40, MANY = 1 << 13, SHORT = 8, LONG = 11 };

/* Total: floats of any width in the order of their bits. */
typedef enum { UNSIGNED, SIGNED, TOTAL, HALF, BRAIN, SINGLE, DOUBLE } Kind;

typedef struct {
    const char *given;
    char *values, *positions;
    int64_t rows, length, width; /* Width: bytes of an element. */
    Kind kind;
    bool is_wide, is_descending; /* Wide: positions are int64, else int32. */
} Sort;

/* -- ranks ----------------------------------------------------------------------------------- */

/* Of the bits of a float whose sign is one bit. Compared as bits: a processor may take subnormal
 * numbers for 0. */
INLINE uint64_t
rank_of_float(uint64_t bits, uint64_t sign, uint64_t infinite)
{
    const uint64_t all = sign | (sign - 1), size = bits & (sign - 1);
    const uint64_t ordered = bits & sign && size ? all ^ bits : sign | size;
    return size > infinite ? all : ordered;
}

INLINE uint64_t
rank_of(uint64_t bits, uint64_t sign, Kind kind)
{
    static const uint64_t INFINITE[] = {
        [HALF] = 0x7c00, [BRAIN] = 0x7f80, [SINGLE] = 0x7f800000, [DOUBLE] = 0x7ff0000000000000,
    };
    if (kind <= SIGNED)
        return kind == SIGNED ? bits ^ sign : bits;
    if (kind == TOTAL)
        return bits & sign ? bits ^ (sign | (sign - 1)) : bits | sign;
    return rank_of_float(bits, sign, INFINITE[kind]);
}

/* The ranks of a row; which of their bits are not the same in all of them. */
#define RANKS(BITS)                                                                                \
    INLINE uint64_t ranks_of_##BITS(const Sort *s, Kind kind, int64_t row, uint64_t *ranks)        \
    {                                                                                              \
        const uint##BITS##_t *given =                                                              \
            (const uint##BITS##_t *)(const void *)s->given + row * s->length;                      \
        const uint64_t sign = (uint64_t)1 << (BITS - 1);                                           \
        const uint64_t flipped = s->is_descending ? sign | (sign - 1) : 0;                         \
        uint64_t any = 0, every = UINT64_MAX;                                                      \
        for (int64_t i = 0; i < s->length; i++) {                                                  \
            const uint64_t rank = rank_of(given[i], sign, kind) ^ flipped;                         \
            any |= rank, every &= rank;                                                            \
            ranks[i] = rank;                                                                       \
        }                                                                                          \
        return any ^ every;                                                                        \
    }

RANKS(8)
RANKS(16)
RANKS(32)
RANKS(64)

/* A loop for each kind and width. */
static uint64_t
ranks(const Sort *s, int64_t row, uint64_t *found)
{
    switch (s->kind) {
    case HALF: return ranks_of_16(s, HALF, row, found);
    case BRAIN: return ranks_of_16(s, BRAIN, row, found);
    case SINGLE: return ranks_of_32(s, SINGLE, row, found);
    case DOUBLE: return ranks_of_64(s, DOUBLE, row, found);
    default: break;
    }
    if (s->kind == TOTAL)
        switch (s->width) {
        case 2: return ranks_of_16(s, TOTAL, row, found);
        case 4: return ranks_of_32(s, TOTAL, row, found);
        default: return ranks_of_64(s, TOTAL, row, found);
        }
    const Kind kind = s->kind == SIGNED ? SIGNED : UNSIGNED;
    switch (s->width) {
    case 1: return ranks_of_8(s, kind, row, found);
    case 2: return ranks_of_16(s, kind, row, found);
    case 4: return ranks_of_32(s, kind, row, found);
    default: return ranks_of_64(s, kind, row, found);
    }
}

/* -- words: a half of a rank, and a position behind it --------------------------------------- */

static void
insert_one_by_one(uint64_t *words, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        const uint64_t word = words[i];
        int64_t at = i;
        for (; at && words[at - 1] > word; at--)
            words[at] = words[at - 1];
        words[at] = word;
    }
}

/* Bring words into the order of their halves of ranks, in which those bits differ; words of one
 * keep theirs. Gives where they are: one of the two arrays. */
static uint64_t *
sort_words(uint64_t *words, uint64_t *others, int64_t count, uint32_t differing)
{
    const int digit = count < MANY ? SHORT : LONG;
    const uint64_t last = ((uint64_t)1 << digit) - 1;
    for (int low = 0; low < 32; low += digit) {
        if (!(differing >> low & last))
            continue;
        uint32_t places[1 << LONG] = {0};
        const int shift = 32 + low;
        for (int64_t i = 0; i < count; i++)
            places[words[i] >> shift & last]++;
        uint32_t before = 0;
        for (uint64_t i = 0; i <= last; i++) {
            const uint32_t here = places[i];
            places[i] = before;
            before += here;
        }
        for (int64_t i = 0; i < count; i++)
            others[places[words[i] >> shift & last]++] = words[i];
        uint64_t *const sorted = others;
        others = words, words = sorted;
    }
    return words;
}

/* The words of a row in order; `room` is for three arrays of its length. */
static const uint64_t *
order_of(const Sort *s, int64_t row, uint64_t *room)
{
    const int64_t count = s->length;
    uint64_t *rank = room, *words = room + count, *others = words + count;
    const uint64_t differing = ranks(s, row, rank);
    const bool is_long = differing >> 32;
    for (int64_t i = 0; i < count; i++)
        words[i] = rank[i] << 32 | (uint64_t)i;
    if (count <= FEW && !is_long) {
        insert_one_by_one(words, count);
        return words;
    }
    uint64_t *sorted = sort_words(words, others, count, (uint32_t)differing);
    if (!is_long)
        return sorted;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t position = (uint32_t)sorted[i];
        sorted[i] = rank[position] >> 32 << 32 | position;
    }
    return sort_words(sorted, sorted == words ? others : words, count, (uint32_t)(differing >> 32));
}

/* -- results --------------------------------------------------------------------------------- */

#define VALUES(BITS)                                                                               \
    static void values_of_##BITS(const Sort *s, int64_t row, const uint64_t *words)                \
    {                                                                                              \
        const uint##BITS##_t *given =                                                              \
            (const uint##BITS##_t *)(const void *)s->given + row * s->length;                      \
        uint##BITS##_t *values = (uint##BITS##_t *)(void *)s->values + row * s->length;            \
        for (int64_t i = 0; i < s->length; i++)                                                    \
            values[i] = given[(uint32_t)words[i]];                                                 \
    }

VALUES(8)
VALUES(16)
VALUES(32)
VALUES(64)

static void
write_row(const Sort *s, int64_t row, const uint64_t *words)
{
    switch (s->width) {
    case 1: values_of_8(s, row, words); break;
    case 2: values_of_16(s, row, words); break;
    case 4: values_of_32(s, row, words); break;
    default: values_of_64(s, row, words); break;
    }
    int64_t *wide = (int64_t *)(void *)s->positions + row * s->length;
    int32_t *narrow = (int32_t *)(void *)s->positions + row * s->length;
    if (s->is_wide)
        for (int64_t i = 0; i < s->length; i++)
            wide[i] = (uint32_t)words[i];
    else
        for (int64_t i = 0; i < s->length; i++)
            narrow[i] = (int32_t)(uint32_t)words[i];
}

static int
sort_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Sort *s = data;
    uint64_t *room = malloc(3 * (size_t)s->length * sizeof *room);
    if (!room)
        return fail(message, "there is no memory for the ranks of a row of %lld elements",
                    (long long)s->length);
    for (int64_t row = begin; row < end; row++)
        write_row(s, row, order_of(s, row, room));
    free(room);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* Whether elements of a type can be sorted; of which kind they are. */
static bool
kind_of(int dtype, Kind *kind)
{
    static const signed char KINDS[] = {
        [PRED] = 1 + UNSIGNED, [U8] = 1 + UNSIGNED, [U16] = 1 + UNSIGNED, [U32] = 1 + UNSIGNED,
        [U64] = 1 + UNSIGNED,  [S8] = 1 + SIGNED,   [S16] = 1 + SIGNED,   [S32] = 1 + SIGNED,
        [S64] = 1 + SIGNED,    [F16] = 1 + HALF,    [BF16] = 1 + BRAIN,   [F32] = 1 + SINGLE,
        [F64] = 1 + DOUBLE,
    };
    if (dtype <= 0 || dtype >= (int)sizeof KINDS || !KINDS[dtype])
        return false;
    *kind = (Kind)(KINDS[dtype] - 1);
    return true;
}

/* What a program says of a sort, which may come from anywhere. */
static int
read_sort(const Frame *frame, Sort *sort, char *message)
{
    const Buffer *all[3];
    if (read_arrays(frame, 1, 2, all, message))
        return -1;
    const Buffer *given = all[0], *values = all[1], *positions = all[2];
    if (!kind_of(given->dtype, &sort->kind) || values->dtype != given->dtype ||
        (positions->dtype != S64 && positions->dtype != S32))
        return fail(message, "found element types %d, %d and %d, expected one that has an order, "
                    "the same, and int32 or int64", given->dtype, values->dtype, positions->dtype);
    if (given->rank != 2 || values->rank != 2 || positions->rank != 2 ||
        memcmp(given->dims, values->dims, 2 * sizeof *given->dims) ||
        memcmp(given->dims, positions->dims, 2 * sizeof *given->dims) ||
        given->dims[1] > INT32_MAX)
        return fail(message, "its operand and its results are not of one shape (rows, length)");
    sort->given = given->data, sort->values = values->data, sort->positions = positions->data;
    sort->rows = given->dims[0], sort->length = given->dims[1];
    sort->width = size_of_type(given->dtype);
    sort->is_wide = positions->dtype == S64;
    sort->is_descending = text_of(frame, "descending");
    if (sort->kind >= HALF && text_of(frame, "total"))
        sort->kind = TOTAL;
    return 0;
}

Error *
sort_rows(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Sort sort = {0};
    if (check_caller(frame, message) || read_sort(frame, &sort, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (!sort.rows || !sort.length)
        return NULL;
    const Division division = {sort_range, &sort, sort.rows, WORTH_A_THREAD / sort.length + 1, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
