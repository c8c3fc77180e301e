/* See convolve.h.
 *
 * Rows of all channels of a group are copied (convolution_rows.h). Then a few results at a time are
 * summed over the channels and the elements of their weights, each of which is multiplied with
 * elements that lie side by side.
 */

#include "convolve.h"

#include "convolution_rows.h"
#include "divide.h"

#include <stdlib.h>

static const char NAME[] = "A small convolution";

/* Floats of copied data at once, about; products that are worth a thread; channels of the result
 * that are computed together. */
enum {
    COPIED = 1 << 15,
    WORTH_A_THREAD = 1 << 19,
    TOGETHER = 4,
};

typedef struct Small {
    Convolution each; /* Of one channel. */
    int64_t groups, inputs, outputs, residues;
    const float *weights; /* (groups, outputs, inputs, taps) */
    void (*run)(const struct Small *, float *, int64_t, int64_t);
} Small;

/* -- loops ----------------------------------------------------------------------------------- */

/* Results at `vectors` vectors of places of TOGETHER channels. weights: of the first channel, then
 * of each that is not behind the last one; vectors: a constant. */
INLINE void
sum_places(const Small *c, const float *copied, const float *weights, int64_t channels,
           float *sums, int64_t at, int vectors)
{
    const Convolution *each = &c->each;
    const int64_t size = c->inputs * each->taps;
    const float *const second = weights + (channels > 1 ? size : 0);
    const float *const third = weights + (channels > 2 ? 2 * size : 0);
    const float *const fourth = weights + (channels > 3 ? 3 * size : 0);
    Lanes a[4] = {{0}}, b[4] = {{0}}, e[4] = {{0}}, f[4] = {{0}};
    for (int64_t input = 0, k = 0; input < c->inputs; input++)
        for (int64_t tap = 0; tap < each->taps; tap++, k++) {
            const float *from = copied + input * c->residues * each->plane + each->places[tap] + at;
#define ADD(i)                                                                                     \
    if (vectors > i) {                                                                             \
        const Lanes lanes = AT(from + i * LANES);                                                  \
        a[i] += lanes * weights[k];                                                                \
        b[i] += lanes * second[k];                                                                 \
        e[i] += lanes * third[k];                                                                  \
        f[i] += lanes * fourth[k];                                                                 \
    }
            ADD(0)
            ADD(1)
            ADD(2)
            ADD(3)
#undef ADD
        }
#define KEEP(i)                                                                                    \
    if (vectors > i) {                                                                             \
        AT(sums + at + i * LANES) = a[i];                                                          \
        AT(sums + each->plane + at + i * LANES) = b[i];                                            \
        AT(sums + 2 * each->plane + at + i * LANES) = e[i];                                        \
        AT(sums + 3 * each->plane + at + i * LANES) = f[i];                                        \
    }
    KEEP(0)
    KEEP(1)
    KEEP(2)
    KEEP(3)
#undef KEEP
}

/* Some rows of a group of one batch. wide: how many vectors of places are summed at once. */
INLINE void
convolve_part(const Small *c, float *work, int64_t unit, int wide)
{
    const Convolution *each = &c->each;
    const int64_t parts = parts_of_rows(each), image = unit / parts;
    const int64_t first = unit % parts * each->rows;
    const int64_t left = each->y.result - first, rows = left < each->rows ? left : each->rows;
    const int64_t size = rows * each->pitch, group = image % c->groups;
    float *const sums = work, *const copied = work + TOGETHER * each->plane;
    for (int64_t input = 0; input < c->inputs; input++)
        copy_rows(each, copied + input * c->residues * each->plane, image * c->inputs + input,
                  first, rows);
    for (int64_t output = 0; output < c->outputs; output += TOGETHER) {
        const float *weights = c->weights + (group * c->outputs + output) * c->inputs * each->taps;
        const int64_t others = c->outputs - output, channel = image * c->outputs + output;
        const int64_t channels = others < TOGETHER ? others : TOGETHER;
        int64_t at = 0;
        for (; at + (wide - 1) * LANES < size; at += wide * LANES)
            sum_places(c, copied, weights, channels, sums, at, wide);
        for (; at < size; at += LANES)
            sum_places(c, copied, weights, channels, sums, at, 1);
        for (int64_t i = 0; i < channels; i++)
            for (int64_t row = 0; row < rows; row++)
                write_run(each->result,
                          ((channel + i) * each->y.result + first + row) * each->x.result,
                          sums + i * each->plane + row * each->pitch, each->x.result);
    }
}

