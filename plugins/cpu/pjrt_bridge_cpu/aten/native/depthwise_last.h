/* Convolution convolutions of data with channels last, which need no copy.
 *
 * Channels are computed in groups: of float32 as many as a vector has, of bfloat16 twice as many,
 * those at even places in one vector and those at odd places in another one. So a word of two
 * bfloat16 becomes two float32 without a shuffle. The functions here are compiled for each type.
 */

#ifndef PJRT_BRIDGE_CPU_DEPTHWISE_LAST_H
#define PJRT_BRIDGE_CPU_DEPTHWISE_LAST_H

#include "convolution.h"

/* Vectors of a group, at most, and of sums at once. */
enum { VECTORS = 2, SUMS = 6 };

typedef struct {
    Lanes each[VECTORS];
} Group;

INLINE int
vectors_of(int type)
{
    return type == F32 ? 1 : 2;
}

/* Where a channel of a group is in its vectors. */
INLINE int64_t
place_in_group(int type, int64_t channel)
{
    return type == F32 ? channel : channel % 2 * LANES + channel / 2;
}

/* Channels of a group. Those from `count` on have any number, where there is one before the `end` of
 * the data, and else are 0. */
INLINE void
read_group(Group *to, const char *data, int type, int64_t at, int64_t count, int64_t end)
{
    const int64_t width = type == F32 ? 4 : 2, all = LANES * vectors_of(type);
    char some[sizeof(Lanes)] = {0};
    const char *from = data + at * width;
    if (count < all && at + all > end) {
        memcpy(some, from, (size_t)(count * width));
        from = some;
    }
    if (type == F32) {
        to->each[0] = *(const LanesAt *)(const void *)from;
        return;
    }
    const Words pairs = *(const WordsAt *)(const void *)from;
    to->each[0] = (Lanes)(pairs << 16);
    to->each[1] = (Lanes)(pairs & 0xffff0000u);
}

/* Floats as bfloat16, in the upper halves of words; see `to_bfloat16`. */
INLINE void
round_lanes(Words *to, const Lanes *lanes)
{
    const Words bits = (Words)*lanes, is_nan = (Words)(*lanes != *lanes);
    const Words rounded = bits + 0x7fff + (bits >> 16 & 1);
    *to = ((rounded & ~is_nan) | ((bits | 0x400000) & is_nan)) & 0xffff0000u;
}

INLINE void
write_group(const Buffer *buffer, int64_t at, const Group *from, int type, int64_t count)
{
    const bool is_whole = count == LANES * vectors_of(type) && buffer->dtype == type;
    if (is_whole && type == F32)
        AT((float *)(void *)buffer->data + at) = from->each[0];
    else if (is_whole) {
        Words even, odd;
        round_lanes(&even, &from->each[0]);
        round_lanes(&odd, &from->each[1]);
        *(WordsAt *)(void *)((uint16_t *)(void *)buffer->data + at) = even >> 16 | odd;
    } else {
        float each[VECTORS * LANES];
        memcpy(each, from, sizeof each);
        for (int64_t i = 0; i < count; i++)
            put_number(buffer, at + i, each[place_in_group(type, i)]);
    }
}

/* The first channel of a place of data, or of a result. */
INLINE int64_t
place_at(const Convolution *d, int64_t rows, int64_t columns, int64_t batch, int64_t y, int64_t x)
{
    return ((batch * rows + y) * columns + x) * d->channels;
}

/* Columns of a row of the result whose windows have the same distance from the data's elements:
 * every `every`th one from `first` on. For each tap where it has the data's element of the first of
 * them, from one to the next how far that is further, the data's column, which may be outside, and
 * its weights. */
typedef struct {
    int64_t batch, row, first, every, count, next;
    int taps;
    int64_t places[MOST_TAPS], columns[MOST_TAPS], weights[MOST_TAPS];
} Columns;

