/* The steps of an expression over a block of elements. */

#ifndef PJRT_BRIDGE_CPU_EXPRESSION_STEPS_H
#define PJRT_BRIDGE_CPU_EXPRESSION_STEPS_H

#include "expression.h"
#include "wide_functions.h"

#define EACH INDEPENDENT for (int64_t i = 0; i < count; i++)

INLINE void
widen(float *to, const char *from, int type, int64_t count)
{
    if (type == F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (type == BF16)
        EACH to[i] = from_bfloat16(((const uint16_t *)from)[i]);
    else
        EACH to[i] = ((const uint8_t *)from)[i] ? 1.0F : 0.0F;
}

INLINE int64_t
bytes_of(int type)
{
    return type == F32 ? 4 : type == BF16 ? 2 : 1;
}

/* A block of an operand that is read again and again. A block is a multiple of most operands' sizes;
 * then all blocks are the same. */
INLINE const float *
read_repeated(const Operand *operand, float *repeated, int64_t *phase, int64_t begin)
{
    const int64_t period = operand->sizes[1];
    int64_t done = 0, at = begin % period;
    if (*phase == at)
        return repeated;
    *phase = at;
    while (done < BLOCK) {
        const int64_t part = period - at < BLOCK - done ? period - at : BLOCK - done;
        widen(repeated + done, operand->data + at * bytes_of(operand->type), operand->type, part);
        done += part;
        at = 0;
    }
    return repeated;
}

/* A run of elements, which have a distance of `stride`. */
INLINE void
read_run(float *to, const char *from, int type, int64_t stride, int64_t count)
{
    if (stride == 1) {
        widen(to, from, type, count);
        return;
    }
    if (!stride) {
        float value;
        widen(&value, from, type, 1);
        EACH to[i] = value;
        return;
    }
    for (int64_t i = 0; i < count; i++)
        widen(to + i, from + i * stride * bytes_of(type), type, 1);
}

/* A block of an operand, run by run along its last dimension. */
INLINE void
read_runs(const Operand *operand, float *to, int64_t begin, int64_t count)
{
    const int last = operand->dims - 1;
    int64_t at[MOST_DIMS], offset = 0, done = 0;
    for (int dim = last; dim >= 0; dim--) {
        at[dim] = begin % operand->sizes[dim];
        begin /= operand->sizes[dim];
        offset += at[dim] * operand->strides[dim];
    }
    for (;;) {
        const int64_t left = operand->sizes[last] - at[last];
        const int64_t part = left < count - done ? left : count - done;
        read_run(to + done, operand->data + offset * bytes_of(operand->type), operand->type,
                 operand->strides[last], part);
        done += part;
        if (done == count)
            return;
        offset -= at[last] * operand->strides[last];
        at[last] = 0;
        for (int dim = last - 1; dim >= 0; dim--) {
            offset += operand->strides[dim];
            if (++at[dim] < operand->sizes[dim])
                break;
            offset -= at[dim] * operand->strides[dim];
            at[dim] = 0;
        }
    }
}

/* A tile of an operand, row by row. */
INLINE void
read_tile(const Operand *operand, float *to, const Tiles *tiles, const Tile *tile)
{
    const int last = tiles->dims - 1;
    const int64_t to_row = operand->tiled[tiles->row], to_column = operand->tiled[last];
    const int64_t width = bytes_of(operand->type);
    const char *from = operand->data;
    for (int dim = 0; dim <= last; dim++)
        from += tile->at[dim] * operand->tiled[dim] * width;
    if (to_row == 1 && to_column > 1 && operand->type == F32) {
        turn(to, (const float *)from, to_column, tile->rows, tile->columns);
        return;
    }
    if (to_row == 1 && to_column > 1) {
        _Alignas(64) float wide[TILE];
        for (int64_t column = 0; column < tile->columns; column++)
            widen(wide + column * tile->rows, from + column * to_column * width, operand->type,
                  tile->rows);
        turn(to, wide, tile->rows, tile->rows, tile->columns);
        return;
    }
    const bool is_one = to_row == to_column * tile->columns;
    const int64_t runs = is_one ? 1 : tile->rows, count = tile->rows * tile->columns / runs;
    for (int64_t run = 0; run < runs; run++)
        read_run(to + run * count, from + run * to_row * width, operand->type, to_column, count);
}

/* Whether an operand has one number for all elements of a block, and which. */
INLINE bool
is_one_number(const Operand *operand, const Tiles *tiles, const Tile *block, float *number)
{
    const int last = operand->dims - 1;
    const int64_t run = operand->sizes[last];
    if (tiles->dims || operand->strides[last] || block->first % run + block->columns > run)
        return false;
    int64_t rest = block->first / run, offset = 0;
    for (int dim = last - 1; dim >= 0; rest /= operand->sizes[dim--])
        offset += rest % operand->sizes[dim] * operand->strides[dim];
    widen(number, operand->data + offset * bytes_of(operand->type), operand->type, 1);
    return true;
}

/* Where the numbers of an operand for the elements of a block are. */
INLINE const float *
read_operand(const Operand *operand, int64_t index, float *to, Workspace *work, const Tiles *tiles,
             const Tile *block)
{
    const int64_t begin = block->first, count = block->columns;
    if (tiles->dims) {
        read_tile(operand, to, tiles, block);
        return to;
    }
    if (is_repeated(operand)) {
        const int64_t phase = begin % operand->sizes[1];
        if (operand->type == F32 && phase + count <= operand->sizes[1])
            return (const float *)operand->data + phase;
        return read_repeated(operand, work->repeated[index], &work->phase[index], begin);
    }
    if (operand->dims == 1 && operand->strides[0] == 1 && operand->type == F32)
        return (const float *)operand->data + begin;
    read_runs(operand, to, begin, count);
    return to;
}

INLINE void
write_run(const Output *output, const float *from, int64_t begin, int64_t count)
{
    if (output->type == F32) {
        float *to = (float *)output->data + begin;
        if (to != from)
            memcpy(to, from, (size_t)count * sizeof *from);
    } else if (output->type == BF16) {
        uint16_t *to = (uint16_t *)output->data + begin;
        EACH to[i] = to_bfloat16(from[i]);
    } else {
        uint8_t *to = (uint8_t *)output->data + begin;
        EACH to[i] = from[i] != 0.0F;
    }
}

INLINE void
write_output(const Output *output, const float *from, const Tile *block)
{
    const int64_t runs = is_run(block) ? 1 : block->rows;
    const int64_t count = block->rows * block->columns / runs;
    for (int64_t run = 0; run < runs; run++)
        write_run(output, from + run * count, block->first + run * block->to_next_row, count);
}

#define COMPUTE(name, value)                                                                       \
    case name:                                                                                     \
        EACH to[i] = (value);                                                                      \
        break

/* Sines, or cosines. Products are exact where there are vectors that have a fused sum. */
INLINE void
run_sine(float *to, const float *a, bool is_cosine, Vectors vectors, int64_t count)
{
    const bool is_near = vectors != PORTABLE && are_all_near(a, count);
    if (is_near && is_cosine)
        EACH to[i] = sine_near(a[i], 1);
    else if (is_near)
        EACH to[i] = itself_near_zero(a[i], sine_near(a[i], 0));
    else if (is_cosine)
        EACH to[i] = sine_behind(a[i], 1);
    else
        EACH to[i] = itself_near_zero(a[i], sine_behind(a[i], 0));
    if (!is_near)
        mend_large_angles(to, a, is_cosine ? cosf : sinf, count);
}

INLINE void
run_step(const Step *step, float *to, const float *a, const float *b, const float *c,
         float number, Vectors vectors, int64_t count)
{
    switch (step->operation) {
        COMPUTE(ROUND, from_bfloat16(to_bfloat16(a[i])));
        COMPUTE(ADD, a[i] + b[i]);
        COMPUTE(ADD_NUMBER, a[i] + number);
        COMPUTE(SUBTRACT, a[i] - b[i]);
        COMPUTE(SUBTRACT_FROM, number - a[i]);
        COMPUTE(MULTIPLY, a[i] * b[i]);
        COMPUTE(MULTIPLY_NUMBER, a[i] * number);
        COMPUTE(MULTIPLY_ADD, a[i] * b[i] + c[i]);
        COMPUTE(DIVIDE, a[i] / b[i]);
        COMPUTE(MAXIMUM, larger(a[i], b[i]));
        COMPUTE(MINIMUM, smaller(a[i], b[i]));
        COMPUTE(EQUAL, a[i] == b[i] ? 1.0F : 0.0F);
        COMPUTE(NOT_EQUAL, a[i] != b[i] ? 1.0F : 0.0F);
        COMPUTE(LESS, a[i] < b[i] ? 1.0F : 0.0F);
        COMPUTE(LESS_EQUAL, a[i] <= b[i] ? 1.0F : 0.0F);
        COMPUTE(SELECT, a[i] != 0.0F ? b[i] : c[i]);
        COMPUTE(NEGATE, -a[i]);
        COMPUTE(ABSOLUTE, fabsf(a[i]));
        COMPUTE(EXPONENTIAL, exponential(a[i]));
        COMPUTE(LOGARITHM, natural_logarithm(a[i]));
        COMPUTE(LOGISTIC, logistic(a[i]));
        COMPUTE(TANH, hyperbolic_tangent(a[i]));
        COMPUTE(ERF, error_function(a[i]));
        COMPUTE(SQRT, sqrtf(a[i]));
        COMPUTE(RSQRT, 1.0F / sqrtf(a[i]));
        COMPUTE(POWER, power_of(a[i], b[i]));
        COMPUTE(LOG_PLUS_ONE, log_of_one_and(a[i]));
        COMPUTE(EXPONENTIAL_MINUS_ONE, exponential_minus_one(a[i]));
        COMPUTE(SIGN, sign_of(a[i]));
        COMPUTE(FLOOR, floorf(a[i]));
        COMPUTE(CEILING, ceilf(a[i]));
        COMPUTE(ROUND_EVEN, rintf(a[i]));
        COMPUTE(AND, a[i] * b[i]);
        COMPUTE(OR, larger(a[i], b[i]));
        COMPUTE(NOT, 1.0F - a[i]);
    case SINE:
    case COSINE:
        run_sine(to, a, step->operation == COSINE, vectors, count);
        break;
    default:
        break;
    }
}

/* A step of which some registers have one number for all elements, without filling these; whether
 * there is a loop for it. is_one: by register whether it has one; ones: which. */
INLINE bool
run_with_ones(const Step *step, float *to, const float *const *at, const bool *is_one,
              const float *ones, int64_t count)
{
    const bool a = is_one[step->a], b = is_one[step->b];
    const float *others = at[a ? step->b : step->a];
    const float one = ones[a ? step->a : step->b];
    if (step->operation == MULTIPLY_ADD && a != b && is_one[step->c]) {
        const float added = ones[step->c];
        EACH to[i] = others[i] * one + added;
        return true;
    }
    if (a == b)
        return false;
    switch (step->operation) {
        COMPUTE(ADD, others[i] + one);
        COMPUTE(MULTIPLY, others[i] * one);
    case SUBTRACT:
        if (a)
            EACH to[i] = one - others[i];
        else
            EACH to[i] = others[i] - one;
        break;
    default:
        return false;
    }
    return true;
}

/* Fill the registers that a step reads and that have one number for all elements. */
INLINE void
fill_ones(const Step *step, Workspace *work, bool *is_one, const float *ones, int64_t count)
{
    const int64_t sources[] = {step->a, step->b, step->c};
    for (int k = 0; k < registers_read(step->operation); k++) {
        if (!is_one[sources[k]])
            continue;
        float *to = work->registers[sources[k]];
        const float one = ones[sources[k]];
        EACH to[i] = one;
        is_one[sources[k]] = false;
    }
}

/* Where a step puts its numbers: in the result, where the next step writes them there. A result may
 * be what the step reads, which large angles need once more. */
INLINE float *
written(const Expression *expression, const Step *step, const Tile *block, float *to)
{
    const Step *next = &step[1];
    if (next->operation != WRITE || next->a != step->to || !is_run(block) ||
        step->operation == SINE || step->operation == COSINE)
        return to;
    const Output *output = &expression->outputs[next->to];
    return output->type == F32 ? (float *)output->data + block->first : to;
}

/* Fill the register of a number that no other step computes, once. */
INLINE void
hold_number(Workspace *work, int64_t index, float number)
{
    if (work->is_filled[index])
        return;
    for (int64_t i = 0; i < BLOCK; i++)
        work->registers[index][i] = number;
    work->is_filled[index] = true;
}

/* The elements of a tile, and where the numbers of the last step are. A block of elements that lie
 * side by side is a tile of a single row. */
INLINE const float *
run_block(const Expression *expression, Workspace *work, const Tile *block)
{
    const int64_t count = block->rows * block->columns;
    const float *at[MOST_REGISTERS] = {0};
    float ones[MOST_REGISTERS] = {0};
    bool is_one[MOST_REGISTERS] = {false};
    for (int64_t index = 0; index < expression->step_count; index++) {
        const Step *step = &expression->steps[index];
        const bool is_last = index + 1 == expression->step_count;
        const Operand *operand = &expression->operands[step->operation == READ ? step->a : 0];
        float *to = work->registers[step->to];
        if (step->operation == READ) {
            at[step->to] = to;
            is_one[step->to] =
                !is_last && is_one_number(operand, &expression->tiles, block, &ones[step->to]);
            if (!is_one[step->to])
                at[step->to] =
                    read_operand(operand, step->a, to, work, &expression->tiles, block);
            continue;
        }
        if (step->operation == NUMBER && expression->holds_number[step->to]) {
            hold_number(work, step->to, (float)expression->numbers[step->a]);
            at[step->to] = to;
            continue;
        }
        if (step->operation == WRITE) {
            fill_ones(step, work, is_one, ones, count);
            write_output(&expression->outputs[step->to], at[step->a], block);
            continue;
        }
        if (!is_last)
            to = written(expression, step, block, to);
        const bool is_number = has_number(step->operation);
        if (step->operation == NUMBER) {
            const float number = (float)expression->numbers[step->a];
            EACH to[i] = number;
        } else if (is_number || !run_with_ones(step, to, at, is_one, ones, count)) {
            fill_ones(step, work, is_one, ones, count);
            run_step(step, to, at[step->a], is_number ? NULL : at[step->b],
                     is_number ? NULL : at[step->c],
                     is_number ? (float)expression->numbers[step->b] : 0, expression->vectors,
                     count);
        }
        is_one[step->to] = false;
        at[step->to] = to;
    }
    return at[expression->steps[expression->step_count - 1].to];
}

#endif
