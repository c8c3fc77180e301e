/* The cells of recurrent layers, for LANES elements of one row of one step.
 *
 * `torch_interop/recurrent/operators.py` states them. What is behind the last element of a row is
 * computed as zeros and not written.
 */

#ifndef PJRT_BRIDGE_CPU_CELLS_H
#define PJRT_BRIDGE_CPU_CELLS_H

#include "functions.h"
#include "panels.h"
#include "recurrence.h"

typedef struct {
    Kind kind;
    bool is_reverse;
    int64_t steps, count, batch, size; /* count: of the steps that are no padding. */
    /* What the layer has. */
    const float *given, *state, *cells, *weight, *bias;
    float *states, *all_cells, *saved;
    /* Gradients, of what it gives and of what it was given. */
    const float *of_states, *of_all_cells;
    float *of_given, *of_products, *of_state, *of_cells;
} Layer;

static const int GATES[KINDS] = {1, 1, 3, 4};
static const int SAVED[KINDS] = {0, 0, 4, 4};

/* Elements of one row, from one on. */
typedef struct {
    int64_t row, unit, count;
} Elements;

INLINE void
take(float *to, const float *from, int64_t count)
{
    if (count == LANES) {
        memcpy(to, from, LANES * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < LANES; i++)
        to[i] = i < count ? from[i] : 0.0F;
}

INLINE void
give(float *to, const float *from, int64_t count)
{
    if (count == LANES) {
        memcpy(to, from, LANES * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = from[i];
}

static const float NOTHING[LANES] = {0};

/* Functions of sums. A loop of one function alone becomes vectors. */
INLINE void
all_logistic(float *to, const float *x, const float *y)
{
    for (int i = 0; i < LANES; i++)
        to[i] = logistic(x[i] + y[i]);
}

INLINE void
all_tangents(float *to, const float *x, const float *y)
{
    for (int i = 0; i < LANES; i++)
        to[i] = hyperbolic_tangent(x[i] + y[i]);
}

/* Where elements are in an array (steps, batch, parts * size). */
INLINE int64_t
place(const Layer *layer, const Elements *at, int64_t step, int parts, int part)
{
    return ((step * layer->batch + at->row) * parts + part) * layer->size + at->unit;
}

/* Elements of what there was before a step. */
INLINE void
take_last(float *to, const Layer *layer, const Elements *at, const float *first, const float *all,
          int64_t before)
{
    const float *from = before < 0 ? first + at->row * layer->size + at->unit
                                   : all + place(layer, at, before, 1, 0);
    take(to, from, at->count);
}

/* A step; `sums` are the products of the state, gate by gate, and `before` is the step before it,
 * or -1. */
INLINE void
step_forward(const Layer *layer, Kind kind, const Elements *at, int64_t step, int64_t before,
             const float *sums)
{
    const int gates = GATES[kind];
    float given[4][LANES], products[4][LANES], last[LANES], state[LANES], cells[LANES];
    float saved[4][LANES];
    for (int gate = 0; gate < gates; gate++) {
        float bias[LANES] = {0};
        take(given[gate], layer->given + place(layer, at, step, gates, gate), at->count);
        if (layer->bias)
            take(bias, layer->bias + gate * layer->size + at->unit, at->count);
        for (int i = 0; i < LANES; i++)
            products[gate][i] = sums[gate * LANES + i] + bias[i];
    }
    if (kind == OF_LSTM) {
        take_last(last, layer, at, layer->cells, layer->all_cells, before);
        all_logistic(saved[0], given[0], products[0]);
        all_logistic(saved[1], given[1], products[1]);
        all_tangents(saved[2], given[2], products[2]);
        all_logistic(saved[3], given[3], products[3]);
        for (int i = 0; i < LANES; i++)
            cells[i] = saved[1][i] * last[i] + saved[0][i] * saved[2][i];
        all_tangents(state, cells, NOTHING);
        for (int i = 0; i < LANES; i++)
            state[i] *= saved[3][i];
        give(layer->all_cells + place(layer, at, step, 1, 0), cells, at->count);
    } else if (kind == OF_GRU) {
        take_last(last, layer, at, layer->state, layer->states, before);
        all_logistic(saved[0], given[0], products[0]);
        all_logistic(saved[1], given[1], products[1]);
        for (int i = 0; i < LANES; i++) {
            saved[3][i] = products[2][i];
            products[2][i] *= saved[0][i];
        }
        all_tangents(saved[2], given[2], products[2]);
        for (int i = 0; i < LANES; i++)
            state[i] = saved[2][i] + saved[1][i] * (last[i] - saved[2][i]);
    } else if (kind == OF_TANH) {
        all_tangents(state, given[0], products[0]);
    } else {
        for (int i = 0; i < LANES; i++) {
            const float total = given[0][i] + products[0][i];
            /* A NaN stays one. */
            state[i] = total < 0.0F ? 0.0F : total;
        }
    }
    give(layer->states + place(layer, at, step, 1, 0), state, at->count);
    for (int part = 0; layer->saved && part < SAVED[kind]; part++)
        give(layer->saved + place(layer, at, step, 4, part), saved[part], at->count);
}

/* The gradients of a step; `sums` are those of the state behind it through the next step, zeros
 * where there is none (`is_first`). */
INLINE void
step_backward(const Layer *layer, Kind kind, const Elements *at, int64_t step, int64_t before,
              bool is_first, const float *sums)
{
    const int gates = GATES[kind];
    const int64_t whole = place(layer, at, 0, 1, 0);
    float of_state[LANES], direct[LANES] = {0}, last[LANES], states[LANES], saved[4][LANES];
    float totals[4][LANES], through[LANES];
    take(of_state, layer->of_states + place(layer, at, step, 1, 0), at->count);
    if (kind == OF_GRU && !is_first)
        take(direct, layer->of_state + whole, at->count);
    for (int i = 0; i < LANES; i++)
        of_state[i] += sums[i] + direct[i];
    for (int part = 0; part < SAVED[kind]; part++)
        take(saved[part], layer->saved + place(layer, at, step, 4, part), at->count);
    if (kind == OF_LSTM) {
        float of_cells[LANES] = {0}, of_these[LANES], cells[LANES], all_bent[LANES];
        take_last(last, layer, at, layer->cells, layer->all_cells, before);
        take(cells, layer->all_cells + place(layer, at, step, 1, 0), at->count);
        take(of_these, layer->of_all_cells + place(layer, at, step, 1, 0), at->count);
        if (!is_first)
            take(of_cells, layer->of_cells + whole, at->count);
        all_tangents(all_bent, cells, NOTHING);
        for (int i = 0; i < LANES; i++) {
            const float in = saved[0][i], forget = saved[1][i], made = saved[2][i];
            const float out = saved[3][i], bent = all_bent[i];
            const float of_cell =
                of_cells[i] + of_these[i] + of_state[i] * out * (1.0F - bent * bent);
            totals[0][i] = of_cell * made * in * (1.0F - in);
            totals[1][i] = of_cell * last[i] * forget * (1.0F - forget);
            totals[2][i] = of_cell * in * (1.0F - made * made);
            totals[3][i] = of_state[i] * bent * out * (1.0F - out);
            of_cells[i] = of_cell * forget;
        }
        give(layer->of_cells + whole, of_cells, at->count);
    } else if (kind == OF_GRU) {
        take_last(last, layer, at, layer->state, layer->states, before);
        for (int i = 0; i < LANES; i++) {
            const float reset = saved[0][i], update = saved[1][i], made = saved[2][i];
            totals[2][i] = of_state[i] * (1.0F - update) * (1.0F - made * made);
            totals[0][i] = totals[2][i] * saved[3][i] * reset * (1.0F - reset);
            totals[1][i] = of_state[i] * (last[i] - made) * update * (1.0F - update);
            through[i] = totals[2][i] * reset;
            direct[i] = of_state[i] * update;
        }
        give(layer->of_state + whole, direct, at->count);
        for (int gate = 0; gate < gates; gate++)
            give(layer->of_products + place(layer, at, step, gates, gate),
                 gate < 2 ? totals[gate] : through, at->count);
    } else {
        take(states, layer->states + place(layer, at, step, 1, 0), at->count);
        for (int i = 0; i < LANES; i++) {
            const float slope = 1.0F - states[i] * states[i];
            totals[0][i] = kind == OF_TANH ? of_state[i] * slope
                                           : states[i] > 0.0F ? of_state[i] : 0.0F;
        }
    }
    for (int gate = 0; gate < gates; gate++)
        give(layer->of_given + place(layer, at, step, gates, gate), totals[gate], at->count);
}

/* Behind the last step: the gradients of the first state. */
INLINE void
end_backward(const Layer *layer, Kind kind, const Elements *at, const float *sums)
{
    float *of_state = layer->of_state + place(layer, at, 0, 1, 0), direct[LANES] = {0};
    if (kind == OF_GRU)
        take(direct, of_state, at->count);
    for (int i = 0; i < LANES; i++)
        direct[i] += sums[i];
    give(of_state, direct, at->count);
}

#endif