/* The columns of a row that have a residue of `every`. */
INLINE void
find_columns(const Convolution *d, int64_t batch, int64_t row, int64_t residue, Columns *found)
{
    const Way *x = &d->x;
    int64_t divisor = x->stride, rest = x->spread;
    while (rest) {
        const int64_t next = divisor % rest;
        divisor = rest, rest = next;
    }
    found->batch = batch, found->row = row, found->first = residue;
    found->every = x->spread / divisor, found->next = x->stride / divisor, found->taps = 0;
    found->count = (x->result - residue + found->every - 1) / found->every;
    for (int64_t down = 0; down < d->y.taps; down++) {
        const int64_t y = index_at(&d->y, row, down);
        for (int64_t right = 0; right < x->taps && y >= 0; right++) {
            const int64_t place = residue * x->stride + right * x->step - x->low;
            if (place % x->spread)
                continue;
            const int64_t column = place / x->spread;
            found->places[found->taps] = place_at(d, d->y.data, x->data, batch, y, column);
            found->columns[found->taps] = column;
            found->weights[found->taps++] = down * x->taps + right;
        }
    }
}

/* Narrow the range of columns to those that have a tap inside of the data. */
INLINE void
narrow(const Convolution *d, const Columns *columns, int tap, int64_t *begin, int64_t *end)
{
    const int64_t first = columns->columns[tap], next = columns->next;
    const int64_t low = first < 0 ? (-first + next - 1) / next : 0;
    const int64_t high = first < d->x.data ? (d->x.data - 1 - first) / next + 1 : 0;
    *begin = low > *begin ? low : *begin;
    *end = high < *end ? high : *end;
    *begin = *begin < columns->count ? *begin : columns->count;
    *end = *end > *begin ? *end : *begin;
}

/* Some columns of a group. All of them have all taps, or there is one, which may lack some. */
INLINE void
convolve_together(const Convolution *d, const Columns *columns, int64_t column, int together,
                  int64_t channel, int64_t count, int type)
{
    const char *const data = d->data->data;
    const float *const weights = d->weights + channel;
    const int64_t padded = d->padded, far = columns->next * d->channels;
    const int64_t begin = column * far + channel, end = count_of(d->data);
    Group sums[SUMS] = {0};
    for (int tap = 0; tap < columns->taps; tap++) {
        if (together == 1) {
            const int64_t x = columns->columns[tap] + column * columns->next;
            if (x < 0 || x >= d->x.data)
                continue;
        }
        const float *each = weights + columns->weights[tap] * padded;
        const int64_t from = columns->places[tap] + begin;
        for (int k = 0; k < together; k++) {
            Group group;
            read_group(&group, data, type, from + k * far, count, end);
            for (int v = 0; v < vectors_of(type); v++)
                sums[k].each[v] += group.each[v] * AT(each + v * LANES);
        }
    }
    for (int k = 0; k < together; k++) {
        const int64_t x = columns->first + (column + k) * columns->every;
        const int64_t to = place_at(d, d->y.result, d->x.result, columns->batch, columns->row, x);
        write_group(d->result, to + channel, &sums[k], type, count);
    }
}

/* One column with all taps, also those that meet no element: 0 times a weight counts. */
INLINE void
convolve_specially(const Convolution *d, int64_t batch, int64_t row, int64_t column, int64_t channel,
                   int64_t count, int type)
{
    Group sum = {0};
    for (int64_t tap = 0; tap < d->taps; tap++) {
        const int64_t y = index_at(&d->y, row, tap / d->x.taps);
        const int64_t x = index_at(&d->x, column, tap % d->x.taps);
        Group group = {0};
        if (y >= 0 && x >= 0)
            read_group(&group, d->data->data, type,
                       place_at(d, d->y.data, d->x.data, batch, y, x) + channel, count,
                       count_of(d->data));
        for (int v = 0; v < vectors_of(type); v++)
            sum.each[v] += group.each[v] * AT(d->weights + tap * d->padded + channel + v * LANES);
    }
    const int64_t to = place_at(d, d->y.result, d->x.result, batch, row, column);
    write_group(d->result, to + channel, &sum, type, count);
}

