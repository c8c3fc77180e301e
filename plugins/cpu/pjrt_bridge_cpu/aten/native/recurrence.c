/* See recurrence.h. The weight is laid out once for all steps. Threads divide the batch, whose rows
 * need nothing of each other, or the elements of the state where there are few rows. */

#include "cells.h"
#include "divide.h"

#include <stdlib.h>

static const char NAME[] = "A recurrent layer";

enum {
    ROWS_FOR_THREADS = 8,        /* From so many on threads divide the batch. */
    WORTH_A_THREAD = 1 << 17     /* Multiplications that are. */
};

/* -- the weight in panels -------------------------------------------------------------------- */

/* Forward, a panel has elements of all gates of a cell; backward, and of cells with one gate,
 * vectors of elements. */
typedef struct {
    const Layer *layer;
    bool is_backward;
    float *data;
    int64_t inner, count; /* count: of panels. */
    int vectors;
    Vectors kind;
} Panels;

INLINE bool
has_gates(const Panels *panels)
{
    return !panels->is_backward && GATES[panels->layer->kind] > 1;
}

/* The element of the state that the first lane of a vector is of. */
INLINE int64_t
unit_of(bool has_gates, int vectors, int64_t panel, int vector)
{
    return (has_gates ? panel : panel * vectors + vector) * LANES;
}

static int
fill_panels(const void *data, int64_t begin, int64_t end, char *message)
{
    const Panels *panels = data;
    const int64_t size = panels->layer->size, width = panels->vectors * LANES;
    (void)message;
    for (int64_t panel = begin; panel < end; panel++)
        for (int vector = 0; vector < panels->vectors; vector++) {
            const bool gated = has_gates(panels);
            const int64_t unit = unit_of(gated, panels->vectors, panel, vector);
            const int64_t count = size - unit < LANES ? size - unit : LANES;
            float *to = panels->data + panel * panels->inner * width + vector * LANES;
            const float *from = panels->layer->weight;
            if (panels->is_backward) {
                for (int64_t k = 0; k < panels->inner; k++)
                    for (int64_t i = 0; i < LANES; i++)
                        to[k * width + i] = i < count ? from[k * size + unit + i] : 0.0F;
                continue;
            }
            from += ((gated ? vector * size : 0) + unit) * size;
            /* Blocks that stay in the first cache. */
            for (int64_t first = 0; first < size; first += LANES) {
                const int64_t behind = first + LANES < size ? first + LANES : size;
                for (int64_t i = 0; i < LANES; i++)
                    for (int64_t k = first; k < behind; k++)
                        to[k * width + i] = i < count ? from[i * size + k] : 0.0F;
            }
        }
    return 0;
}

/* -- steps ----------------------------------------------------------------------------------- */

/* A step in the order of computation. Backward there is one more, for the gradients of the first
 * state. */
typedef struct {
    const Panels *panels;
    int64_t turn; /* From 0 on. */
} Turn;

/* The step of a turn; -1 where there is none. */
INLINE int64_t
step_of(const Layer *layer, bool is_backward, int64_t turn)
{
    if (turn < 0 || turn >= layer->count)
        return -1;
    return layer->is_reverse != is_backward ? layer->count - 1 - turn : turn;
}