#define RUN(TARGET, END, WIDE)                                                                     \
    TARGET static void run_##END(const Small *c, float *work, int64_t begin, int64_t end)          \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++)                                             \
            convolve_part(c, work, unit, WIDE);                                                    \
    }
#define PLAIN

RUN(PLAIN, portable, 1)
RUN(FOR_AVX2, avx2, 1)
RUN(FOR_AVX512, avx512, 4)

static int
run_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Small *c = data;
    const int64_t planes = TOGETHER + c->inputs * c->residues;
    float *work = aligned_alloc(64, (size_t)(planes * c->each.plane + LANES) * sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    c->run(c, work, begin, end);
    free(work);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

/* What a program says of a convolution, which may come from anywhere. */
static int
read_convolution(const Frame *frame, Small *c, char *message)
{
    const int64_t *window;
    Convolution *each = &c->each;
    if (read_window(frame, 0, each, &window, message))
        return -1;
    const int64_t batches = window[0], groups = window[1], inputs = window[2], outputs = window[3];
    each->batches = batches, each->channels = groups * inputs;
    c->groups = groups, c->inputs = inputs, c->outputs = outputs;
    const int64_t data[] = {batches, groups, inputs, each->y.data, each->x.data};
    const int64_t weights[] = {groups, outputs, inputs, each->y.taps, each->x.taps};
    const int64_t result[] = {batches, groups, outputs, each->y.result, each->x.result};
    if (each->y.taps > MOST_TAPS || each->x.taps > MOST_TAPS || each->taps > MOST_TAPS ||
        !has_elements(each->data, data, 5) || !has_elements(each->other, weights, 5) ||
        !has_elements(each->result, result, 5))
        return fail(message, "its operands, its result and its window do not fit each other");
    const double products = (double)count_of(each->result) * (double)inputs * (double)each->taps;
    const int64_t rows = each->y.result;
    const int64_t most = products > 2 * WORTH_A_THREAD ? (rows + 3) / 4 : rows;
    if (lay_out_rows(each, inputs, COPIED, most))
        return fail(message, "%lld windows side by side are too large for it",
                    (long long)each->x.result);
    c->residues = each->y.stride * each->x.stride;
    return 0;
}

/* Weights of half precision as floats; NULL without memory. */
static float *
widened(const Buffer *buffer)
{
    const int64_t count = count_of(buffer);
    float *weights = malloc((size_t)count * sizeof *weights);
    for (int64_t at = 0; weights && at < count; at++)
        weights[at] = number_at(buffer, at);
    return weights;
}

Error *
convolve_small(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Small c = {.weights = NULL};
    if (check_caller(frame, message) || read_convolution(frame, &c, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    static void (*const RUN[])(const Small *, float *, int64_t, int64_t) = {
        run_portable, run_avx2, run_avx512};
    c.run = RUN[widest_vectors()];
    const Buffer *weights = c.each.other;
    float *const made = weights->dtype == BF16 ? widened(weights) : NULL;
    if (weights->dtype == BF16 && !made)
        return refuse(frame, INTERNAL, NAME, "no memory is left");
    c.weights = made ? made : (const float *)(const void *)weights->data;
    const int64_t units = c.each.batches * c.groups * parts_of_rows(&c.each);
    const double products = (double)count_of(c.each.result) * (double)(c.inputs * c.each.taps);
    const int64_t grain = (int64_t)(WORTH_A_THREAD / (products / (double)units)) + 1;
    const Division division = {run_range, &c, units, grain, 4};
    const int failed = divide(frame, &division, message);
    free(made);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}
