/* Tiles of a result: rows and columns of which an operand is read along the columns.
 *
 * Elements of a transposed array that are neighbours in the result are far from each other in
 * memory. A tile has so many rows that what is read of one place of memory is used at once.
 */

#ifndef PJRT_BRIDGE_CPU_TILES_H
#define PJRT_BRIDGE_CPU_TILES_H

#include "vectors.h"

#include <stdbool.h>

/* Dimensions of a result that the ways to read all operands have in common, at most; rows and
 * columns of a tile where there are as many of both; elements. */
enum { MOST_TILED_DIMS = 16, TILE_SIDE = 32, TILE = TILE_SIDE * TILE_SIDE };

/* The dimensions of a result, outermost first, and how they are divided. The last dimension gives
 * the columns. */
typedef struct {
    int dims; /* 0: there are no tiles. */
    int row;  /* The dimension of the rows. */
    int64_t sizes[MOST_TILED_DIMS], steps[MOST_TILED_DIMS];
    int64_t rows, columns; /* Of a tile that is not at an end. */
} Tiles;

/* One tile, its place and its first element. */
typedef struct {
    int64_t at[MOST_TILED_DIMS];
    int64_t first, rows, columns, to_next_row;
} Tile;

/* Whether a tile's elements lie side by side in the result. */
INLINE bool
is_run(const Tile *tile)
{
    return tile->rows == 1 || tile->to_next_row == tile->columns;
}

/* Four numbers of each of four places, `far` numbers from each other, turned. */
INLINE void
turn_four(float *to, const float *from, int64_t far, int64_t width)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TURNED_IN_REGISTERS
    typedef float Four __attribute__((vector_size(16)));
    Four a, b, c, d;
    memcpy(&a, from, sizeof a);
    memcpy(&b, from + far, sizeof b);
    memcpy(&c, from + 2 * far, sizeof c);
    memcpy(&d, from + 3 * far, sizeof d);
    const Four low_a = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Four high_a = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Four low_c = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Four high_c = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const Four turned[] = {__builtin_shufflevector(low_a, low_c, 0, 1, 4, 5),
                           __builtin_shufflevector(low_a, low_c, 2, 3, 6, 7),
                           __builtin_shufflevector(high_a, high_c, 0, 1, 4, 5),
                           __builtin_shufflevector(high_a, high_c, 2, 3, 6, 7)};
    for (int64_t row = 0; row < 4; row++)
        memcpy(to + row * width, &turned[row], sizeof turned[row]);
#endif
#endif
#ifndef TURNED_IN_REGISTERS
    for (int64_t column = 0; column < 4; column++)
        for (int64_t row = 0; row < 4; row++)
            to[row * width + column] = from[column * far + row];
#endif
}

/* Some columns of `rows` that lie side by side, beside others. */
INLINE void
turn_few(float *to, const float *from, int64_t far, int64_t rows, int64_t columns, int64_t width)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            to[row * width + column] = from[column * far + row];
}

/* Rows and columns of numbers that lie column by column, with `far` from one to the next. */
INLINE void
turn(float *to, const float *from, int64_t far, int64_t rows, int64_t columns)
{
    const int64_t whole = rows & ~(int64_t)3, last = columns & ~(int64_t)3;
    for (int64_t column = 0; column < last; column += 4)
        for (int64_t row = 0; row < whole; row += 4)
            turn_four(to + row * columns + column, from + column * far + row, far, columns);
    for (int64_t row = whole; row < rows; row++)
        for (int64_t column = 0; column < last; column++)
            to[row * columns + column] = from[column * far + row];
    to += last;
    from += last * far;
    /* The compiler makes no loop where it knows the number of columns. */
    if (columns - last == 1)
        turn_few(to, from, far, rows, 1, columns);
    else if (columns - last == 2)
        turn_few(to, from, far, rows, 2, columns);
    else if (columns - last == 3)
        turn_few(to, from, far, rows, 3, columns);
}

/* How a dimension is divided: tiles along it. */
INLINE int64_t
tiles_along(const Tiles *tiles, int dim)
{
    const int64_t size = tiles->sizes[dim];
    if (dim == tiles->dims - 1)
        return (size + tiles->columns - 1) / tiles->columns;
    return dim == tiles->row ? (size + tiles->rows - 1) / tiles->rows : size;
}

INLINE int64_t
count_tiles(const Tiles *tiles)
{
    int64_t count = 1;
    for (int dim = 0; dim < tiles->dims; dim++)
        count *= tiles_along(tiles, dim);
    return count;
}

/* The tile of an index. */
INLINE Tile
tile_at(const Tiles *tiles, int64_t index)
{
    const int last = tiles->dims - 1, row = tiles->row;
    Tile tile = {.to_next_row = tiles->steps[row]};
    for (int dim = last; dim >= 0; dim--) {
        const int64_t along = tiles_along(tiles, dim);
        const int64_t wide = dim == last ? tiles->columns : dim == row ? tiles->rows : 1;
        tile.at[dim] = index % along * wide;
        tile.first += tile.at[dim] * tiles->steps[dim];
        index /= along;
    }
    const int64_t rows = tiles->sizes[row] - tile.at[row];
    const int64_t columns = tiles->sizes[last] - tile.at[last];
    tile.rows = rows < tiles->rows ? rows : tiles->rows;
    tile.columns = columns < tiles->columns ? columns : tiles->columns;
    return tile;
}

#endif
