/* A custom call that computes elementwise expressions of arrays, in blocks that stay in the first
 * cache.
 *
 * XLA's CPU compiler would make loops of them, which its threads divide; these sleep between loops.
 * A call is divided between the threads of `team.h`, and what several results have in common is
 * computed once.
 */

#ifndef PJRT_BRIDGE_CPU_EXPRESSION_H
#define PJRT_BRIDGE_CPU_EXPRESSION_H

#include "xla.h"

/* The operations of a step, which computes a register of numbers of each element from others.
 * Registers are float32; truth is 1 and falsehood is 0. */
typedef enum {
    READ,    /* Operand a. */
    NUMBER,  /* Number a. */
    WRITE,   /* Result `to` is register a. */
    ROUND,   /* Rounded to bfloat16. */
    ADD,
    ADD_NUMBER,      /* a and number b. */
    SUBTRACT,
    SUBTRACT_FROM,   /* a from number b. */
    MULTIPLY,
    MULTIPLY_NUMBER, /* a and number b. */
    MULTIPLY_ADD,    /* a times b, and c. */
    DIVIDE,
    MAXIMUM,
    MINIMUM,
    EQUAL,
    NOT_EQUAL,
    LESS,
    LESS_EQUAL,
    SELECT,  /* b where a is not 0, else c. */
    NEGATE,
    ABSOLUTE,
    EXPONENTIAL,
    LOGARITHM,
    LOGISTIC,
    TANH,
    ERF,
    SQRT,
    RSQRT,
    AND,
    OR,
    NOT,
    OPERATIONS
} Operation;

/* The most of each that a call has; MOST_DIMS: of the ways in which an operand is read. */
enum {
    MOST_OPERANDS = 16,
    MOST_RESULTS = 4,
    MOST_REGISTERS = 12,
    MOST_STEPS = 128,
    MOST_DIMS = 6,
};

/* Operands and results: float32, bfloat16 or bool, row-major. All results have one number of
 * elements. The attribute `steps` has five int64 a step: operation, to, a, b, c, where `to` is the
 * register that it computes, which is none of those that it reads. `reads` has 2 + 2 * MOST_DIMS
 * int64 an operand: the element that is read first, the number of dimensions, and their sizes and
 * strides, outermost first and 0 where there is none. The product of the sizes is the number of
 * elements of a result. `numbers` has one float64 a number. `vectors` has one int64: the widest
 * vectors that may be used, as for norms. */
Error *compute_expression(Frame *frame);

#endif
