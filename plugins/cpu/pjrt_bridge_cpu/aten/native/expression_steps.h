/* The steps of an expression over a block of elements. */

#ifndef PJRT_BRIDGE_CPU_EXPRESSION_STEPS_H
#define PJRT_BRIDGE_CPU_EXPRESSION_STEPS_H

#include "expression.h"
#include "functions.h"

#include <stdbool.h>

/* Elements of a block: so many registers of it are in the first cache. */
enum { BLOCK = 1024 };

typedef struct {
    int64_t operation, to, a, b, c;
} Step;

typedef struct {
    const char *data;
    int type;
    int64_t inner, period;
} Operand;

typedef struct {
    char *data;
    int type;
} Output;

typedef struct {
    const Step *steps;
    const double *numbers;
    int64_t step_count, size, block; /* block: elements of a block, at most BLOCK. */
    Operand operands[MOST_OPERANDS];
    Output outputs[MOST_RESULTS];
    Vectors vectors;
} Expression;

/* Of one thread: registers, what operands with a period shorter than the results repeat, and the
 * element of the period that this begins with. */
typedef struct {
    _Alignas(64) float registers[MOST_REGISTERS][BLOCK];
    _Alignas(64) float repeated[MOST_OPERANDS][BLOCK];
    int64_t phase[MOST_OPERANDS];
} Workspace;

#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

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

/* Where the numbers of an operand for elements from `begin` on are. */
INLINE const float *
read_operand(const Operand *operand, int64_t index, float *to, Workspace *work, int64_t begin,
             int64_t count)
{
    const int64_t width = bytes_of(operand->type), period = operand->period;
    const int64_t phase = begin / operand->inner % period;
    if (operand->inner == 1 && phase + count <= period) {
        const char *from = operand->data + phase * width;
        if (operand->type == F32)
            return (const float *)from;
        widen(to, from, operand->type, count);
        return to;
    }
    if (operand->inner == 1) {
        float *repeated = work->repeated[index];
        /* A block is a multiple of most periods; then all blocks repeat the same. The last one
         * is shorter. */
        if (work->phase[index] == phase)
            return repeated;
        int64_t done = 0, at = phase;
        while (done < BLOCK) {
            int64_t part = period - at < BLOCK - done ? period - at : BLOCK - done;
            widen(repeated + done, operand->data + at * width, operand->type, part);
            done += part;
            at = 0;
        }
        work->phase[index] = phase;
        return repeated;
    }
    int64_t done = 0, at = phase, left = operand->inner - begin % operand->inner;
    while (done < count) {
        const int64_t part = left < count - done ? left : count - done;
        float value;
        widen(&value, operand->data + at * width, operand->type, 1);
        for (int64_t i = 0; i < part; i++)
            to[done + i] = value;
        done += part;
        at = at + 1 < period ? at + 1 : 0;
        left = operand->inner;
    }
    return to;
}

INLINE void
write_output(const Output *output, const float *from, int64_t begin, int64_t count)
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

#define COMPUTE(name, value)                                                                       \
    case name:                                                                                     \
        EACH to[i] = (value);                                                                      \
        break

INLINE void
run_step(const Step *step, float *to, const float *a, const float *b, const float *c,
         int64_t count)
{
    switch (step->operation) {
        COMPUTE(ROUND, from_bfloat16(to_bfloat16(a[i])));
        COMPUTE(ADD, a[i] + b[i]);
        COMPUTE(SUBTRACT, a[i] - b[i]);
        COMPUTE(MULTIPLY, a[i] * b[i]);
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
        COMPUTE(AND, a[i] * b[i]);
        COMPUTE(OR, larger(a[i], b[i]));
        COMPUTE(NOT, 1.0F - a[i]);
    default:
        break;
    }
}

/* Where a step puts its numbers: in the result, where the next step writes them there. */
INLINE float *
written(const Expression *expression, const Step *next, int64_t step_to, int64_t begin, float *to)
{
    if (next->operation != WRITE || next->a != step_to)
        return to;
    const Output *output = &expression->outputs[next->to];
    return output->type == F32 ? (float *)output->data + begin : to;
}

INLINE void
run_block(const Expression *expression, Workspace *work, int64_t begin, int64_t count)
{
    const float *at[MOST_REGISTERS] = {0};
    for (int64_t index = 0; index < expression->step_count; index++) {
        const Step *step = &expression->steps[index];
        float *to = work->registers[step->to];
        if (index + 1 < expression->step_count && step->operation != READ)
            to = written(expression, &step[1], step->to, begin, to);
        if (step->operation == READ) {
            at[step->to] = read_operand(&expression->operands[step->a], step->a, to, work, begin,
                                        count);
        } else if (step->operation == NUMBER) {
            const float number = (float)expression->numbers[step->a];
            EACH to[i] = number;
            at[step->to] = to;
        } else if (step->operation == WRITE) {
            write_output(&expression->outputs[step->to], at[step->a], begin, count);
        } else {
            run_step(step, to, at[step->a], at[step->b], at[step->c], count);
            at[step->to] = to;
        }
    }
}

#endif
