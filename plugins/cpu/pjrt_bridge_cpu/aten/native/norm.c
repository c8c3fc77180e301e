/* See norm.h. */

#include "norm.h"

#include "divide.h"
#include "vectors.h"

#include <math.h>
#include <stdlib.h>

static const char NAME[] = "A norm of rows";

/* Bytes of x that are worth waking a thread. */
enum { WORTH_A_THREAD = 1 << 16 };
/* Elements whose sum is added up in float32: the sums of these are added in float64. */
enum { BLOCK = 4096, SIDES = 64, LINE = 64 };

typedef struct {
    const char *x;
    const float *weight, *bias; /* The type of each may be another one as they are read. */
    char *y;
    float *mean, *rstd;
    int x_type, y_type, weight_type, bias_type;
    int64_t rows, length;
    int64_t sets, count; /* Of weights and biases; how many are in a set. */
    double eps;
    bool is_centered, is_rounded;
    Vectors vectors;
} Norm;

/* -- a row ----------------------------------------------------------------------------------- */

INLINE int64_t
size_of(int type)
{
    return type == F32 ? 4 : 2;
}

INLINE float
float_at(const char *data, int type, int64_t index)
{
    if (type == F32)
        return ((const float *)data)[index];
    return from_bfloat16(((const uint16_t *)data)[index]);
}

INLINE float
rounded(float value)
{
    return from_bfloat16(to_bfloat16(value));
}

INLINE void
put(char *data, int type, int64_t index, float value)
{
    if (type == F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = to_bfloat16(value);
}

INLINE float
value_of(float value, bool is_squared, float center)
{
    return is_squared ? (value - center) * (value - center) : value;
}

/* The sum of elements, or that of the squares of what is beyond a number. */
INLINE double
sum_block(const char *restrict x, int type, int64_t begin, int64_t end, bool is_squared,
          float center, int64_t length)
{
    float sums[SIDES] = {0}, total = 0;
    int64_t i = begin;
#define VALUE(index) value_of(float_at(x, type, index), is_squared, center)
    for (; i + SIDES <= end; i += SIDES) {
        /* The next row, which the loop over this one does not wait for. */
        if (is_squared)
            for (int64_t line = 0; line < SIDES * size_of(type); line += LINE)
                __builtin_prefetch(x + (i + length) * size_of(type) + line);
        for (int64_t side = 0; side < SIDES; side++)
            sums[side] += VALUE(i + side);
    }
    for (; i < end; i++)
        total += VALUE(i);
#undef VALUE
    for (int64_t half = SIDES / 2; half; half /= 2)
        for (int64_t side = 0; side < half; side++)
            sums[side] += sums[side + half];
    return (double)(total + sums[0]);
}

INLINE double
mean_of(const Norm *norm, const char *x, int type, bool is_squared, float center)
{
    double total = 0;
    for (int64_t begin = 0; begin < norm->length; begin += BLOCK) {
        const int64_t left = norm->length - begin;
        total += sum_block(x, type, begin, left < BLOCK ? norm->length : begin + BLOCK, is_squared,
                           center, norm->length);
    }
    return total / (double)norm->length;
}

INLINE void
write_row(const Norm *norm, const char *restrict x, int64_t row, int x_type, int y_type,
          bool is_rounded)
{
    char *restrict y = norm->y + row * norm->length * size_of(y_type);
    const int64_t first = row % norm->sets * norm->count;
    const float *restrict weight = norm->weight + first, *restrict bias = norm->bias + first;
    const float mean = norm->mean[row], rstd = norm->rstd[row];
#define NORMAL(index) (float_at(x, x_type, index) - mean) * rstd
#define PUT(index, normal, k) \
    put(y, y_type, index, (is_rounded ? rounded(normal) : (normal)) * weight[k] + bias[k])
    if (norm->count == norm->length) {
        for (int64_t i = 0; i < norm->length; i++)
            PUT(i, NORMAL(i), i);
        return;
    }
    const int64_t side = norm->length / norm->count;
    for (int64_t k = 0; k < norm->count; k++)
        for (int64_t i = k * side; i < (k + 1) * side; i++)
            PUT(i, NORMAL(i), k);
#undef PUT
#undef NORMAL
}

INLINE void
run_rows_of(const Norm *norm, int type, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        const char *x = norm->x + row * norm->length * size_of(type);
        const float mean = norm->is_centered ? (float)mean_of(norm, x, type, false, 0) : 0;
        norm->mean[row] = mean;
        norm->rstd[row] = (float)(1 / sqrt(mean_of(norm, x, type, true, mean) + norm->eps));
#define WRITE(y_type, is_rounded) write_row(norm, x, row, type, y_type, is_rounded)
        if (norm->y_type == F32 && norm->is_rounded)
            WRITE(F32, true);
        else if (norm->y_type == F32)
            WRITE(F32, false);
        else if (norm->is_rounded)
            WRITE(BF16, true);
        else
            WRITE(BF16, false);
#undef WRITE
    }
}

