/* Rows of the data of a convolution, copied so that the elements that windows have at a tap lie side
 * by side: a few rows of a channel at a time, as float32 and with their zeros, each residue of the
 * distance of windows by itself.
 */

#ifndef PJRT_BRIDGE_CPU_CONVOLUTION_ROWS_H
#define PJRT_BRIDGE_CPU_CONVOLUTION_ROWS_H

#include "convolution.h"

/* Elements of a row at the places of one residue, with zeros where there are none.
 *
 * from: the row's first element; residue: of the places. */
INLINE void
copy_row(const Convolution *d, float *to, int64_t from, int64_t residue)
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
copy_rows(const Convolution *d, float *to, int64_t channel, int64_t first, int64_t rows)
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
place_of_tap(const Convolution *d, int64_t tap)
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
lay_out_rows(Convolution *d, int64_t channels, double wanted, int64_t most)
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
parts_of_rows(const Convolution *d)
{
    return (d->y.result + d->rows - 1) / d->rows;
}

#endif
