/* See depthwise.h. */

#include "depthwise.h"

#include "depthwise_first.h"
#include "depthwise_last.h"
#include "divide.h"

#include <math.h>
#include <stdlib.h>

static const char NAME[] = "A depthwise convolution";

/* Floats of copied data at once, about; products that are worth a thread. */
enum {
    COPIED = 1 << 14,
    WORTH_A_THREAD = 1 << 17,
};

/* -- units of work: rows or channels ---------------------------------------------------------- */

INLINE void
run_unit(const Convolution *d, float *work, int64_t unit, int type)
{
    if (d->is_last && d->is_gradient)
        weigh_channels(d, unit, type);
    else if (d->is_last)
        convolve_places(d, unit, type);
    else if (d->is_gradient)
        weigh_channel(d, work, unit);
    else
        convolve_rows(d, work, unit);
}

#define RUN(TARGET, END)                                                                           \
    TARGET static void run_##END(const Convolution *d, float *work, int64_t begin, int64_t end)      \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++)                                             \
            if (d->data->dtype == F32)                                                             \
                run_unit(d, work, unit, F32);                                                      \
            else                                                                                   \
                run_unit(d, work, unit, BF16);                                                     \
    }
#define PLAIN

RUN(PLAIN, portable)
RUN(FOR_AVX2, avx2)
RUN(FOR_AVX512, avx512)

static int64_t
units_of(const Convolution *d)
{
    if (d->is_gradient)
        return d->is_last ? count_groups(d) : d->channels;
    return d->batches * (d->is_last ? d->y.result : d->channels * parts_of_rows(d));
}

/* The gradient of a channel's weights by the definition. The loops above also multiply zeros with
 * elements that no window has, and leave out zeros before and behind the data: with NaN or an
 * infinity both change the sums. */
static void
weigh_exactly(const Convolution *d, int64_t channel)
{
    for (int64_t tap = 0; tap < d->taps; tap++) {
        float total = 0;
        for (int64_t batch = 0; batch < d->batches; batch++)
            for (int64_t row = 0; row < d->y.result; row++)
                for (int64_t column = 0; column < d->x.result; column++) {
                    const int64_t y = index_at(&d->y, row, tap / d->x.taps);
                    const int64_t x = index_at(&d->x, column, tap % d->x.taps);
                    const int64_t each = d->is_last ? d->channels : 1;
                    const int64_t images = d->is_last ? batch : batch * d->channels + channel;
                    const int64_t first = d->is_last ? channel : 0;
                    const int64_t from = (images * d->y.result + row) * d->x.result + column;
                    const int64_t at = (images * d->y.data + y) * d->x.data + x;
                    const float grad = number_at(d->other, from * each + first);
                    total += grad * (y < 0 || x < 0 ? 0 : number_at(d->data, at * each + first));
                }
        put_number(d->result, channel * d->taps + tap, total);
    }
}

static int
run_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Convolution *d = data;
    const int64_t planes = d->is_last ? 0 : 1 + d->y.stride * d->x.stride;
    float *work = aligned_alloc(64, (size_t)(planes * d->plane + LANES) * sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    d->run(d, work, begin, end);
    free(work);
    if (!d->is_gradient)
        return 0;
    const int64_t each = d->is_last ? LANES * vectors_of(d->data->dtype) : 1;
    for (int64_t channel = begin * each; channel < end * each && channel < d->channels; channel++)
        for (int64_t tap = 0; tap < d->taps; tap++)
            if (!isfinite(number_at(d->result, channel * d->taps + tap))) {
                weigh_exactly(d, channel);
                break;
            }
    return 0;
}

/* What a program says of a convolution, which may come from anywhere. */
static int
read_depthwise(const Frame *frame, Convolution *d, char *message)
{
    const int64_t *window;
    if (read_window(frame, 2, d, &window, message))
        return -1;
    d->is_gradient = window[0], d->is_last = window[1];
    d->batches = window[2], d->channels = window[3];
    const Buffer *result = d->is_gradient ? d->other : d->result;
    const Buffer *weights = d->is_gradient ? d->result : d->other;
    const int64_t of_data[] = {d->batches, d->channels, d->y.data, d->x.data};
    const int64_t of_result[] = {d->batches, d->channels, d->y.result, d->x.result};
    const int64_t of_weights[] = {d->channels, d->y.taps, d->x.taps};
    if (d->y.taps > MOST_TAPS || d->x.taps > MOST_TAPS || d->taps > MOST_TAPS ||
        (d->is_gradient && (d->y.spread > 1 || d->x.spread > 1)) ||
        !has_elements(d->data, of_data, 4) || !has_elements(result, of_result, 4) ||
        !has_elements(weights, of_weights, 3))
        return fail(message, "its operands, its result and its window do not fit each other");
    if (d->is_last)
        return 0;
    if (lay_out_rows(d, 1, COPIED, d->y.result))
        return fail(message, "%lld windows side by side are too large for it",
                    (long long)d->x.result);
    return 0;
}

/* The weights of channels that are last, tap by tap. */
static int
turn_weights(Convolution *d, char *message)
{
    const int type = d->data->dtype;
    const int64_t group = LANES * vectors_of(type);
    d->padded = count_groups(d) * group;
    const size_t size = (size_t)(d->padded * d->taps) * sizeof *d->weights;
    d->weights = aligned_alloc(64, size);
    if (!d->weights)
        return fail(message, "no memory is left");
    memset(d->weights, 0, size);
    for (int64_t channel = 0; channel < d->channels; channel++)
        for (int64_t tap = 0; tap < d->taps; tap++) {
            const float weight = number_at(d->other, channel * d->taps + tap);
            const int64_t at = channel / group * group + place_in_group(type, channel % group);
            d->weights[tap * d->padded + at] = weight;
            d->has_special |= !isfinite(weight);
        }
    return 0;
}

Error *
convolve_depthwise(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Convolution d;
    if (check_caller(frame, message) || read_depthwise(frame, &d, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    static void (*const RUN[])(const Convolution *, float *, int64_t, int64_t) = {
        run_portable, run_avx2, run_avx512};
    d.run = RUN[widest_vectors()];
    int failed = d.is_last && !d.is_gradient ? turn_weights(&d, message) : 0;
    const int64_t units = units_of(&d);
    const double products = (double)d.batches * (double)d.channels * (double)d.y.result *
                            (double)d.x.result * (double)d.taps;
    const int64_t grain = (int64_t)(WORTH_A_THREAD / (products / (double)units)) + 1;
    const Division division = {run_range, &d, units, grain, 4};
    failed = failed || divide(frame, &division, message);
    free(d.weights);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}
