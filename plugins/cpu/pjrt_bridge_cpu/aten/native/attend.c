/* See attend.h.
 *
 * All queries that share a key head read its keys and its values once. Keys are divided into parts
 * for threads: each part's values are weighed by exponentials of scores relative to its own largest
 * one, and the parts' sums are added at the end.
 */

#include "attend.h"

#include "divide.h"
#include "functions.h"
#include "thin.h"

#include <stdlib.h>

static const char NAME[] = "Attention of few queries";

/* Keys of a part; numbers that are reduced side by side; bytes of keys and values that are worth
 * waking a thread. */
enum { PART = 2048, SIDES = 16, WORTH_A_THREAD = 1 << 18 };

/* Keys or values: bytes from one batch, head and position to the next one. */
typedef struct {
    const char *data;
    int64_t batch, head, position;
} Cache;

typedef struct {
    const Buffer *query, *mask, *result, *sums;
    Cache keys, values;
    int64_t heads;          /* Of the keys. */
    int64_t queries, rows;  /* Of a head, and of all heads that share a key head. */
    int64_t count, longest; /* Keys, and those of a part, at most. */
    int64_t size, width, parts;
    int64_t steps[3]; /* In the mask, from one batch, head and query to the next one. */
    float scale;
    int dtype;
    Vectors vectors;
    /* Of each part and row: sums of weighed values, the largest score, and the sum of weights. */
    float *weighed, *largest, *totals;
} Attention;

/* -- a row of scores ------------------------------------------------------------------------- */

/* Make weights of scores. mask: what is added to them, if it is_masked, a constant. */
INLINE void
weigh_scores(float *scores, const float *mask, int is_masked, int64_t count, float scale,
             float *largest, float *total)
{
    float tops[SIDES], sums[SIDES] = {0}, top = -INFINITY, sum = 0;
    for (int side = 0; side < SIDES; side++)
        tops[side] = -INFINITY;
    int64_t i = 0;
    for (; i + SIDES <= count; i += SIDES)
        INDEPENDENT for (int side = 0; side < SIDES; side++)
        {
            const float score = scores[i + side] * scale + (is_masked ? mask[i + side] : 0.0F);
            scores[i + side] = score;
            tops[side] = score > tops[side] ? score : tops[side];
        }
    for (; i < count; i++) {
        scores[i] = scores[i] * scale + (is_masked ? mask[i] : 0.0F);
        tops[0] = scores[i] > tops[0] ? scores[i] : tops[0];
    }
    for (int side = 0; side < SIDES; side++)
        top = tops[side] > top ? tops[side] : top;
    const float base = top == -INFINITY ? 0.0F : top;
    for (i = 0; i + SIDES <= count; i += SIDES)
        INDEPENDENT for (int side = 0; side < SIDES; side++)
        {
            const float weight = exponential(scores[i + side] - base);
            scores[i + side] = weight;
            sums[side] += weight;
        }
    for (; i < count; i++) {
        scores[i] = exponential(scores[i] - base);
        sums[0] += scores[i];
    }
    for (int side = 0; side < SIDES; side++)
        sum += sums[side];
    *largest = top;
    *total = sum;
}

#define WEIGH(TARGET, END)                                                                         \
    TARGET static void weigh_##END(float *scores, const float *mask, int64_t count, float scale,   \
                                   float *largest, float *total)                                   \
    {                                                                                              \
        if (mask)                                                                                  \
            weigh_scores(scores, mask, 1, count, scale, largest, total);                           \
        else                                                                                       \
            weigh_scores(scores, NULL, 0, count, scale, largest, total);                           \
    }
#define PLAIN

WEIGH(PLAIN, portable)
WEIGH(FOR_AVX2, avx2)
WEIGH(FOR_AVX512, avx512)

static void (*const WEIGHERS[])(float *, const float *, int64_t, float, float *, float *) = {
    weigh_portable, weigh_avx2, weigh_avx512};

/* -- parts ----------------------------------------------------------------------------------- */

static const float *
mask_of(const Attention *a, int64_t pair, int64_t row)
{
    if (!a->mask)
        return NULL;
    const int64_t head = pair % a->heads * (a->rows / a->queries) + row / a->queries;
    return (const float *)(const void *)a->mask->data + pair / a->heads * a->steps[0] +
           head * a->steps[1] + row % a->queries * a->steps[2];
}

