/* Convolution convolutions of data whose channels lie one behind the other.
 *
 * A few rows of a channel at a time are copied to float32 with their zeros, each residue of the
 * distance of windows by itself. Then each weight is multiplied with elements that lie side by side,
 * also from one row to the next: what is computed between the rows of the result is not written.
 */

#ifndef PJRT_BRIDGE_CPU_DEPTHWISE_FIRST_H
#define PJRT_BRIDGE_CPU_DEPTHWISE_FIRST_H

#include "convolution_rows.h"

/* Some rows of a channel of the result. */
INLINE void
convolve_rows(const Convolution *d, float *work, int64_t unit)
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
weigh_channel(const Convolution *d, float *work, int64_t channel)
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
