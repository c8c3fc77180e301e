/* A custom call: an operator, and how its arguments are made of a program's buffers. */

#ifndef PJRT_BRIDGE_CPU_CALL_H
#define PJRT_BRIDGE_CPU_CALL_H

#include "frame.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MOST_OPERATORS 64
#define MOST_ARGUMENTS 31

typedef struct {
    char name[64], overload[32];
    /* Of its parameters; operators.py says what they mean. */
    char kinds[MOST_ARGUMENTS + 1], lengths[96];
    int64_t returns;                /* Values, all of them tensors. */
} Operator;

typedef struct {
    int count;
    Operator items[MOST_OPERATORS];
} Operators;

/* Those that may be called; NULL before there are any. */
extern _Atomic(const Operators *) operators;

#define MOST_DIMENSIONS 8

typedef struct {
    const int64_t *data;
    int64_t size;
} Numbers;

typedef struct {
    const Frame *frame;
    const Operator *operator;
    /* Buffers are row-major; orders name the tensor's dimension of each, cuts one of their own. */
    Numbers orders, stack, returns, cuts;
    int64_t grain, pieces; /* The least length of a part; parts for each thread. */
    bool is_cut;
    int64_t length; /* Of what is cut. */
} Call;

/* A part of a call: its range of what is cut, and where the reason goes when it fails. */
typedef struct {
    const Call *call;
    int64_t begin, end;
    char *message;
    int64_t *lengths; /* By letter of the operator's `lengths`; 0 as long as nothing has it. */
} Part;

/* An operand, or a result after the operands. */
const Buffer *buffer_of(const Frame *frame, int64_t index);

/* Read the attributes of a call, and compare them with its buffers. */
int read_call(const Frame *frame, Call *call, char *message);

/* Run a part of a call on this thread. */
int run_part(const Part *part);

/* Run all of a call, on several threads where it is worth it. */
int run_in_parts(const Call *call, char *message);

#endif
