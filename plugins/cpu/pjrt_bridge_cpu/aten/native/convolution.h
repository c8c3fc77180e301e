/* A convolution as loops have it: its window, and elements of its arrays. */

#ifndef PJRT_BRIDGE_CPU_CONVOLUTION_H
#define PJRT_BRIDGE_CPU_CONVOLUTION_H

#include "frame.h"
#include "lanes.h"
#include "vectors.h"

#include <stdbool.h>

/* Elements of a channel's weights, at most; floats of a block. */
enum { MOST_TAPS = 64, BLOCK = 4 * LANES };

/* The attribute `window` has so many int64: four that each call defines; then in pairs, of height and
 * width, the sizes of the data, of the result (of its gradient), of the weights, and per dimension
 * the distance of windows, of the data's elements (zeros are between them), of the weights' elements,
 * and the zeros before the data, of which a negative number cuts. */
enum { WINDOW = 4 + 2 * 7 };

typedef uint32_t Eight __attribute__((vector_size(32)));
typedef uint16_t EightHalves __attribute__((vector_size(16)));
typedef EightHalves EightHalvesAt __attribute__((aligned(1), may_alias));

/* One dimension of the window: sizes of the data, the result and the weights; distances of windows,
 * of the data's elements and of the weights'; zeros before the data. */
typedef struct {
    int64_t data, result, taps, stride, spread, step, low;
} Way;

typedef struct Convolution {
    int64_t batches, channels, taps;
    Way y, x;
    const Buffer *data, *other, *result;
    /* Of channels first: rows that are copied at once, of how many floats, the floats of one
     * residue's rows, and where each tap is in them. */
    int64_t rows, pitch, plane, places[MOST_TAPS];
    /* Of depthwise ones: which one it is. */
    bool is_gradient, is_last;
    /* Of depthwise ones with channels last: for each tap the weights of all channels in the order of
     * vectors, and of padding up to several. */
    float *weights;
    int64_t padded;
    bool has_special; /* A weight that times 0 is not 0. */
    void (*run)(const struct Convolution *, float *, int64_t, int64_t);
} Convolution;

INLINE float
number_at(const Buffer *buffer, int64_t at)
{
    return buffer->dtype == F32 ? ((const float *)(const void *)buffer->data)[at]
                                : from_bfloat16(((const uint16_t *)(const void *)buffer->data)[at]);
}

INLINE void
put_number(const Buffer *buffer, int64_t at, float value)
{
    if (buffer->dtype == F32)
        ((float *)(void *)buffer->data)[at] = value;
    else
        ((uint16_t *)(void *)buffer->data)[at] = to_bfloat16(value);
}

/* Floats that overlap nothing. Rows are short: a call of the C library would take longer. */
INLINE void
copy_floats(float *to, const float *from, int64_t count)
{
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES)
        AT(to + at) = AT(from + at);
    if (at == count)
        return;
    if (count >= LANES)
        AT(to + count - LANES) = AT(from + count - LANES);
    else if (count >= LANES / 2) {
        memcpy(to, from, LANES / 2 * sizeof *to);
        memcpy(to + count - LANES / 2, from + count - LANES / 2, LANES / 2 * sizeof *to);
    } else
        for (; at < count; at++)
            to[at] = from[at];
}

INLINE void
clear_floats(float *to, int64_t count)
{
    const Lanes zeros = {0};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES)
        AT(to + at) = zeros;
    for (; at < count; at++)
        to[at] = 0;
}

/* Eight bfloat16 as floats, and the other way round. */
INLINE void
widen_eight(float *to, const uint16_t *from)
{
    Eight words = __builtin_convertvector(*(const EightHalvesAt *)(const void *)from, Eight) << 16;
    memcpy(to, &words, sizeof words);
}

