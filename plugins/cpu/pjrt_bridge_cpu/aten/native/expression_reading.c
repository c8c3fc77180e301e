/* What a program says of an expression. See expression.h. */

#include "expression.h"

/* Numbers of the attribute `reads` for an operand. */
enum { WAY = 2 + 2 * MOST_DIMS };

static int
read_buffer(const Buffers *buffers, int64_t index, const Buffer **found, char *message)
{
    if (buffers->types[index] != BUFFER ||
        !REACHES(buffers->buffers[index]->size, Buffer, dims))
        return fail(message, "an operand or a result is no array, or ends early");
    *found = buffers->buffers[index];
    const int type = (*found)->dtype;
    if (type != F32 && type != BF16 && type != PRED)
        return fail(message, "found element type %d, expected float32, bfloat16 or bool", type);
    return 0;
}

static bool
is_between(int64_t value, int64_t end)
{
    return value >= 0 && value < end;
}

/* Whether each step reads what an earlier one has computed, and none computes what it reads. */
static bool
are_possible(const Step *steps, int64_t count, int64_t operands, int64_t results, int64_t numbers)
{
    bool is_set[MOST_REGISTERS] = {false};
    for (int64_t index = 0; index < count; index++) {
        const Step *step = &steps[index];
        const int64_t operation = step->operation, sources[] = {step->a, step->b, step->c};
        const int64_t targets = operation == WRITE ? results : MOST_REGISTERS;
        if (!is_between(operation, OPERATIONS) || !is_between(step->to, targets) ||
            (operation == READ && !is_between(step->a, operands)) ||
            (operation == NUMBER && !is_between(step->a, numbers)) ||
            (has_number(operation) && !is_between(step->b, numbers)))
            return false;
        const int read = registers_read(operation);
        for (int i = 0; i < 3; i++) {
            /* What is not read is looked at all the same, and has to be a register. */
            const bool is_looked_at = !i || !has_number(operation);
            if (operation != READ && operation != NUMBER && is_looked_at &&
                !is_between(sources[i], MOST_REGISTERS))
                return false;
            if (i < read && (!is_set[sources[i]] ||
                             (operation != WRITE && sources[i] == step->to)))
                return false;
        }
        if (operation != WRITE)
            is_set[step->to] = true;
    }
    return true;
}

/* The elements of a block: as many periods as fit into one, or a part of what an operand has the
 * same number for. */
static int64_t
block_of(const Expression *expression, int64_t operands)
{
    int64_t block = BLOCK;
    for (int64_t index = 0; index < operands; index++) {
        const Operand *operand = &expression->operands[index];
        const int64_t run = operand->sizes[operand->dims - 1];
        if (is_repeated(operand) && operand->sizes[1] <= BLOCK)
            block = BLOCK / operand->sizes[1] * operand->sizes[1];
        else if (!operand->strides[operand->dims - 1] && run > BLOCK && block == BLOCK)
            for (int64_t size = BLOCK; size > BLOCK / 2 && run % block; size--)
                block = run % size ? BLOCK : size;
    }
    return block;
}

/* Divide the dimensions of tiles between an element and the one `step` behind it; false where that
 * is impossible. */
static bool
divide_dims(Tiles *tiles, int64_t step)
{
    int64_t inner = 1;
    for (int dim = tiles->dims - 1; dim >= 0 && step != inner; dim--) {
        const int64_t outer = inner * tiles->sizes[dim];
        if (step < outer) {
            if (step % inner || outer % step || tiles->dims == MOST_TILED_DIMS)
                return false;
            memmove(&tiles->sizes[dim + 1], &tiles->sizes[dim],
                    (size_t)(tiles->dims - dim) * sizeof *tiles->sizes);
            tiles->sizes[dim] = outer / step;
            tiles->sizes[dim + 1] = step / inner;
            tiles->dims++;
            return true;
        }
        inner = outer;
    }
    return true;
}

/* The strides of an operand along the dimensions of tiles, which its own are divided into. */
static void
stride_along(const Tiles *tiles, Operand *operand)
{
    int own = operand->dims - 1;
    int64_t within = 1;
    for (int dim = tiles->dims - 1; dim >= 0; dim--) {
        while (own > 0 && within == operand->sizes[own]) {
            own--;
            within = 1;
        }
        operand->tiled[dim] = operand->strides[own] * within;
        within *= tiles->sizes[dim];
    }
}

