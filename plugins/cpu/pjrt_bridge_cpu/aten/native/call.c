/* What a program says of a call, which may come from anywhere: nothing is taken for granted. */

#include "call.h"

#include <string.h>

_Atomic(const Operators *) operators;

const Buffer *
buffer_of(const Frame *frame, int64_t index)
{
    int64_t operands = frame->operands.count;
    return index < operands ? frame->operands.buffers[index]
                            : frame->results.buffers[index - operands];
}

static const Operator *
operator_of(const Span *name, const Span *overload)
{
    const Operators *known = atomic_load(&operators);
    for (int i = 0; known && i < known->count; i++)
        if (is_text(name, known->items[i].name) && is_text(overload, known->items[i].overload))
            return &known->items[i];
    return NULL;
}

/* Whether every buffer is one that can be viewed, in an order that is one of its dimensions. */
static int
check_buffers(const Call *call, char *message)
{
    const Frame *frame = call->frame;
    int64_t operands = frame->operands.count, at = 0;
    for (int64_t i = 0; i < operands + frame->results.count; i++) {
        int type = i < operands ? frame->operands.types[i] : frame->results.types[i - operands];
        if (type != BUFFER)
            return fail(message, "operand or result %lld is no array", (long long)i);
        const Buffer *buffer = buffer_of(frame, i);
        if (!REACHES(buffer->size, Buffer, dims))
            return fail(message, "operand or result %lld has %zu bytes, fewer than %zu",
                        (long long)i, buffer->size, sizeof *buffer);
        if (buffer->rank < 0 || buffer->rank > MOST_DIMENSIONS)
            return fail(message, "operand or result %lld has %lld dimensions, more than %d",
                        (long long)i, (long long)buffer->rank, MOST_DIMENSIONS);
        unsigned seen = 0;
        for (int64_t k = 0; k < buffer->rank && at < call->orders.size; k++) {
            int64_t dim = call->orders.data[at++];
            seen |= dim >= 0 && dim < buffer->rank ? 1u << dim : 0;
        }
        if (seen != (1u << buffer->rank) - 1)
            return fail(message, "the order of operand or result %lld is none", (long long)i);
    }
    return 0;
}

static int
check_cuts(Call *call, char *message)
{
    const Frame *frame = call->frame;
    for (int64_t i = 0; i < call->cuts.size; i++) {
        const Buffer *buffer = buffer_of(frame, i);
        int64_t dim = call->cuts.data[i];
        if (dim < 0)
            continue;
        if (dim >= buffer->rank || (call->is_cut && buffer->dims[dim] != call->length))
            return fail(message, "what is cut is not of one length");
        call->length = buffer->dims[dim];
        call->is_cut = true;
    }
    /* Each part would write the whole result. */
    for (int64_t i = frame->operands.count; call->is_cut && i < call->cuts.size; i++)
        if (call->cuts.data[i] < 0)
            return fail(message, "a result is not cut, and others are");
    return 0;
}

int
read_call(const Frame *frame, Call *call, char *message)
{
    const Attributes *attributes = &frame->attributes;
    const Span empty = {"", 0}, *name = &empty, *overload = &empty;
    Numbers grain = {NULL, 0};
    const struct {
        const char *name;
        Numbers *where;
    } wanted[] = {
        {"orders", &call->orders}, {"stack", &call->stack}, {"returns", &call->returns},
        {"cuts", &call->cuts},     {"grain", &grain},
    };
    call->frame = frame;
    for (int64_t i = 0; i < attributes->count; i++) {
        const Span *key = attributes->names[i];
        if (attributes->types[i] == STRING && is_text(key, "name"))
            name = attributes->values[i];
        if (attributes->types[i] == STRING && is_text(key, "overload"))
            overload = attributes->values[i];
        if (attributes->types[i] != ARRAY)
            continue;
        const Array *array = attributes->values[i];
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
            if (array->dtype == S64 && is_text(key, wanted[k].name))
                *wanted[k].where = (Numbers){array->data, (int64_t)array->size};
    }
    int64_t count = frame->operands.count + frame->results.count;
    call->operator = operator_of(name, overload);
    if (!call->operator)
        return fail(message, "'%.*s.%.*s' is no operator that it may call",
                    name->size < 64 ? (int)name->size : 64, name->data,
                    overload->size < 64 ? (int)overload->size : 64, overload->data);
    if (call->cuts.size != count || grain.size != 2 ||
        call->returns.size != call->operator->returns)
        return fail(message, "its attributes are not those that the bridge writes");
    for (int64_t i = 0; i < call->returns.size; i++)
        if (call->returns.data[i] >= frame->results.count)
            return fail(message, "result %lld is none", (long long)call->returns.data[i]);
    call->grain = grain.data[0];
    call->pieces = grain.data[1];
    return check_buffers(call, message) || check_cuts(call, message) ? -1 : 0;
}
