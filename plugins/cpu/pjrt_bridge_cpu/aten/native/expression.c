/* See expression.h. */

#include "expression.h"

#include "divide.h"
#include "expression_steps.h"

#include <stdlib.h>
#include <string.h>

static const char NAME[] = "An elementwise expression";

_Static_assert((int)TILE <= (int)BLOCK, "a tile has more elements than registers have");

/* Steps times elements that are worth waking a thread: from 5 to 10 us. */
enum { WORTH_A_THREAD = 1 << 17 };

/* -- the blocks ------------------------------------------------------------------------------ */

#define BLOCKS(TARGET, NAME)                                                                       \
    TARGET static const float *NAME(const Expression *expression, Workspace *work,                 \
                                    const Tile *block)                                             \
    {                                                                                              \
        return run_block(expression, work, block);                                                 \
    }

BLOCKS(FOR_PORTABLE, run_portable)
BLOCKS(FOR_AVX2, run_avx2)
BLOCKS(FOR_AVX512, run_avx512)

RunBlock *
block_function(const Expression *expression)
{
    static RunBlock *const functions[] = {run_portable, run_avx2, run_avx512};
    return functions[expression->vectors];
}

void
clear_workspace(Workspace *work)
{
    for (int64_t index = 0; index < MOST_OPERANDS; index++)
        work->phase[index] = -1;
    memset(work->is_filled, 0, sizeof work->is_filled);
}

static int
run_range(const void *data, int64_t begin, int64_t end, char *message)
{
    const Expression *expression = data;
    RunBlock *run = block_function(expression);
    Workspace *work = aligned_alloc(_Alignof(Workspace), sizeof *work);
    if (!work)
        return fail(message, "no memory is left");
    clear_workspace(work);
    for (int64_t index = begin; index < end; index++) {
        const int64_t first = index * expression->block, left = expression->size - first;
        const int64_t count = left < expression->block ? left : expression->block;
        const Tile block = expression->tiles.dims
                               ? tile_at(&expression->tiles, index)
                               : (Tile){.first = first, .rows = 1, .columns = count};
        run(expression, work, &block);
    }
    free(work);
    return 0;
}

/* -- the call -------------------------------------------------------------------------------- */

Error *
compute_expression(Frame *frame)
{
    Error *answer;
    if (asks_for_version(frame, NAME, &answer))
        return answer;
    char message[MESSAGE] = "";
    Expression expression = {0};
    if (check_caller(frame, message) || read_expression(frame, &expression, -1, message))
        return refuse(frame, INVALID_ARGUMENT, NAME, message);
    if (!expression.size)
        return NULL;
    const int64_t blocks = expression.tiles.dims
                               ? count_tiles(&expression.tiles)
                               : (expression.size + expression.block - 1) / expression.block;
    const int64_t work = expression.block * (expression.step_count + 1);
    const Division division = {run_range, &expression, blocks, WORTH_A_THREAD / work + 1, 1};
    if (divide(frame, &division, message))
        return refuse(frame, INTERNAL, NAME, message);
    return NULL;
}
