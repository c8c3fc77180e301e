/* See pool.h. */

#include "pool.h"

#include "divide.h"
#include "vectors.h"

#include <math.h>

static const char NAME[] = "Pooling";

enum {
    LANES = 256,             /* Windows whose maxima are sought at once. */
    WIDE = 4096,             /* Elements of rows of a plane that are. */
    WORTH_A_THREAD = 1 << 15 /* Elements that are. */
};

/* What a call is given: planes; the same, with divisors; numbers of windows. */
typedef enum { OF_PLANES, AVERAGES, OF_WINDOWS } Given;

/* What is computed of a window. */
typedef enum { MAXIMUM, POSITION, SUM } Kind;

typedef struct {
    int64_t count, step, padding, distance; /* Of a window's places along one dimension. */
} Along;

typedef struct {
    const float *data;      /* Planes, or a number for each window. */
    const int64_t *places;  /* Of gradients: what the numbers belong to. */
    const float *divisors;  /* Of averages: of each window. */
    char *result;
    int64_t outer, height, width, inner, rows, columns;
    Along down, across;
    Vectors vectors;
} Pool;

/* The first window along a dimension that has a place in the plane, and the one behind the last. */
INLINE int64_t
window_from(const Along *along, int64_t place)
{
    const int64_t missing = along->padding - place * along->distance;
    return missing > 0 ? (missing + along->step - 1) / along->step : 0;
}

INLINE int64_t
window_behind(const Along *along, int64_t place, int64_t length, int64_t windows)
{
    const int64_t room = length - 1 + along->padding - place * along->distance;
    const int64_t behind = room < 0 ? 0 : room / along->step + 1;
    return behind < windows ? behind : windows;
}

/* What is larger so far, and where it is. Neighbouring lanes read elements of a distance. */
INLINE void
take_larger(float *best, int32_t *at, const float *from, int64_t distance, int32_t position,
            int32_t step, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const float value = from[i * distance];
        const int taken = value > best[i] || value != value;
        best[i] = taken ? value : best[i];
        at[i] = taken ? position + (int32_t)i * step : at[i];
    }
}

/* What is larger, or a NaN; or sums. The compiler makes vectors of distances that it knows. */
INLINE void
combine_of(Kind kind, float *to, const float *from, int64_t distance, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        const float value = from[i * distance];
        if (kind == SUM)
            to[i] += value;
        else
            to[i] = value > to[i] || value != value ? value : to[i];
    }
}

INLINE void
combine(Kind kind, float *to, const float *from, int64_t distance, int64_t count)
{
    if (distance == 1)
        combine_of(kind, to, from, 1, count);
    else if (distance == 2)
        combine_of(kind, to, from, 2, count);
    else
        combine_of(kind, to, from, distance, count);
}

/* The first place of a window that is in the plane. */
INLINE int64_t
first_inside(const Along *along, int64_t window)
{
    const int64_t start = window * along->step - along->padding;
    return start >= 0 ? start : (along->distance - -start % along->distance) % along->distance;
}

/* Some windows of one row: lanes are windows where a plane's elements are one number each, else
 * numbers of the elements of one window. */
INLINE void
pool_lanes(const Pool *pool, Kind kind, int64_t row, int64_t column, int64_t from, int64_t count,
           float *best, int32_t *at)
{
    const int64_t outer = row / pool->rows, y = row % pool->rows, inner = pool->inner;
    const float *plane = pool->data + outer * pool->height * pool->width * inner;
    for (int64_t i = 0; i < count; i++) {
        const int64_t x = inner == 1 ? column + i : column;
        best[i] = kind == SUM ? 0 : -INFINITY;
        if (kind == POSITION)
            at[i] = (int32_t)(first_inside(&pool->down, y) * pool->width +
                              first_inside(&pool->across, x));
    }
    for (int64_t k = 0; k < pool->down.count; k++) {
        const int64_t h = y * pool->down.step - pool->down.padding + k * pool->down.distance;
        for (int64_t m = 0; m < pool->across.count && h >= 0 && h < pool->height; m++) {
            const Along *across = &pool->across;
            const int64_t shift = m * across->distance - across->padding;
            if (inner > 1) {
                const int64_t w = column * across->step + shift;
                const float *place = plane + (h * pool->width + w) * inner + from;
                if (w < 0 || w >= pool->width)
                    continue;
                if (kind != POSITION)
                    combine(kind, best, place, 1, count);
                else
                    take_larger(best, at, place, 1, (int32_t)(h * pool->width + w), 0, count);
                continue;
            }
            int64_t begin = window_from(across, m) - column;
            int64_t end = window_behind(across, m, pool->width, pool->columns) - column;
            begin = begin < 0 ? 0 : begin;
            end = end > count ? count : end;
            const int64_t position = h * pool->width + (column + begin) * across->step + shift;
            if (begin < end && kind != POSITION)
                combine(kind, best + begin, plane + position, across->step, end - begin);
            else if (begin < end)
                take_larger(best + begin, at + begin, plane + position, across->step,
                            (int32_t)position, (int32_t)across->step, end - begin);
        }
    }
}

