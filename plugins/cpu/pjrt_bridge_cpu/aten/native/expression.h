/* A custom call that computes elementwise expressions of arrays, in blocks that stay in the first
 * cache.
 *
 * XLA's CPU compiler would make loops of them, which its threads divide; these sleep between loops.
 * A call is divided between the threads of `team.h`, and what several results have in common is
 * computed once.
 */

#ifndef PJRT_BRIDGE_CPU_EXPRESSION_H
#define PJRT_BRIDGE_CPU_EXPRESSION_H

#include "frame.h"
#include "tiles.h"

#include <stdbool.h>

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
    SINE,
    COSINE,
    POWER,                 /* a to the power of b. */
    LOG_PLUS_ONE,          /* Of 1 and a. */
    EXPONENTIAL_MINUS_ONE, /* Less 1. */
    SIGN,
    FLOOR,
    CEILING,
    ROUND_EVEN, /* To the nearest integer, ties to even ones. */
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

/* Elements of a block: so many registers of it are in the first cache. */
enum { BLOCK = 1024 };

typedef struct {
    int64_t operation, to, a, b, c;
} Step;

typedef struct {
    const char *data; /* From the element that is read first on. */
    int type, dims;
    int64_t sizes[MOST_DIMS], strides[MOST_DIMS];
    int64_t tiled[MOST_TILED_DIMS]; /* Strides along the dimensions of tiles, where there are any. */
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
    Tiles tiles;
    bool holds_number[MOST_REGISTERS]; /* A register that a number is in, and nothing else ever. */
} Expression;

/* Of one thread: registers, which of those that hold a number are filled, what operands that are
 * read again and again repeat, and the element that this begins with. */
typedef struct {
    _Alignas(64) float registers[MOST_REGISTERS][BLOCK];
    _Alignas(64) float repeated[MOST_OPERANDS][BLOCK];
    int64_t phase[MOST_OPERANDS];
    bool is_filled[MOST_REGISTERS];
} Workspace;

/* Computes the elements of a tile; where the numbers of the last step are. A block of elements that
 * lie side by side is a tile of a single row. */
typedef const float *RunBlock(const Expression *expression, Workspace *work, const Tile *block);

/* The function for the widest vectors that an expression may use. */
RunBlock *block_function(const Expression *expression);

/* What threads begin with. */
void clear_workspace(Workspace *work);

/* Whether b is a number, and no register. */
INLINE bool
has_number(int64_t operation)
{
    return operation == ADD_NUMBER || operation == SUBTRACT_FROM || operation == MULTIPLY_NUMBER;
}

/* How many registers an operation reads. */
INLINE int
registers_read(int64_t operation)
{
    switch (operation) {
    case READ:
    case NUMBER:
        return 0;
    case SELECT:
    case MULTIPLY_ADD:
        return 3;
    case ADD:
    case SUBTRACT:
    case MULTIPLY:
    case DIVIDE:
    case MAXIMUM:
    case MINIMUM:
    case EQUAL:
    case NOT_EQUAL:
    case LESS:
    case LESS_EQUAL:
    case POWER:
    case AND:
    case OR:
        return 2;
    default:
        return 1;
    }
}

/* Whether an operand is read from its first to its last element, again and again. */
INLINE bool
is_repeated(const Operand *operand)
{
    return operand->dims == 2 && !operand->strides[0] && operand->strides[1] == 1;
}

/* What a program says of an expression of so many elements, which may come from anywhere; -1: of as
 * many as its results have. */
int read_expression(const Frame *frame, Expression *expression, int64_t size, char *message);

/* Operands and results: float32, bfloat16 or bool, row-major. All results have one number of
 * elements. The attribute `steps` has five int64 a step: operation, to, a, b, c, where `to` is the
 * register that it computes, which is none of those that it reads. `reads` has 2 + 2 * MOST_DIMS
 * int64 an operand: the element that is read first, the number of dimensions, and their sizes and
 * strides, outermost first and 0 where there is none. The product of the sizes is the number of
 * elements of a result. `numbers` has one float64 a number. `vectors` has one int64: the widest
 * vectors that may be used, as for norms.
 *
 * A result may have the memory of an operand of its type that is read from its first to its last
 * element alone, if it is written behind the last step that reads the operand. */
Error *compute_expression(Frame *frame);

#endif