INLINE void
advance(const Panels *panels, Kind kind, bool is_backward, int vectors, Vectors widest,
        int64_t turn, int64_t first_panel, int64_t last_panel, int64_t first_row, int64_t last_row)
{
    const Layer *layer = panels->layer;
    const bool gated = !is_backward && GATES[kind] > 1;
    const int most = most_sums(widest) / vectors > 0 ? most_sums(widest) / vectors : 1;
    const int64_t inner = panels->inner, step = step_of(layer, is_backward, turn);
    /* What the product is of: the state before, or the gradients of the step behind. */
    const int64_t other = step_of(layer, is_backward, turn - 1);
    const int64_t before = is_backward ? step_of(layer, true, turn + 1) : other;
    const float *through = is_backward && kind == OF_GRU ? layer->of_products : layer->of_given;
    const float *x = layer->state;
    if (is_backward)
        x = through + other * layer->batch * inner;
    else if (other >= 0)
        x = layer->states + other * layer->batch * inner;
    for (int64_t panel = first_panel; panel < last_panel; panel++)
        for (int64_t row = first_row, rows; row < last_row; row += rows) {
            float sums[MOST_SUMS * LANES];
            rows = last_row - row < most ? last_row - row : most;
            if (!is_backward || other >= 0)
                multiply_panel(widest, vectors, rows, x + row * inner, inner, inner,
                               panels->data + panel * inner * vectors * LANES, sums);
            else
                memset(sums, 0, sizeof sums);
            for (int64_t r = 0; r < rows; r++)
                for (int vector = 0; vector < (gated ? 1 : vectors); vector++) {
                    const int64_t unit = unit_of(gated, vectors, panel, vector);
                    const int64_t left = layer->size - unit;
                    const Elements at = {row + r, unit, left < LANES ? left : LANES};
                    const float *these = sums + (r * vectors + vector) * LANES;
                    if (left <= 0)
                        break;
                    if (!is_backward)
                        step_forward(layer, kind, &at, step, before, these);
                    else if (step >= 0)
                        step_backward(layer, kind, &at, step, before, !turn, these);
                    else
                        end_backward(layer, kind, &at, these);
                }
        }
}

typedef void Advance(const Panels *, int64_t, int64_t, int64_t, int64_t, int64_t);

#define FOR_A_KIND(NAME, KIND, IS_BACKWARD, VECTORS)                                               \
    static void NAME##_portable(const Panels *p, int64_t t, int64_t a, int64_t b, int64_t c,       \
                                int64_t d)                                                         \
    {                                                                                              \
        advance(p, KIND, IS_BACKWARD, VECTORS, PORTABLE, t, a, b, c, d);                           \
    }                                                                                              \
    FOR_AVX2 static void NAME##_avx2(const Panels *p, int64_t t, int64_t a, int64_t b, int64_t c,  \
                                     int64_t d)                                                    \
    {                                                                                              \
        advance(p, KIND, IS_BACKWARD, VECTORS, AVX2, t, a, b, c, d);                               \
    }                                                                                              \
    FOR_AVX512 static void NAME##_avx512(const Panels *p, int64_t t, int64_t a, int64_t b,         \
                                         int64_t c, int64_t d)                                     \
    {                                                                                              \
        advance(p, KIND, IS_BACKWARD, VECTORS, AVX512, t, a, b, c, d);                             \
    }

/* Vectors of a panel that are none of gates. */
enum { SIDE_BY_SIDE = 4 };

FOR_A_KIND(tanh_forward, OF_TANH, false, SIDE_BY_SIDE)
FOR_A_KIND(relu_forward, OF_RELU, false, SIDE_BY_SIDE)
FOR_A_KIND(gru_forward, OF_GRU, false, 3)
FOR_A_KIND(lstm_forward, OF_LSTM, false, 4)
FOR_A_KIND(tanh_backward, OF_TANH, true, SIDE_BY_SIDE)
FOR_A_KIND(relu_backward, OF_RELU, true, SIDE_BY_SIDE)
FOR_A_KIND(gru_backward, OF_GRU, true, SIDE_BY_SIDE)
FOR_A_KIND(lstm_backward, OF_LSTM, true, SIDE_BY_SIDE)

#define ALL_VECTORS(NAME) {NAME##_portable, NAME##_avx2, NAME##_avx512}
static Advance *const ADVANCE[2][KINDS][3] = {
    {ALL_VECTORS(tanh_forward), ALL_VECTORS(relu_forward), ALL_VECTORS(gru_forward),
     ALL_VECTORS(lstm_forward)},
    {ALL_VECTORS(tanh_backward), ALL_VECTORS(relu_backward), ALL_VECTORS(gru_backward),
     ALL_VECTORS(lstm_backward)},
};

static void
run_turn(const Turn *turn, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const Panels *panels = turn->panels;
    ADVANCE[panels->is_backward][panels->layer->kind][panels->kind](panels, turn->turn, a, b, c, d);
}