static const char *
cache_of(const Attention *a, const Cache *cache, int64_t pair, int64_t position)
{
    return cache->data + pair / a->heads * cache->batch + pair % a->heads * cache->head +
           position * cache->position;
}

/* A part of the keys of one batch and key head, for some of the rows. */
static void
attend_part(const Attention *a, float *scores, float *copy, int64_t unit, int64_t row, int64_t rows)
{
    const int64_t pair = unit / a->parts, first = unit % a->parts * PART;
    const int64_t left = a->count - first, count = left < PART ? left : PART;
    const int64_t at = unit * a->rows + row;
    const int64_t bytes = size_of_type(a->dtype);
    const Thin products = {
        .x = a->query->data + (pair * a->rows + row) * a->size * bytes, .x_type = a->dtype,
        .weights = cache_of(a, &a->keys, pair, first), .weight_type = a->dtype,
        .result = (char *)(void *)scores, .result_type = F32, .stride = a->keys.position,
        .batches = 1, .rows = rows, .inner = a->size, .columns = count, .is_transposed = true,
    };
    multiply_rows(&products, copy);
    for (int64_t i = 0; i < rows; i++) {
        const float *mask = mask_of(a, pair, row + i);
        WEIGHERS[a->vectors](scores + i * count, mask ? mask + first : NULL, count, a->scale,
                             a->largest + at + i, a->totals + at + i);
    }
    const Thin sums = {
        .x = (const char *)(const void *)scores, .x_type = F32,
        .weights = cache_of(a, &a->values, pair, first), .weight_type = a->dtype,
        .result = (char *)(void *)(a->weighed + at * a->width), .result_type = F32,
        .stride = a->values.position, .batches = 1, .rows = rows, .inner = count,
        .columns = a->width, .is_transposed = false,
    };
    multiply_rows(&sums, copy);
}

/* Add the parts of a row. */
static void
add_parts(const Attention *a, int64_t pair, int64_t row)
{
    const int64_t first = pair * a->parts * a->rows + row, to = pair * a->rows + row;
    float top = -INFINITY, total = 0;
    for (int64_t part = 0; part < a->parts; part++) {
        const float largest = a->largest[first + part * a->rows];
        top = largest > top ? largest : top;
    }
    const float base = top == -INFINITY ? 0.0F : top;
    float *const sums = a->weighed + first * a->width;
    for (int64_t part = 0; part < a->parts; part++) {
        const int64_t at = first + part * a->rows;
        const float largest = a->largest[at];
        /* A part with NaN alone has no largest score, and a sum that is NaN. */
        const float factor = largest == -INFINITY ? 1.0F : exponential(largest - base);
        total += a->totals[at] * factor;
        const float *from = a->weighed + at * a->width;
        for (int64_t i = 0; i < a->width; i++)
            sums[i] = part ? sums[i] + from[i] * factor : from[i] * factor;
    }
    const float divisor = total == 0.0F ? 1.0F : total;
    for (int64_t i = 0; i < a->width; i++) {
        const float value = sums[i] / divisor;
        if (a->dtype == F32)
            ((float *)(void *)a->result->data)[to * a->width + i] = value;
        else
            ((uint16_t *)(void *)a->result->data)[to * a->width + i] = to_bfloat16(value);
    }
    ((float *)(void *)a->sums->data)[to] = base + logf(divisor);
}

static int
attend_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Attention *a = data;
    const int64_t most = a->rows < MOST_ROWS ? a->rows : MOST_ROWS;
    const int64_t inner = a->longest > a->size ? a->longest : a->size;
    const size_t scores = (size_t)(most * a->longest), copied = floats_of_copy(most, inner);
    float *work = aligned_alloc(64, ((scores + copied + 16) * sizeof *work + 63) / 64 * 64);
    if (!work)
        return fail(message, "no memory is left");
    for (int64_t unit = begin; unit < end; unit++)
        for (int64_t row = 0; row < a->rows; row += MOST_ROWS) {
            const int64_t left = a->rows - row, rows = left < MOST_ROWS ? left : MOST_ROWS;
            attend_part(a, work + copied, work, unit, row, rows);
            for (int64_t i = 0; a->parts == 1 && i < rows; i++)
                add_parts(a, unit, row + i);
        }
    free(work);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