INLINE void
run_rows(const Norm *norm, int64_t begin, int64_t end)
{
    if (norm->x_type == F32)
        run_rows_of(norm, F32, begin, end);
    else
        run_rows_of(norm, BF16, begin, end);
}

static void
run_portable(const Norm *norm, int64_t begin, int64_t end)
{
    run_rows(norm, begin, end);
}

FOR_AVX2 static void
run_avx2(const Norm *norm, int64_t begin, int64_t end)
{
    run_rows(norm, begin, end);
}

FOR_AVX512 static void
run_avx512(const Norm *norm, int64_t begin, int64_t end)
{
    run_rows(norm, begin, end);
}

static void (*const RUN[])(const Norm *, int64_t, int64_t) = {run_portable, run_avx2, run_avx512};

static int
run_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Norm *norm = data;
    (void)message;
    RUN[norm->vectors](norm, begin, end);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* What a program says of a norm, which may come from anywhere. */
static int
read_norm(const Frame *frame, Norm *norm, char *message)
{
    const int64_t *how = array_of(frame, "how", S64, 3);
    const double *eps = array_of(frame, "eps", F64, 1);
    if (!how || !eps || how[2] < PORTABLE || how[2] > AVX512)
        return fail(message, "its attributes are not those that the bridge writes");
    const Buffer *all[6];
    if (read_arrays(frame, 3, 3, all, message))
        return -1;
    for (int i = 0; i < 6; i++) {
        const bool is_statistic = i > 3;
        if (all[i]->dtype != F32 && (is_statistic || all[i]->dtype != BF16))
            return fail(message, "found element type %d, expected float32%s", all[i]->dtype,
                        is_statistic ? "" : " or bfloat16");
        if (all[i]->rank != 2 - is_statistic)
            return fail(message, "found an array of rank %lld, expected %d",
                        (long long)all[i]->rank, 2 - is_statistic);
    }
    const Buffer *x = all[0], *weight = all[1], *bias = all[2], *y = all[3];
    const int64_t rows = x->dims[0], length = x->dims[1];
    const int64_t sets = weight->dims[0], count = weight->dims[1];
    bool fits = bias->dims[0] == sets && bias->dims[1] == count && y->dims[0] == rows &&
                y->dims[1] == length && all[4]->dims[0] == rows && all[5]->dims[0] == rows;
    fits = fits && (sets ? rows % sets == 0 : !rows) && (count ? length % count == 0 : !length);
    if (!fits)
        return fail(message, "its operands and its results do not fit each other");
    const Vectors widest = widest_vectors();
    *norm = (Norm){
        .x = x->data, .weight = (const float *)weight->data, .bias = (const float *)bias->data,
        .y = y->data, .mean = (float *)all[4]->data, .rstd = (float *)all[5]->data,
        .x_type = x->dtype, .y_type = y->dtype, .weight_type = weight->dtype,
        .bias_type = bias->dtype, .rows = rows, .length = length, .sets = sets, .count = count,
        .eps = *eps,
        .is_centered = how[0] != 0, .is_rounded = how[1] != 0,
        .vectors = how[2] < (int64_t)widest ? (Vectors)how[2] : widest,
    };
    return 0;
}

/* Weight and bias in float32, in memory that they return; NULL where they are so already. */
static int
widen_sides(Norm *norm, float **memory, char *message)
{
    const float **sides[] = {&norm->weight, &norm->bias};
    const int types[] = {norm->weight_type, norm->bias_type};
    *memory = NULL;
    if (types[0] == F32 && types[1] == F32)
        return 0;
    const int64_t all = norm->sets * norm->count;
    *memory = calloc((size_t)all + 1, 2 * sizeof **memory);
    if (!*memory)
        return fail(message, "no memory is left for %lld weights", (long long)all);
    for (int side = 0; side < 2; side++) {
        float *wide = *memory + side * all;
        if (types[side] == F32)
            continue;
        for (int64_t i = 0; i < all; i++)
            wide[i] = float_at((const char *)*sides[side], BF16, i);
        *sides[side] = wide;
    }
    return 0;
}

Error *
normalize_rows(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Norm norm;
    if (check_caller(frame, message) || read_norm(frame, &norm, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    float *memory;
    if (widen_sides(&norm, &memory, message))
        return refuse(frame, INTERNAL, NAME, message);
    const int64_t bytes = norm.length * size_of(norm.x_type);
    const Division division = {run_range, &norm, norm.rows, WORTH_A_THREAD / (bytes + 1) + 1, 1};
    const int failed = norm.rows ? divide(frame, &division, message) : 0;
    free(memory);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}