static int
run_rows(const void *data, int64_t begin, int64_t end, char *message)
{
    Turn turn = {data, 0};
    (void)message;
    for (; turn.turn < turn.panels->layer->count + turn.panels->is_backward; turn.turn++)
        run_turn(&turn, 0, turn.panels->count, begin, end);
    return 0;
}

static int
run_panels(const void *data, int64_t begin, int64_t end, char *message)
{
    const Turn *turn = data;
    (void)message;
    run_turn(turn, begin, end, 0, turn->panels->layer->batch);
    return 0;
}

static void
clear_padding(const Layer *layer, float *all, int64_t width)
{
    const int64_t each = layer->batch * width;
    if (all && layer->count < layer->steps)
        memset(all + layer->count * each, 0,
               (size_t)((layer->steps - layer->count) * each) * sizeof *all);
}

static Error *
run_layer(Frame *frame, const Layer *layer, bool is_backward)
{
    const int gates = GATES[layer->kind];
    Panels panels = {
        .layer = layer, .is_backward = is_backward, .kind = widest_vectors(),
        .inner = is_backward ? gates * layer->size : layer->size,
        .vectors = !is_backward && gates > 1 ? gates : SIDE_BY_SIDE,
    };
    const int64_t units = unit_of(has_gates(&panels), panels.vectors, 1, 0);
    panels.count = (layer->size + units - 1) / units;
    const int64_t each = panels.inner * panels.vectors * LANES; /* Elements of a panel. */
    panels.data = aligned_alloc(LANES * sizeof(float), (size_t)(panels.count * each) * sizeof(float));
    if (!panels.data)
        return refuse(frame, INTERNAL, NAME, "no memory is left");
    char message[MESSAGE] = "";
    const Division filling = {fill_panels, &panels, panels.count, WORTH_A_THREAD / each + 1, 1};
    int failed = divide(frame, &filling, message);
    if (!failed && layer->batch >= ROWS_FOR_THREADS) {
        const int64_t a_row = each * panels.count * layer->count + 1;
        const Division rows = {run_rows, &panels, layer->batch, WORTH_A_THREAD / a_row + 1, 1};
        failed = divide(frame, &rows, message);
    }
    for (Turn turn = {&panels, 0}; !failed && layer->batch < ROWS_FOR_THREADS &&
                                   turn.turn < layer->count + is_backward;
         turn.turn++) {
        const int64_t grain = WORTH_A_THREAD / (each * layer->batch) + 1;
        const Division columns = {run_panels, &turn, panels.count, grain, 1};
        failed = divide(frame, &columns, message);
    }
    free(panels.data);
    return failed ? refuse(frame, INTERNAL, NAME, message) : NULL;
}

/* -- the calls ------------------------------------------------------------------------------- */

static bool
is_of(const Buffer *buffer, int64_t rank, int64_t a, int64_t b, int64_t c)
{
    const int64_t dims[] = {a, b, c};
    bool right = buffer->dtype == F32 && buffer->rank == rank;
    for (int64_t dim = 0; right && dim < rank; dim++)
        right = buffer->dims[dim] == dims[dim];
    return right;
}

static float *
floats_of(const Buffer *buffer)
{
    return count_of(buffer) ? (float *)(void *)buffer->data : NULL;
}

/* Of which layer a call is, whose states have this shape. */
static int
read_layer(const Frame *frame, const Buffer *states, const Buffer *count, Layer *layer,
           char *message)
{
    const int64_t *how = array_of(frame, "how", S64, RECURRENCE_NUMBERS);
    if (!how || how[0] < 0 || how[0] >= KINDS || states->rank != 3 || count->dtype != S64 ||
        count_of(count) != 1)
        return fail(message, "its attributes are not those that the bridge writes");
    int64_t steps;
    memcpy(&steps, count->data, sizeof steps);
    const int64_t most = states->dims[0];
    *layer = (Layer){
        .kind = (Kind)how[0], .is_reverse = how[1] != 0, .steps = most,
        .count = steps < 0 ? 0 : steps < most ? steps : most,
        .batch = states->dims[1], .size = states->dims[2],
    };
    return 0;
}

static int
check(bool fits, char *message)
{
    return fits ? 0 : fail(message, "its operands and its results do not fit each other");
}

