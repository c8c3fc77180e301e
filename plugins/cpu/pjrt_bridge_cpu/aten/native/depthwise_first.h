/* Depthwise convolutions of data whose channels lie one behind the other.
 *
 * A few rows of a channel at a time are copied to float32 with their zeros, each residue of the
 * distance of windows by itself. Then each weight is multiplied with elements that lie side by side,
 * also from one row to the next: what is computed between the rows of the result is not written.
 */

#ifndef PJRT_BRIDGE_CPU_DEPTHWISE_FIRST_H
#define PJRT_BRIDGE_CPU_DEPTHWISE_FIRST_H

#include "depthwise_window.h"

/* Elements of a row at the places of one residue, with zeros where there are none.
 *
 * from: the row's first element; residue: of the places. */
INLINE void
copy_row(const Depthwise *d, float *to, int64_t from, int64_t residue)
{
    const Way *x = &d->x;
    const Buffer *data = d->data;
    const int64_t offset = residue - x->low;
    if (x->spread > 1) {
        clear_floats(to, d->pitch);
        for (int64_t at = 0; at < x->data; at++) {
            const int64_t place = at * x->spread - offset;
            if (place >= 0 && place % x->stride == 0 && place / x->stride < d->pitch)
                to[place / x->stride] = number_at(data, from + at);
        }
        return;
    }
    int64_t begin = offset < 0 ? (-offset + x->stride - 1) / x->stride : 0;
    int64_t end = x->data > offset ? (x->data - 1 - offset) / x->stride + 1 : 0;
    end = end < d->pitch ? end : d->pitch;
    begin = begin < end ? begin : end;
    clear_floats(to, begin);
    clear_floats(to + end, d->pitch - end);
    from += offset + begin * x->stride;
    to += begin;
    const int64_t count = end - begin;
    if (x->stride == 1)
        read_run(to, data, from, count);
    else if (x->stride == 2 && data->dtype == F32) {
        const float *pairs = (const float *)(const void *)data->data + from;
        INDEPENDENT
        for (int64_t at = 0; at < count; at++)
            to[at] = pairs[2 * at];
    } else
        for (int64_t at = 0; at < count; at++)
            to[at] = number_at(data, from + at * x->stride);
}

/* What some rows of the result are computed of: the rows of each residue. */
INLINE void
copy_rows(const Depthwise *d, float *to, int64_t channel, int64_t first, int64_t rows)
{
    const Way *y = &d->y;
    const int64_t count = rows + (y->taps - 1) * y->step / y->stride;
    for (int64_t residue = 0; residue < y->stride; residue++)
        for (int64_t across = 0; across < d->x.stride; across++, to += d->plane) {
            for (int64_t row = 0; row < count; row++) {
                const int64_t at = index_of(y, (first + row) * y->stride + residue - y->low);
                if (at < 0)
                    clear_floats(to + row * d->pitch, d->pitch);
                else
                    copy_row(d, to + row * d->pitch, (channel * y->data + at) * d->x.data, across);
            }
            memset(to + count * d->pitch, 0, (size_t)(d->plane - count * d->pitch) * sizeof *to);
        }
}

/* Where the element of a tap is in the copied rows, from that of the result on. */
static inline int64_t
place_of_tap(const Depthwise *d, int64_t tap)
{
    const int64_t down = tap / d->x.taps * d->y.step, right = tap % d->x.taps * d->x.step;
    const int64_t residue = down % d->y.stride * d->x.stride + right % d->x.stride;
    return residue * d->plane + down / d->y.stride * d->pitch + right / d->x.stride;
}

/* Floats of copied data at once, at most. */
enum { MOST_COPIED = 1 << 26 };

/* Decide how many rows are copied at once, and where they are; -1 where that is too much.
 *
 * channels: of which rows are copied; wanted: floats of all of these rows, about; most: rows. */