INLINE void
narrow_eight(uint16_t *to, const float *from)
{
    Eight words;
    memcpy(&words, from, sizeof words);
    const Eight is_nan = (Eight)((words & 0x7fffffff) > 0x7f800000);
    words = ((words + 0x7fff + (words >> 16 & 1)) & ~is_nan) | ((words | 0x400000) & is_nan);
    *(EightHalvesAt *)(void *)to = __builtin_convertvector(words >> 16, EightHalves);
}

/* A row of an array as floats. */
INLINE void
read_run(float *to, const Buffer *buffer, int64_t at, int64_t count)
{
    if (buffer->dtype == F32) {
        copy_floats(to, (const float *)(const void *)buffer->data + at, count);
        return;
    }
    const uint16_t *from = (const uint16_t *)(const void *)buffer->data + at;
    int64_t done = 0;
    for (; done + 8 <= count; done += 8)
        widen_eight(to + done, from + done);
    if (done < count && count >= 8)
        widen_eight(to + count - 8, from + count - 8);
    else
        for (; done < count; done++)
            to[done] = from_bfloat16(from[done]);
}

INLINE void
write_run(const Buffer *buffer, int64_t at, const float *from, int64_t count)
{
    if (buffer->dtype == F32) {
        copy_floats((float *)(void *)buffer->data + at, from, count);
        return;
    }
    uint16_t *to = (uint16_t *)(void *)buffer->data + at;
    int64_t done = 0;
    for (; done + 8 <= count; done += 8)
        narrow_eight(to + done, from + done);
    if (done < count && count >= 8)
        narrow_eight(to + count - 8, from + count - 8);
    else
        for (; done < count; done++)
            to[done] = to_bfloat16(from[done]);
}

/* The index of the data's element at a place; -1 outside and between elements. */
INLINE int64_t
index_of(const Way *way, int64_t place)
{
    const int64_t at = place / way->spread;
    return place < 0 || at >= way->data || place % way->spread ? -1 : at;
}

/* The same for a tap of a window. */
INLINE int64_t
index_at(const Way *way, int64_t window, int64_t tap)
{
    return index_of(way, window * way->stride + tap * way->step - way->low);
}

/* Whether a buffer has as many elements as the product of some numbers. */
static inline bool
has_elements(const Buffer *buffer, const int64_t *numbers, int count)
{
    int64_t size = 1;
    for (int i = 0; i < count; i++)
        if (__builtin_mul_overflow(size, numbers[i], &size))
            return false;
    return size == count_of(buffer);
}

/* The largest number of the attribute `window`. */
enum { LARGEST = 1 << 30 };

/* What calls have in common of what a program says: the arrays, the window along height and width,
 * and the attribute's numbers, of which the first `flags` are 0 or 1. */
static inline int
read_window(const Frame *frame, int flags, Convolution *d, const int64_t **numbers, char *message)
{
    const Buffer *all[3];
    if (read_arrays(frame, 2, 1, all, message))
        return -1;
    const int64_t *window = *numbers = array_of(frame, "window", S64, WINDOW);
    if (!window)
        return fail(message, "its attributes are not those that the bridge writes");
    for (int i = 0; i < WINDOW; i++) {
        /* Zeros before the data may be a negative number. */
        const int64_t least = i < flags ? 0 : i < WINDOW - 2 ? 1 : -LARGEST;
        if (window[i] < least || window[i] > (i < flags ? 1 : LARGEST))
            return fail(message, "number %d of its window is %lld", i, (long long)window[i]);
    }
    for (int i = 0; i < 3; i++)
        if (all[i]->dtype != F32 && all[i]->dtype != BF16)
            return fail(message, "found element type %d, expected float32 or bfloat16",
                        all[i]->dtype);
    if (all[0]->dtype != all[1]->dtype)
        return fail(message, "its operands have different element types");
    const int64_t *w = window + 4;
    *d = (Convolution){
        .taps = w[4] * w[5],
        .y = {w[0], w[2], w[4], w[6], w[8], w[10], w[12]},
        .x = {w[1], w[3], w[5], w[7], w[9], w[11], w[13]},
        .data = all[0], .other = all[1], .result = all[2],
    };
    return 0;
}

#endif