static int
read_forward(const Frame *frame, Layer *layer, char *message)
{
    const Buffer *all[9];
    if (read_arrays(frame, 6, 3, all, message) ||
        read_layer(frame, all[6], all[5], layer, message))
        return -1;
    const int64_t steps = layer->steps, batch = layer->batch, size = layer->size;
    const int64_t width = GATES[layer->kind] * size, cells = layer->kind == OF_LSTM ? size : 0;
    const Buffer *bias = all[4], *saved = all[8];
    layer->given = floats_of(all[0]);
    layer->state = floats_of(all[1]);
    layer->cells = floats_of(all[2]);
    layer->weight = floats_of(all[3]);
    layer->bias = floats_of(bias);
    layer->states = floats_of(all[6]);
    layer->all_cells = floats_of(all[7]);
    layer->saved = floats_of(saved);
    return check(is_of(all[0], 3, steps, batch, width) && is_of(all[1], 2, batch, size, 0) &&
                     is_of(all[2], 2, batch, cells, 0) && is_of(all[3], 2, width, size, 0) &&
                     is_of(bias, 1, layer->bias ? width : 0, 0, 0) &&
                     is_of(all[6], 3, steps, batch, size) &&
                     is_of(all[7], 3, steps, batch, cells) &&
                     is_of(saved, 3, steps, batch, layer->saved ? SAVED[layer->kind] * size : 0),
                 message);
}

static int
read_backward(const Frame *frame, Layer *layer, char *message)
{
    const Buffer *all[13];
    if (read_arrays(frame, 9, 4, all, message) ||
        read_layer(frame, all[2], all[8], layer, message))
        return -1;
    const int64_t steps = layer->steps, batch = layer->batch, size = layer->size;
    const int64_t width = GATES[layer->kind] * size, cells = layer->kind == OF_LSTM ? size : 0;
    layer->of_states = floats_of(all[0]);
    layer->of_all_cells = floats_of(all[1]);
    layer->states = floats_of(all[2]);
    layer->all_cells = floats_of(all[3]);
    layer->saved = floats_of(all[4]);
    layer->state = floats_of(all[5]);
    layer->cells = floats_of(all[6]);
    layer->weight = floats_of(all[7]);
    layer->of_given = floats_of(all[9]);
    layer->of_products = floats_of(all[10]);
    layer->of_state = floats_of(all[11]);
    layer->of_cells = floats_of(all[12]);
    return check(is_of(all[0], 3, steps, batch, size) && is_of(all[1], 3, steps, batch, cells) &&
                     is_of(all[3], 3, steps, batch, cells) &&
                     is_of(all[4], 3, steps, batch, SAVED[layer->kind] * size) &&
                     is_of(all[5], 2, batch, size, 0) && is_of(all[6], 2, batch, cells, 0) &&
                     is_of(all[7], 2, width, size, 0) && is_of(all[9], 3, steps, batch, width) &&
                     is_of(all[10], 3, steps, batch, layer->kind == OF_GRU ? width : 0) &&
                     is_of(all[11], 2, batch, size, 0) && is_of(all[12], 2, batch, cells, 0),
                 message);
}

Error *
run_recurrence(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Layer layer;
    if (check_caller(frame, message) || read_forward(frame, &layer, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (!layer.states)
        return NULL;
    clear_padding(&layer, layer.states, layer.size);
    clear_padding(&layer, layer.all_cells, layer.size);
    clear_padding(&layer, layer.saved, SAVED[layer.kind] * layer.size);
    return layer.count ? run_layer(frame, &layer, false) : NULL;
}

Error *
run_recurrence_backward(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Layer layer;
    if (check_caller(frame, message) || read_backward(frame, &layer, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    clear_padding(&layer, layer.of_given, GATES[layer.kind] * layer.size);
    clear_padding(&layer, layer.of_products, GATES[layer.kind] * layer.size);
    const size_t state = (size_t)(layer.batch * layer.size) * sizeof(float);
    if (layer.states && layer.count)
        return run_layer(frame, &layer, true);
    if (layer.of_state)
        memset(layer.of_state, 0, state);
    if (layer.of_cells)
        memset(layer.of_cells, 0, state);
    return NULL;
}