static inline int
lay_out_rows(Depthwise *d, int64_t channels, double wanted, int64_t most)
{
    const double planes = (double)d->y.stride * (double)d->x.stride * (double)channels;
    const int64_t more = (d->y.taps - 1) * d->y.step / d->y.stride;
    d->pitch = d->x.result + (d->x.taps - 1) * d->x.step / d->x.stride;
    const double rows = wanted / planes / (double)d->pitch;
    d->rows = rows < 1 ? 1 : rows < (double)most ? (int64_t)rows : most;
    if (planes * (double)d->pitch * (double)(d->rows + more) > MOST_COPIED)
        return -1;
    /* The last tap of the last row is read beyond its end, up to a block. */
    d->plane = (d->rows + more + 1) * d->pitch + BLOCK;
    d->plane = (d->plane + LANES - 1) / LANES * LANES;
    for (int64_t tap = 0; tap < d->taps; tap++)
        d->places[tap] = place_of_tap(d, tap);
    return 0;
}

/* How many parts the rows of the result of a channel are computed in. */
static inline int64_t
parts_of_rows(const Depthwise *d)
{
    return (d->y.result + d->rows - 1) / d->rows;
}

/* Some rows of a channel of the result. */
INLINE void
convolve_rows(const Depthwise *d, float *work, int64_t unit)
{
    const int64_t parts = parts_of_rows(d), plane = unit / parts, first = unit % parts * d->rows;
    const int64_t left = d->y.result - first, rows = left < d->rows ? left : d->rows;
    const int64_t size = rows * d->pitch, channel = plane % d->channels;
    float *const sums = work, *const copied = work + d->plane, weights[MOST_TAPS];
    copy_rows(d, copied, plane, first, rows);
    for (int64_t tap = 0; tap < d->taps; tap++)
        weights[tap] = number_at(d->other, channel * d->taps + tap);
    for (int64_t at = 0; at < size; at += BLOCK) {
        Lanes a = {0}, b = {0}, c = {0}, e = {0};
        for (int64_t tap = 0; tap < d->taps; tap++) {
            const float *from = copied + d->places[tap] + at;
            const float weight = weights[tap];
            a += AT(from) * weight;
            b += AT(from + LANES) * weight;
            c += AT(from + 2 * LANES) * weight;
            e += AT(from + 3 * LANES) * weight;
        }
        AT(sums + at) = a;
        AT(sums + at + LANES) = b;
        AT(sums + at + 2 * LANES) = c;
        AT(sums + at + 3 * LANES) = e;
    }
    for (int64_t row = 0; row < rows; row++)
        write_run(d->result, (plane * d->y.result + first + row) * d->x.result,
                  sums + row * d->pitch, d->x.result);
}

INLINE float
sum_of(const Lanes *lanes)
{
    float each[LANES], sum = 0;
    memcpy(each, lanes, sizeof each);
    for (int i = 0; i < LANES; i++)
        sum += each[i];
    return sum;
}

/* The gradient of the weights of a channel, from all batches. */
INLINE void
weigh_channel(const Depthwise *d, float *work, int64_t channel)
{
    float *const grad = work, *const copied = work + d->plane, total[MOST_TAPS] = {0};
    for (int64_t batch = 0; batch < d->batches; batch++)
        for (int64_t first = 0; first < d->y.result; first += d->rows) {
            const int64_t left = d->y.result - first, rows = left < d->rows ? left : d->rows;
            const int64_t plane = batch * d->channels + channel;
            copy_rows(d, copied, plane, first, rows);
            memset(grad, 0, (size_t)d->plane * sizeof *grad);
            for (int64_t row = 0; row < rows; row++)
                read_run(grad + row * d->pitch, d->other,
                         (plane * d->y.result + first + row) * d->x.result, d->x.result);
            for (int64_t tap = 0; tap < d->taps; tap++) {
                const float *from = copied + d->places[tap];
                Lanes a = {0}, b = {0}, c = {0}, e = {0};
                for (int64_t at = 0; at < rows * d->pitch; at += BLOCK) {
                    a += AT(from + at) * AT(grad + at);
                    b += AT(from + at + LANES) * AT(grad + at + LANES);
                    c += AT(from + at + 2 * LANES) * AT(grad + at + 2 * LANES);
                    e += AT(from + at + 3 * LANES) * AT(grad + at + 3 * LANES);
                }
                a += b + (c + e);
                total[tap] += sum_of(&a);
            }
        }
    for (int64_t tap = 0; tap < d->taps; tap++)
        put_number(d->result, channel * d->taps + tap, total[tap]);
}

#endif