INLINE void
fill(float *to, float number, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = number;
}

/* Rows of planes whose elements are one number each: first what windows have of each column, and
 * then along these. Windows that lie side by side without gaps are looked at in several rows. */
INLINE void
pool_wide_rows(const Pool *pool, Kind kind, int64_t begin, int64_t end)
{
    const Along *down = &pool->down, *across = &pool->across;
    const int64_t width = pool->width, columns = pool->columns;
    const bool is_tight = !across->padding && columns * across->step == width &&
                          (across->count - 1) * across->distance < across->step;
    const float none = kind == SUM ? 0 : -INFINITY;
    float tall[WIDE];
    for (int64_t row = begin, rows; row < end; row += rows) {
        const int64_t outer = row / pool->rows, y = row % pool->rows, fitting = WIDE / width;
        const float *plane = pool->data + outer * pool->height * width;
        rows = !is_tight ? 1 : pool->rows - y < end - row ? pool->rows - y : end - row;
        rows = rows < fitting ? rows : fitting;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t first = (y + i) * down->step - down->padding;
            float *to = tall + i * width;
            bool is_empty = true;
            for (int64_t k = 0; k < down->count; k++) {
                const int64_t h = first + k * down->distance;
                if (h < 0 || h >= pool->height)
                    continue;
                if (is_empty)
                    memcpy(to, plane + h * width, (size_t)width * sizeof *to);
                else
                    combine(kind, to, plane + h * width, 1, width);
                is_empty = false;
            }
            if (is_empty)
                fill(to, none, width);
        }
        float *best = (float *)(void *)pool->result + row * columns;
        fill(best, none, rows * columns);
        for (int64_t m = 0; m < across->count; m++) {
            const int64_t from = is_tight ? 0 : window_from(across, m);
            const int64_t behind =
                is_tight ? rows * columns : window_behind(across, m, width, columns);
            const int64_t place = from * across->step + m * across->distance - across->padding;
            if (from < behind)
                combine(kind, best + from, tall + place, across->step, behind - from);
        }
        for (int64_t i = 0; kind == SUM && i < rows * columns; i++)
            best[i] /= pool->divisors[y * columns + i];
    }
}

INLINE void
pool_rows(const Pool *pool, Kind kind, int64_t begin, int64_t end)
{
    float best[LANES];
    int32_t at[LANES];
    if (kind != POSITION && pool->inner == 1 && pool->width <= WIDE) {
        pool_wide_rows(pool, kind, begin, end);
        return;
    }
    const int64_t lanes = pool->inner == 1 ? pool->columns : pool->inner;
    const int64_t groups = pool->inner == 1 ? 1 : pool->columns;
    for (int64_t row = begin; row < end; row++)
        for (int64_t group = 0; group < groups; group++)
            for (int64_t from = 0; from < lanes; from += LANES) {
                const int64_t count = lanes - from < LANES ? lanes - from : LANES;
                const int64_t column = pool->inner == 1 ? from : group;
                const int64_t first = (row * groups + group) * lanes + from;
                pool_lanes(pool, kind, row, column, from, count, best, at);
                for (int64_t i = 0; kind == SUM && i < count; i++)
                    best[i] /= pool->divisors[row % pool->rows * pool->columns + column +
                                              (pool->inner == 1 ? i : 0)];
                if (kind != POSITION)
                    memcpy((float *)(void *)pool->result + first, best,
                           (size_t)count * sizeof *best);
                for (int64_t i = 0; kind == POSITION && i < count; i++)
                    ((int64_t *)(void *)pool->result)[first + i] = at[i];
            }
}

#define FOR_EACH_KIND_OF_VECTORS(NAME, KIND)                                                       \
    static void NAME##_portable(const Pool *pool, int64_t begin, int64_t end)                      \
    {                                                                                              \
        pool_rows(pool, KIND, begin, end);                                                         \
    }                                                                                              \
    FOR_AVX2 static void NAME##_avx2(const Pool *pool, int64_t begin, int64_t end)                 \
    {                                                                                              \
        pool_rows(pool, KIND, begin, end);                                                         \
    }                                                                                              \
    FOR_AVX512 static void NAME##_avx512(const Pool *pool, int64_t begin, int64_t end)             \
    {                                                                                              \
        pool_rows(pool, KIND, begin, end);                                                         \
    }                                                                                              \
    static int NAME##_range(const void *data, int64_t begin, int64_t end, char *message)           \
    {                                                                                              \
        const Pool *pool = data;                                                                   \
        void (*const run[])(const Pool *, int64_t, int64_t) = {NAME##_portable, NAME##_avx2,       \
                                                               NAME##_avx512};                     \
        (void)message;                                                                             \
        run[pool->vectors](pool, begin, end);                                                      \
        return 0;                                                                                  \
    }

FOR_EACH_KIND_OF_VECTORS(maxima, MAXIMUM)
FOR_EACH_KIND_OF_VECTORS(positions, POSITION)
FOR_EACH_KIND_OF_VECTORS(averages, SUM)

/* Parts of planes: so many numbers of each element. */
static int
gradients_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Pool *pool = data;
    const int64_t inner = pool->inner, size = pool->height * pool->width;
    const int64_t parts = (inner + LANES - 1) / LANES, windows = pool->rows * pool->columns;
    (void)message;
    for (int64_t part = begin; part < end; part++) {
        const int64_t outer = part / parts, from = part % parts * LANES;
        const int64_t count = inner - from < LANES ? inner - from : LANES;
        float *plane = (float *)(void *)pool->result + outer * size * inner + from;
        for (int64_t i = 0; i < size; i++)
            memset(plane + i * inner, 0, (size_t)count * sizeof *plane);
        for (int64_t window = 0; window < windows; window++) {
            const int64_t first = (outer * windows + window) * inner + from;
            for (int64_t i = 0; i < count; i++) {
                const int64_t place = pool->places[first + i];
                if (place >= 0 && place < size)
                    plane[place * inner + i] += pool->data[first + i];
            }
        }
    }
    return 0;
}