static Cache
cache_in(const Buffer *buffer, bool is_turned)
{
    const int64_t position = buffer->dims[3] * size_of_type(buffer->dtype);
    const int64_t inner = buffer->dims[2] * position;
    return (Cache){buffer->data, buffer->dims[1] * inner, is_turned ? position : inner,
                   is_turned ? inner : position};
}

/* What a program says of the operands, which may come from anywhere. */
static int
read_attention(const Frame *frame, Attention *a, char *message)
{
    const int64_t *how = array_of(frame, "how", S64, 2);
    const float *scale = array_of(frame, "scale", F32, 1);
    if (!how || !scale)
        return fail(message, "its attributes are not those that the bridge writes");
    const Buffer *all[6];
    if (read_arrays(frame, 4, 2, all, message))
        return -1;
    const Buffer *query = all[0], *keys = all[1], *values = all[2], *mask = all[3];
    const Buffer *result = all[4], *sums = all[5];
    for (int i = 0; i < 6; i++)
        if (all[i]->rank != (i == 5 ? 3 : 4))
            return fail(message, "found an array of rank %lld, expected %d",
                        (long long)all[i]->rank, i == 5 ? 3 : 4);
    const int type = query->dtype;
    if ((type != F32 && type != BF16) || keys->dtype != type || values->dtype != type ||
        result->dtype != type || mask->dtype != F32 || sums->dtype != F32)
        return fail(message, "found element types %d, %d and %d, expected float32 or bfloat16, and "
                    "float32 for the mask", type, keys->dtype, mask->dtype);
    const int at = how[0] ? 2 : 1, other = how[1] ? 2 : 1;
    const int64_t heads = keys->dims[at], count = keys->dims[3 - at];
    const bool is_masked = count_of(mask) > 0;
    /* Without elements a number of keys is bounded by no memory. */
    bool fits = query->dims[3] > 0 && values->dims[3] > 0 &&
                query->dims[3] == keys->dims[3] && values->dims[other] == heads &&
                values->dims[3 - other] == count && result->dims[3] == values->dims[3] &&
                heads > 0 && query->dims[1] % heads == 0 && count > 0 &&
                (!is_masked || mask->dims[3] == count);
    for (int d = 0; d < 3; d++)
        fits = fits && query->dims[d] == result->dims[d] && query->dims[d] == sums->dims[d] &&
               (!is_masked || mask->dims[d] == 1 || mask->dims[d] == query->dims[d]) &&
               (d || (keys->dims[d] == query->dims[d] && values->dims[d] == query->dims[d]));
    if (!fits)
        return fail(message, "its operands and its results do not fit each other");
    *a = (Attention){
        .query = query, .mask = is_masked ? mask : NULL, .result = result, .sums = sums,
        .keys = cache_in(keys, how[0] != 0), .values = cache_in(values, how[1] != 0),
        .heads = heads, .queries = query->dims[2], .rows = query->dims[1] / heads * query->dims[2],
        .count = count, .longest = count < PART ? count : PART, .size = query->dims[3],
        .width = values->dims[3],
        .parts = (count + PART - 1) / PART, .scale = *scale, .dtype = type,
        .vectors = widest_vectors(),
    };
    int64_t step = count;
    for (int d = 2; is_masked && d >= 0; d--) {
        a->steps[d] = mask->dims[d] > 1 ? step : 0;
        step *= mask->dims[d];
    }
    return 0;
}

Error *
attend_few(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Attention a;
    if (check_caller(frame, message) || read_attention(frame, &a, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    const int64_t pairs = a.query->dims[0] * a.heads, units = pairs * a.parts;
    const size_t rows = (size_t)(units * a.rows);
    if (!rows)
        return NULL;
    a.weighed = malloc(rows * (size_t)(a.width + 2) * sizeof *a.weighed);
    if (!a.weighed)
        return refuse(frame, INTERNAL, NAME, "no memory is left");
    a.largest = a.weighed + rows * (size_t)a.width;
    a.totals = a.largest + rows;
    const int64_t bytes = a.longest * (a.size + a.width) * size_of_type(a.dtype);
    const Division division = {attend_range, &a, units, WORTH_A_THREAD / (bytes + 1) + 1, 1};
    const int failed = divide(frame, &division, message);
    for (int64_t row = 0; !failed && a.parts > 1 && row < pairs * a.rows; row++)
        add_parts(&a, row / a.rows, row % a.rows);
    free(a.weighed);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}
