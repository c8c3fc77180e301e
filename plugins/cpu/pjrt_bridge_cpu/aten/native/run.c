/* A part of a call: views of buffers, an operator of ATen on them, and what it returns.
 *
 * No tensor is copied on the way in. What an operator returns is copied, unless it was told to write
 * into the result itself. Libtorch takes arguments as words without types, so each is compared with
 * the operator's parameter before libtorch sees any of them.
 */

#include "call.h"
#include "torch.h"

#include <string.h>

/* Index: XLA_FFI_DataType; value: c10::ScalarType, -1 for none. */
static const int SCALAR_TYPES[] = {-1, 11, 1, 2, 3, 4, 0, -1, -1, -1, 5, 6, 7, -1, -1, 9, 15, -1, 10};

/* Words of the attribute `stack`; calls.py writes them. */
enum { NONE, OPERAND, RESULT, WORD, WORDS, SOME };

typedef struct {
    int32_t dtype;
    int64_t rank, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS], offset;
    void *data;
} View;

static int
fail_as_torch(char *message)
{
    const char *what = torch.what();
    return fail(message, "%s", what && *what ? what : "PyTorch gives no reason");
}

/* An operand, or a result after the operands; [begin, end) of it where it is cut. */
static int
view(const Part *part, int64_t index, View *found)
{
    const Call *call = part->call;
    const Buffer *buffer = buffer_of(call->frame, index);
    int size = sizeof SCALAR_TYPES / sizeof *SCALAR_TYPES;
    *found = (View){.rank = buffer->rank, .data = buffer->data};
    found->dtype = buffer->dtype > 0 && buffer->dtype < size ? SCALAR_TYPES[buffer->dtype] : -1;
    if (found->dtype < 0)
        return fail(part->message, "operand or result %lld has element type %d, which PyTorch lacks",
                    (long long)index, buffer->dtype);
    const int64_t *order = call->orders.data;
    for (int64_t i = 0; i < index; i++)
        order += buffer_of(call->frame, i)->rank;
    int64_t step = 1;
    for (int64_t i = buffer->rank - 1; i >= 0; i--) {
        int64_t dim = order[i];
        found->sizes[dim] = buffer->dims[i];
        found->strides[dim] = step;
        step *= buffer->dims[i] > 1 ? buffer->dims[i] : 1;
    }
    int64_t cut = call->cuts.data[index];
    if (cut >= 0) {
        found->offset = part->begin * found->strides[order[cut]];
        found->sizes[order[cut]] = part->end - part->begin;
    }
    return 0;
}

static int
tensor_of(const Part *part, const View *view, Tensor *tensor)
{
    if (torch.from_blob(view->data, view->rank, view->sizes, view->strides, view->offset,
                        view->dtype, 0, -1, tensor))
        return fail_as_torch(part->message);
    return 0;
}

/* Compare with the lengths that a parameter has to have, which end at a comma. */
static int
check_lengths(const Part *part, const char *letters, const View *view)
{
    int64_t count = (int64_t)strcspn(letters, ",");
    bool broadcast = *letters == '~';
    if (!count)
        return 0;
    letters += broadcast;
    count -= broadcast;
    bool right = broadcast ? view->rank <= count : view->rank == count;
    for (int64_t i = 0; right && i < view->rank; i++) {
        int64_t length = view->sizes[i];
        int64_t *expected = &part->lengths[letters[count - view->rank + i] - 'a'];
        if (broadcast && length == 1)
            continue;
        if (!*expected)
            *expected = length;
        right = length && length == *expected;
    }
    return right ? 0 : fail(part->message, "its operands do not fit each other");
}

/* Libtorch frees the words of a call that it takes; those of one that it never saw end here. */
static void
discard(char kind, Word word)
{
    bool optional = kind >= 'A' && kind <= 'Z';
    if (optional && !word)
        return;
    Word *held = (Word *)(uintptr_t)word;
    Word inner = optional ? *held : word;
    switch (optional ? kind - 'A' + 'a' : kind) {
    case 't':
    case 'o':
        torch.release((Tensor)(uintptr_t)inner);
        break;
    case 'l':
    case 'm':
        torch.delete_list((void *)(uintptr_t)inner);
        break;
    }
    if (optional)
        torch.delete_word(held);
}