/* Tiles, where an operand is read along another dimension than the last one. */
static void
find_tiles(Expression *expression, int64_t operands)
{
    Tiles tiles = {.dims = 1, .row = -1, .sizes = {expression->size}};
    int64_t nearest = INT64_MAX;
    for (int64_t index = 0; index < operands; index++) {
        const Operand *operand = &expression->operands[index];
        int64_t step = 1;
        for (int dim = operand->dims - 1; dim > 0; dim--)
            if (!divide_dims(&tiles, step *= operand->sizes[dim]))
                return;
    }
    for (int64_t index = 0; index < operands; index++) {
        Operand *operand = &expression->operands[index];
        stride_along(&tiles, operand);
        const int64_t last = operand->tiled[tiles.dims - 1];
        for (int dim = 0; dim < tiles.dims - 1 && last > 1; dim++) {
            const int64_t stride = operand->tiled[dim];
            if (tiles.sizes[dim] > 1 && stride && stride < last && stride < nearest) {
                tiles.row = dim;
                nearest = stride;
            }
        }
    }
    if (tiles.row < 0)
        return;
    int64_t step = 1;
    for (int dim = tiles.dims - 1; dim >= 0; step *= tiles.sizes[dim--])
        tiles.steps[dim] = step;
    const int64_t rows = tiles.sizes[tiles.row], columns = tiles.sizes[tiles.dims - 1];
    const int64_t narrow = columns < TILE_SIDE ? columns : TILE_SIDE;
    tiles.rows = rows < TILE / narrow ? rows : TILE / narrow;
    tiles.columns = columns < TILE / tiles.rows ? columns : TILE / tiles.rows;
    expression->tiles = tiles;
}

/* How an operand is read; whether all that is read is in it. */
static bool
read_way(const int64_t *way, int64_t size, const Buffer *found, Operand *operand)
{
    const int64_t first = way[0], dims = way[1], elements = count_of(found);
    int64_t product = 1, last = first;
    if (dims < 1 || dims > MOST_DIMS || !is_between(first, elements))
        return false;
    *operand = (Operand){.type = found->dtype, .dims = (int)dims};
    for (int64_t dim = 0; dim < dims; dim++) {
        const int64_t length = way[2 + 2 * dim], stride = way[3 + 2 * dim];
        if (length < 1 || length > size || stride < 0 ||
            __builtin_mul_overflow(product, length, &product) || product > size)
            return false;
        int64_t reach;
        if (__builtin_mul_overflow(length - 1, stride, &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
        operand->sizes[dim] = length;
        operand->strides[dim] = stride;
    }
    operand->data = found->data + first * size_of_type(found->dtype);
    return product == size && last < elements;
}

/* The registers that a number is in from the first block on: no other step computes them. */
static void
find_numbers(Expression *expression)
{
    int64_t computed[MOST_REGISTERS] = {0};
    for (int64_t index = 0; index < expression->step_count; index++) {
        const Step *step = &expression->steps[index];
        if (step->operation != WRITE)
            computed[step->to]++;
    }
    for (int64_t index = 0; index < expression->step_count; index++) {
        const Step *step = &expression->steps[index];
        if (step->operation == NUMBER)
            expression->holds_number[step->to] = computed[step->to] == 1;
    }
}

int
read_expression(const Frame *frame, Expression *expression, int64_t size, char *message)
{
    const int64_t operands = frame->operands.count, results = frame->results.count;
    if (operands > MOST_OPERANDS || !is_between(results - 1, MOST_RESULTS))
        return fail(message, "expected at most %d operands, and 1 to %d results", MOST_OPERANDS,
                    MOST_RESULTS);
    int64_t read_count = 0, number_count = 0;
    const int64_t *reads = list_of(frame, "reads", S64, WAY, &read_count);
    const int64_t *vectors = array_of(frame, "vectors", S64, 1);
    expression->steps = list_of(frame, "steps", S64, 5, &expression->step_count);
    expression->numbers = list_of(frame, "numbers", F64, 1, &number_count);
    if (!expression->steps || (!reads && operands) || (!expression->numbers && number_count) ||
        read_count != operands || !vectors || !is_between(*vectors, AVX512 + 1) ||
        expression->step_count > MOST_STEPS ||
        !are_possible(expression->steps, expression->step_count, operands, results, number_count))
        return fail(message, "its attributes are not those that the bridge writes");
    const Buffer *found = NULL;
    for (int64_t index = 0; index < results; index++) {
        if (read_buffer(&frame->results, index, &found, message))
            return -1;
        if (index && size < 0 && count_of(found) != expression->size)
            return fail(message, "its results have different sizes");
        expression->size = size < 0 ? count_of(found) : size;
        expression->outputs[index] = (Output){found->data, found->dtype};
    }
    for (int64_t index = 0; index < operands && expression->size; index++) {
        if (read_buffer(&frame->operands, index, &found, message))
            return -1;
        if (!read_way(reads + WAY * index, expression->size, found, &expression->operands[index]))
            return fail(message, "operand %lld has %lld elements, which it is not read by",
                        (long long)index, (long long)count_of(found));
    }
    const Vectors widest = widest_vectors();
    expression->vectors = *vectors < (int64_t)widest ? (Vectors)*vectors : widest;
    expression->block = block_of(expression, operands);
    find_tiles(expression, operands);
    find_numbers(expression);
    return 0;
}