/* Columns of a group. */
INLINE void
convolve_columns(const Convolution *d, const Columns *columns, int64_t channel, int64_t count,
                 int type)
{
    enum { OF_HALVES = SUMS / 2 };
    int64_t begin = 0, end = columns->count, at = 0;
    for (; at < columns->count && d->has_special; at++)
        convolve_specially(d, columns->batch, columns->row, columns->first + at * columns->every,
                           channel, count, type);
    for (int tap = 0; tap < columns->taps; tap++)
        narrow(d, columns, tap, &begin, &end);
    for (; at < begin; at++)
        convolve_together(d, columns, at, 1, channel, count, type);
    const int together = type == F32 ? SUMS : OF_HALVES;
    for (; at + together <= end; at += together)
        convolve_together(d, columns, at, type == F32 ? SUMS : OF_HALVES, channel, count, type);
    for (; at < columns->count; at++)
        convolve_together(d, columns, at, 1, channel, count, type);
}

/* A row of the result. */
INLINE void
convolve_places(const Convolution *d, int64_t unit, int type)
{
    const int64_t group = LANES * vectors_of(type);
    Columns columns;
    for (int64_t residue = 0; residue < d->x.spread && residue < d->x.result; residue++) {
        find_columns(d, unit / d->y.result, unit % d->y.result, residue, &columns);
        if (residue == columns.every)
            return;
        int64_t channel = 0;
        for (; channel + group <= d->channels; channel += group)
            convolve_columns(d, &columns, channel, group, type);
        if (channel < d->channels)
            convolve_columns(d, &columns, channel, d->channels - channel, type);
    }
}

/* What a row adds to the gradient of one tap of a group. */
INLINE void
weigh_row(const Convolution *d, Group *total, const Columns *columns, int tap, int64_t grads,
          int64_t channel, int64_t count, int type)
{
    enum { TOGETHER = 2 };
    const char *const data = d->data->data, *const other = d->other->data;
    int64_t begin = 0, end = columns->count;
    narrow(d, columns, tap, &begin, &end);
    const int64_t next = d->channels, far = columns->next * next;
    const int64_t last = count_of(d->data), last_grad = count_of(d->other);
    int64_t from = columns->places[tap] + channel + begin * far, to = grads + begin * next;
    Group sums[TOGETHER] = {0}, each, grad;
    int64_t at = begin;
    for (; at + TOGETHER <= end; at += TOGETHER)
        for (int k = 0; k < TOGETHER; k++, from += far, to += next) {
            read_group(&each, data, type, from, count, last);
            read_group(&grad, other, type, to, count, last_grad);
            for (int v = 0; v < vectors_of(type); v++)
                sums[k].each[v] += each.each[v] * grad.each[v];
        }
    if (at < end) {
        read_group(&each, data, type, from, count, last);
        read_group(&grad, other, type, to, count, last_grad);
        for (int v = 0; v < vectors_of(type); v++)
            sums[0].each[v] += each.each[v] * grad.each[v];
    }
    for (int v = 0; v < vectors_of(type); v++)
        total->each[v] += sums[0].each[v] + sums[1].each[v];
}

/* The gradient of the weights of a group, from all places. */
INLINE void
weigh_group(const Convolution *d, int64_t channel, int64_t count, int type)
{
    Columns columns;
    Group totals[MOST_TAPS] = {0};
    for (int64_t batch = 0; batch < d->batches; batch++)
        for (int64_t row = 0; row < d->y.result; row++) {
            const int64_t grads = place_at(d, d->y.result, d->x.result, batch, row, 0) + channel;
            find_columns(d, batch, row, 0, &columns);
            for (int tap = 0; tap < columns.taps; tap++)
                weigh_row(d, &totals[columns.weights[tap]], &columns, tap, grads, channel, count,
                          type);
        }
    for (int64_t tap = 0; tap < d->taps; tap++) {
        float each[VECTORS * LANES];
        memcpy(each, &totals[tap], sizeof each);
        for (int64_t i = 0; i < count; i++)
            put_number(d->result, (channel + i) * d->taps + tap, each[place_in_group(type, i)]);
    }
}

INLINE void
weigh_channels(const Convolution *d, int64_t unit, int type)
{
    const int64_t group = LANES * vectors_of(type), channel = unit * group;
    if (channel + group <= d->channels)
        weigh_group(d, channel, group, type);
    else
        weigh_group(d, channel, d->channels - channel, type);
}

/* How many groups there are. */
INLINE int64_t
count_groups(const Convolution *d)
{
    const int64_t group = LANES * vectors_of(d->data->dtype);
    return (d->channels + group - 1) / group;
}

#endif