/* An argument of a kind that is not optional, said by `left` words. How many, or -1. */
static int64_t
value(const Part *part, char kind, const char *lengths, const int64_t *data, int64_t left,
      Word *word)
{
    const Frame *frame = part->call->frame;
    if (left < 2)
        return fail(part->message, "its arguments end early");
    int64_t said = data[0], given = data[1];
    bool numbers = kind == 'l' || kind == 'm';
    int64_t expected = kind == 't' ? OPERAND : kind == 'o' ? RESULT : numbers ? WORDS : WORD;
    if (said != expected || !strchr("tolmibf", kind))
        return fail(part->message, "kind %lld is not one of its parameter", (long long)said);
    if (said == OPERAND || said == RESULT) {
        int64_t count = said == OPERAND ? frame->operands.count : frame->results.count;
        View found;
        Tensor tensor = NULL;
        if (given < 0 || given >= count)
            return fail(part->message, "operand or result %lld is none", (long long)given);
        if (view(part, given + (said == RESULT ? frame->operands.count : 0), &found) ||
            check_lengths(part, lengths, &found) || tensor_of(part, &found, &tensor))
            return -1;
        *word = (Word)(uintptr_t)tensor;
        return 2;
    }
    if (said == WORD) {
        if (kind == 'b' && (given < 0 || given > 1))
            return fail(part->message, "%lld is neither true nor false", (long long)given);
        *word = (Word)given;
        return 2;
    }
    if (given < 0 || given > left - 2)
        return fail(part->message, "its arguments end early");
    void *list = NULL;
    if (torch.new_list((size_t)given, &list))
        return fail_as_torch(part->message);
    for (int64_t i = 0; i < given; i++) {
        int64_t item = data[2 + i];
        bool wrong = kind == 'm' && (item < 0 || item > 1);
        if (wrong || torch.push(list, (Word)item)) {
            torch.delete_list(list);
            return wrong ? fail(part->message, "%lld is neither true nor false", (long long)item)
                         : fail_as_torch(part->message);
        }
    }
    *word = (Word)(uintptr_t)list;
    return 2 + given;
}

/* The same of any kind. */
static int64_t
argument(const Part *part, char kind, const char *lengths, const int64_t *data, int64_t left,
         Word *word)
{
    *word = 0;
    if (kind < 'A' || kind > 'Z')
        return value(part, kind, lengths, data, left, word);
    if (left > 0 && data[0] == NONE)
        return 1;
    if (left < 1 || data[0] != SOME)
        return fail(part->message, "an argument may be left out and does not say whether it is");
    Word inner = 0, *held = NULL;
    char plain = kind - 'A' + 'a';
    int64_t words = value(part, plain, lengths, data + 1, left - 1, &inner);
    if (words < 0)
        return -1;
    if (torch.new_word(&held)) {
        discard(plain, inner);
        return fail_as_torch(part->message);
    }
    *held = inner;
    *word = (Word)(uintptr_t)held;
    return 1 + words;
}

static bool
is_like(Tensor tensor, const View *view)
{
    int64_t rank = -1, *sizes = NULL;
    int32_t dtype = -1;
    return !torch.rank(tensor, &rank) && !torch.sizes(tensor, &sizes) &&
           !torch.dtype(tensor, &dtype) && rank == view->rank && dtype == view->dtype &&
           (!rank || !memcmp(sizes, view->sizes, (size_t)rank * sizeof *sizes));
}

/* Copy a returned tensor into a result, unless it was written there. It has to be like that: an
 * operator gives what it writes into another shape where that has room for it. */
static int
keep(const Part *part, Tensor tensor, int64_t result, bool written)
{
    View wanted;
    Tensor target = NULL;
    if (view(part, part->call->frame->operands.count + result, &wanted))
        return -1;
    if (!is_like(tensor, &wanted))
        return fail(part->message, "result %lld is not of the type that the program states",
                    (long long)result);
    if (written)
        return 0;
    if (tensor_of(part, &wanted, &target))
        return -1;
    int failed = torch.copy(target, tensor, 0) ? fail_as_torch(part->message) : 0;
    torch.release(target);
    return failed;
}

int
run_part(const Part *part)
{
    const Call *call = part->call;
    const Operator *operator = call->operator;
    Word words[MOST_ARGUMENTS];
    int64_t written[MOST_ARGUMENTS], places = 0, at = 0, count = 0, read = 0;
    const char *lengths = operator->lengths;
    for (; operator->kinds[count] && read >= 0; count++) {
        const int64_t *data = call->stack.data + at;
        read = argument(part, operator->kinds[count], lengths, data, call->stack.size - at,
                        &words[count]);
        lengths += strcspn(lengths, ",");
        lengths += *lengths == ',';
        if (operator->kinds[count] == 'o' && read >= 0)
            written[places++] = data[1];
        at += read;
    }
    if (read >= 0 && at != call->stack.size)
        read = fail(part->message, "it has more arguments than parameters");
    else if (read < 0)
        count--; /* What failed left nothing. */
    if (read < 0) {
        while (count--)
            discard(operator->kinds[count], words[count]);
        return -1;
    }
    if (torch.dispatch(operator->name, operator->overload, words, BUILT_FOR))
        return fail_as_torch(part->message);
    int failed = 0;
    for (int64_t i = 0; i < operator->returns; i++) {
        Tensor tensor = (Tensor)(uintptr_t)words[i];
        int64_t result = i < places ? written[i] : call->returns.data[i];
        if (result >= 0 && !failed)
            failed = keep(part, tensor, result, i < places);
        torch.release(tensor);
    }
    return failed;
}