/* -- the calls ------------------------------------------------------------------------------- */

static bool
is_plane(const Buffer *buffer, int dtype)
{
    return buffer->rank == 4 && buffer->dtype == dtype;
}

/* What a program says of pooling, which may come from anywhere. */
static int
read_pool(const Frame *frame, Pool *pool, Given given, int result_type, char *message)
{
    const Buffer *all[3];
    const bool is_gradient = given == OF_WINDOWS;
    const int operands = given == OF_PLANES ? 1 : 2;
    if (read_arrays(frame, operands, 1, all, message))
        return -1;
    const Buffer *result = all[operands];
    const Buffer *planes = is_gradient ? result : all[0], *windows = is_gradient ? all[0] : result;
    if (!is_plane(all[0], F32) || !is_plane(result, result_type) ||
        (is_gradient && !is_plane(all[1], S64)))
        return fail(message, "found element types %d and %d, expected planes of float32 and "
                    "positions of int64", all[0]->dtype, result->dtype);
    const int64_t *numbers = array_of(frame, "window", S64, WINDOW_NUMBERS);
    bool fits = numbers && planes->dims[0] == windows->dims[0] &&
                planes->dims[3] == windows->dims[3] &&
                planes->dims[1] * planes->dims[2] <= INT32_MAX;
    for (int i = 0; fits && i < WINDOW_NUMBERS; i++)
        /* Paddings may be 0. */
        fits = numbers[i] >= (i / 2 != 2) && numbers[i] <= INT16_MAX;
    for (int d = 0; fits && is_gradient && d < 4; d++)
        fits = all[1]->dims[d] == windows->dims[d];
    if (fits && given == AVERAGES)
        fits = all[1]->rank == 2 && all[1]->dtype == F32 && all[1]->dims[0] == windows->dims[1] &&
               all[1]->dims[1] == windows->dims[2];
    if (!fits)
        return fail(message, "its operands, its result and its windows do not fit each other");
    const Vectors widest = widest_vectors();
    *pool = (Pool){
        .data = (const float *)(const void *)all[0]->data,
        .places = is_gradient ? (const int64_t *)(const void *)all[1]->data : NULL,
        .divisors = given == AVERAGES ? (const float *)(const void *)all[1]->data : NULL,
        .result = result->data,
        .outer = planes->dims[0], .height = planes->dims[1], .width = planes->dims[2],
        .inner = planes->dims[3], .rows = windows->dims[1], .columns = windows->dims[2],
        .down = {numbers[0], numbers[2], numbers[4], numbers[6]},
        .across = {numbers[1], numbers[3], numbers[5], numbers[7]},
        .vectors = widest,
    };
    return 0;
}

static Error *
run_pool(Frame *frame, int (*run)(const void *, int64_t, int64_t, char *), Given given,
         int result_type)
{
    const bool is_gradient = given == OF_WINDOWS;
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Pool pool;
    if (check_caller(frame, message) ||
        read_pool(frame, &pool, given, result_type, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    const int64_t parts = (pool.inner + LANES - 1) / LANES;
    const int64_t length = pool.outer * (is_gradient ? parts : pool.rows);
    const int64_t numbers = pool.outer * pool.rows * pool.columns * pool.inner;
    if (!length || (!numbers && !is_gradient))
        return NULL;
    const int64_t places = is_gradient ? 1 : pool.down.count * pool.across.count;
    const int64_t each = numbers / length * places + 1;
    const Division division = {run, &pool, length, WORTH_A_THREAD / each + 1, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}

Error *
pool_maxima(Frame *frame)
{
    return run_pool(frame, maxima_range, OF_PLANES, F32);
}

Error *
pool_positions(Frame *frame)
{
    return run_pool(frame, positions_range, OF_PLANES, S64);
}

Error *
pool_averages(Frame *frame)
{
    return run_pool(frame, averages_range, AVERAGES, F32);
}

Error *
pool_gradients(Frame *frame)
{
    return run_pool(frame, gradients_range, OF_WINDOWS, F32);
}
