/* See thin.h. */

#define _GNU_SOURCE
#include "thin.h"

#include "divide.h"

#include <stdlib.h>
#include <string.h>

static const char NAME_OF_CALL[] = "A product of few rows";

/* Bytes of x that stay in the first cache, and of weights that are worth waking a thread. */
enum { X_CACHED = 3 << 13, WORTH_A_THREAD = 1 << 18 };
/* Bytes of a line of the cache, and of the widest vector. */
enum { LINE = 64 };
/* Columns whose sums are in a cache while all weights of these are read, elements of the inner
 * dimension whose weights are read together, and rows that are multiplied at once. */
enum { WIDTH = 1024, DEPTH = 8, MOST_AT_ONCE = 8 };

/* Beside the element types of weights: two bfloat16 that are multiplied together. */
#define PAIRS (-1)

/* Bytes of an element of the weights, and vectors of floats in one of words. Both are constants of
 * constants. */
#define SIZE(type) ((type) == F32 ? 4 : (type) == S8 ? 1 : 2)
#define PARTS(type) ((type) == PAIRS ? 1 : 4 / SIZE(type))

typedef enum { PORTABLE, AVX2, AVX512, AVX512_BF16 } Vectors;

/* -- elements -------------------------------------------------------------------------------- */

static inline float
float_at(const char *data, int type, int64_t index)
{
    float value;
    if (type == F32) {
        memcpy(&value, data + index * 4, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, data + index * 2, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t
to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* To the nearest, ties to even; a NaN stays one. */
    return (uint16_t)(value != value ? bits >> 16 | 0x40
                                     : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Write neighbours in a row of the result, whose sums have a distance of `far`. */
static inline __attribute__((always_inline)) void
put(const Thin *thin, int64_t row, int64_t column, const float *sums, int64_t far, int64_t count)
{
    char *to = thin->result + (row * thin->columns + column) * SIZE(thin->result_type);
    if (thin->result_type == F32) {
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * 4, &sums[i * far], 4);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const uint16_t half = to_half(sums[i * far]);
        memcpy(to + i * 2, &half, 2);
    }
}

/* -- rows ------------------------------------------------------------------------------------ */

/* The length of a row in copies of x: whole steps of any width and type. */
static inline int64_t
padded(int64_t inner)
{
    return (inner + 63) / 64 * 64;
}

/* How many rows are multiplied at once where so many are left. Those of them that are not there are
 * zeros: to multiply them costs less than to read the weights once more. */
static inline int64_t
rows_at_once(int64_t left)
{
    return left > 4 ? MOST_AT_ONCE : left > 2 ? 4 : left;
}

/* The copy of x from a row on, at which rows that are multiplied at once begin. */
static inline float *
copy_of(const Thin *thin, int64_t batch, int64_t row)
{
    return thin->copy + (batch * 2 * thin->rows + row) * padded(thin->inner);
}

/* Code with each number of rows that are multiplied at once, as a constant. */
#define FOR_ROWS(rows, code)    \
    switch (rows) {             \
    case 1:                     \
        code(1) break;          \
    case 2:                     \
        code(2) break;          \
    case 4:                     \
        code(4) break;          \
    default:                    \
        code(8)                 \
    }

/* Code with each index below a constant, of 1, 2, 4 or 8, as a constant: a compiler keeps the items
 * of an array in registers only where indices are. A macro cannot contain itself, so that loops in
 * loops need several. */
#define EACH_ROW(count, code, ...)                                                             \
    code(0, ##__VA_ARGS__) if ((count) > 1) { code(1, ##__VA_ARGS__) }                         \
    if ((count) > 2) { code(2, ##__VA_ARGS__) code(3, ##__VA_ARGS__) }                         \
    if ((count) > 4) {                                                                         \
        code(4, ##__VA_ARGS__) code(5, ##__VA_ARGS__) code(6, ##__VA_ARGS__)                   \
        code(7, ##__VA_ARGS__)                                                                 \
    }
#define EACH_ELEMENT(count, code, ...)                                                         \
    code(0, ##__VA_ARGS__) if ((count) > 1) {                                                  \
        code(1, ##__VA_ARGS__) code(2, ##__VA_ARGS__) code(3, ##__VA_ARGS__)                   \
        code(4, ##__VA_ARGS__) code(5, ##__VA_ARGS__) code(6, ##__VA_ARGS__)                   \
        code(7, ##__VA_ARGS__)                                                                 \
    }
#define EACH_COLUMN(count, code, ...)                                                          \
    code(0, ##__VA_ARGS__) if ((count) > 1) { code(1, ##__VA_ARGS__) }                         \
    if ((count) > 2) { code(2, ##__VA_ARGS__) code(3, ##__VA_ARGS__) }
#define EACH_PART(count, code)                                                                 \
    code(0) if ((count) > 1) { code(1) }                                                       \
    if ((count) > 2) { code(2) code(3) }

typedef float Quad __attribute__((vector_size(16)));

/* The sum of the elements of each of four vectors. */
static inline __attribute__((always_inline)) void
sum_four(const Quad *quads, Quad *sums)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SUMMED_IN_REGISTERS
    Quad pairs[2];
    for (int i = 0; i < 2; i++)
        pairs[i] = __builtin_shufflevector(quads[2 * i], quads[2 * i + 1], 0, 4, 2, 6) +
                   __builtin_shufflevector(quads[2 * i], quads[2 * i + 1], 1, 5, 3, 7);
    *sums = __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 4, 5) +
            __builtin_shufflevector(pairs[0], pairs[1], 2, 3, 6, 7);
#endif
#endif
#ifndef SUMMED_IN_REGISTERS
    for (int i = 0; i < 4; i++)
        (*sums)[i] = (quads[i][0] + quads[i][1]) + (quads[i][2] + quads[i][3]);
#endif
}

/* -- loops ----------------------------------------------------------------------------------- */

#define LANES 4
#define COLUMNS(rows) ((rows) < 4 ? 4 : (rows) == 4 ? 2 : 1)
#define NAME(name) name##_portable
#define TARGET
#include "thin_loops.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define LANES 8
#define COLUMNS(rows) ((rows) < 4 ? 4 : (rows) == 4 ? 2 : 1)
#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "thin_loops.h"

#define LANES 16
#define COLUMNS(rows) ((rows) < 8 ? 4 : 2)
#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw")))
#include "thin_loops.h"

/* What every compiler knows that knows the instructions. They take subnormal numbers for zeros. */
#if defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12
#include <immintrin.h>

#define HAS_PAIRS __builtin_cpu_supports("avx512bf16")
#define PAIRS_ALONE
#define ADD_PAIRS(total, x, words)                                                             \
    (Floats_pairs) _mm512_dpbf16_ps((__m512)(total), (__m512bh)(x), (__m512bh)(words))
#define LANES 16
#define COLUMNS(rows) ((rows) < 8 ? 4 : 2)
#define NAME(name) name##_pairs
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512bf16")))
#include "thin_loops.h"
#else
#define HAS_PAIRS false
#define copy_pairs copy_avx512
#define run_pairs run_avx512
#endif

static Vectors
widest_known(void)
{
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    if (!avx2)
        return PORTABLE;
    return !avx512 ? AVX2 : HAS_PAIRS ? AVX512_BF16 : AVX512;
}
#else
#define copy_avx2 copy_portable
#define copy_avx512 copy_portable
#define run_avx2 run_portable
#define run_avx512 run_portable
#define copy_pairs copy_portable
#define run_pairs run_portable

static Vectors
widest_known(void)
{
    return PORTABLE;
}
#endif

static void (*const COPY[])(const Thin *) = {copy_portable, copy_avx2, copy_avx512, copy_pairs};
static void (*const RUN[])(const Thin *, int64_t, int64_t, int64_t) = {run_portable, run_avx2,
                                                                      run_avx512, run_pairs};

/* The widest vectors that a product can use. */
static Vectors
widest_vectors(const Thin *thin)
{
    const Vectors widest = widest_known();
    const bool of_pairs = thin->is_transposed && thin->x_type == BF16 && thin->weight_type == BF16;
    return widest == AVX512_BF16 && !of_pairs ? AVX512 : widest;
}

size_t
floats_of_copy(int64_t rows, int64_t inner)
{
    return (size_t)(2 * rows * padded(inner));
}

void
multiply_rows(const Thin *thin, float *copy)
{
    Thin given = *thin;
    given.copy = copy;
    given.vectors = widest_vectors(thin);
    COPY[given.vectors](&given);
    RUN[given.vectors](&given, 0, 0, given.columns);
}

/* Units of UNIT columns, those of one batch after those of another. */
static int
run_units(const void *data, int64_t begin, int64_t end, char *message)
{
    const Thin *thin = data;
    const int64_t each = (thin->columns + UNIT - 1) / UNIT;
    (void)message;
    while (begin < end) {
        int64_t batch = begin / each, first = begin % each, last = end - batch * each;
        if (last > each)
            last = each;
        int64_t columns = last * UNIT < thin->columns ? last * UNIT : thin->columns;
        RUN[thin->vectors](thin, batch, first * UNIT, columns);
        begin = batch * each + last;
    }
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* What a program says of a product, which may come from anywhere. */
static int
read_product(const Frame *frame, Thin *thin, char *message)
{
    const int64_t *how = array_of(frame, "how", S64, 2);
    if (!how || how[1] < PORTABLE || how[1] > AVX512_BF16)
        return fail(message, "its attributes are not those that the bridge writes");
    if (frame->operands.count != 2 || frame->results.count != 1 ||
        frame->operands.types[0] != BUFFER || frame->operands.types[1] != BUFFER ||
        frame->results.types[0] != BUFFER)
        return fail(message, "expected two operands and one result, all arrays");
    const Buffer *x = frame->operands.buffers[0], *weights = frame->operands.buffers[1];
    const Buffer *result = frame->results.buffers[0];
    if (!REACHES(x->size, Buffer, dims) || !REACHES(weights->size, Buffer, dims) ||
        !REACHES(result->size, Buffer, dims))
        return fail(message, "an operand or its result ends early");
    if ((x->dtype != F32 && x->dtype != BF16) ||
        (weights->dtype != F32 && weights->dtype != BF16 && weights->dtype != S8) ||
        (result->dtype != F32 && result->dtype != BF16))
        return fail(message, "found element types %d, %d and %d, expected float32 or bfloat16, and "
                    "for weights int8", x->dtype, weights->dtype, result->dtype);
    bool turned = how[0] != 0;
    if (x->rank != 3 || weights->rank != 3 || result->rank != 3 ||
        weights->dims[0] != x->dims[0] || result->dims[0] != x->dims[0] ||
        result->dims[1] != x->dims[1] || weights->dims[1 + turned] != x->dims[2] ||
        weights->dims[2 - turned] != result->dims[2])
        return fail(message, "its operands and its result do not fit each other");
    *thin = (Thin){
        .x = x->data, .weights = weights->data, .result = result->data, .x_type = x->dtype,
        .weight_type = weights->dtype, .result_type = result->dtype, .batches = x->dims[0],
        .rows = x->dims[1], .inner = x->dims[2], .columns = result->dims[2],
        .stride = weights->dims[2] * SIZE(weights->dtype), .is_transposed = turned,
    };
    const Vectors widest = widest_vectors(thin);
    thin->vectors = how[1] < (int64_t)widest ? (int)how[1] : (int)widest;
    return 0;
}

/* A product of at most MOST_ROWS rows. */
static int
multiply_batches(const Frame *frame, Thin *thin, char *message)
{
    /* Nothing overflows: the operands are in memory, and there are few rows. */
    size_t count = (size_t)thin->batches * floats_of_copy(thin->rows, thin->inner);
    if (!thin->batches || !thin->rows || !thin->columns)
        return 0;
    /* A vector that lies in two lines of the cache takes twice as long to load. */
    void *copy = NULL;
    if (posix_memalign(&copy, LINE, (count ? count : 1) * sizeof *thin->copy))
        return fail(message, "no memory is left");
    thin->copy = copy;
    COPY[thin->vectors](thin);
    int64_t units = thin->batches * ((thin->columns + UNIT - 1) / UNIT);
    int64_t bytes = UNIT * thin->inner * SIZE(thin->weight_type);
    const Division division = {run_units, thin, units, WORTH_A_THREAD / (bytes + 1) + 1, 1};
    int failed = divide(frame, &division, message);
    free(thin->copy);
    return failed;
}

static int
run_product(const Frame *frame, Thin *thin, char *message)
{
    if (thin->rows <= MOST_ROWS)
        return multiply_batches(frame, thin, message);
    const int64_t x_size = SIZE(thin->x_type), result_size = SIZE(thin->result_type);
    const int64_t weights = thin->inner * thin->columns * SIZE(thin->weight_type);
    for (int64_t batch = 0; batch < thin->batches; batch++)
        for (int64_t row = 0; row < thin->rows; row += MOST_ROWS) {
            const int64_t first = batch * thin->rows + row, left = thin->rows - row;
            Thin part = *thin;
            part.batches = 1, part.rows = left < MOST_ROWS ? left : MOST_ROWS;
            part.x += first * thin->inner * x_size;
            part.weights += batch * weights;
            part.result += first * thin->columns * result_size;
            if (multiply_batches(frame, &part, message))
                return -1;
        }
    return 0;
}

Error *
multiply_thin(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME_OF_CALL, &answer))
        return answer;
    char message[MESSAGE] = "";
    Thin thin;
    if (check_caller(frame, message) || read_product(frame, &thin, message))
        return refuse(frame, INVALID_ARGUMENT, NAME_OF_CALL, message);
    if (run_product(frame, &thin, message))
        return refuse(frame, INTERNAL, NAME_OF_CALL, message);
    return NULL;
}
