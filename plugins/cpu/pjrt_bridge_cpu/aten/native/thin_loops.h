/* The loops of a product of few rows, for vectors of one width. thin.c includes this for each.
 *
 * Before that it defines LANES, the floats of a vector; COLUMNS(rows), how many columns of
 * transposed weights are read together, for which registers suffice; NAME(x), the name of a
 * function; and TARGET, its attributes.
 *
 * Weights are read as vectors of words of 32 bits, in steps of LANES words. A word has one float32,
 * two bfloat16 or four int8, and the elements of one place in all words are a part of the step:
 * no shuffle is needed to make a vector of floats of them. Copies of x and sums are in the order of
 * steps, parts and words, too.
 *
 * With PAIRS_ALONE there are loops only for the type PAIRS: bfloat16 on both sides, of transposed
 * weights, whose words the processor multiplies as they are. Its ADD_PAIRS(total, x, words) does.
 */

#define INLINE static inline __attribute__((always_inline)) TARGET
#define STEP(type) (LANES * 4 / SIZE(type))

typedef float NAME(Floats) __attribute__((vector_size(LANES * 4)));
typedef uint32_t NAME(Words) __attribute__((vector_size(LANES * 4)));
typedef int32_t NAME(Integers) __attribute__((vector_size(LANES * 4)));
/* The same anywhere in memory: compilers copy 64 bytes in two halves, also into a register. */
typedef NAME(Floats) NAME(FloatsAt) __attribute__((aligned(1), may_alias));
typedef NAME(Words) NAME(WordsAt) __attribute__((aligned(1), may_alias));
#define FLOATS(where) (*(NAME(FloatsAt) *)(where))
#define WORDS(where) (*(const NAME(WordsAt) *)(where))

INLINE void
NAME(read_part)(int type, NAME(Words) words, int part, NAME(Floats) * floats)
{
    if (type == PAIRS)
        *floats = (NAME(Floats))words;
    else if (type == S8)
        *floats = __builtin_convertvector((NAME(Integers))(words << (24 - 8 * part)) >> 24,
                                          NAME(Floats));
    else if (type == BF16)
        *floats = (NAME(Floats))(part ? words & 0xffff0000u : words << 16);
    else
        *floats = (NAME(Floats))words;
}

/* Where an element of a step is in the order of parts and words. */
INLINE int64_t
NAME(place)(int type, int64_t element)
{
    return element % PARTS(type) * LANES + element / PARTS(type);
}

INLINE void
NAME(add_product)(int type, NAME(Floats) * total, NAME(Floats) x, NAME(Floats) floats)
{
#ifdef PAIRS_ALONE
    if (type == PAIRS)
        *total = ADD_PAIRS(*total, x, floats);
#else
    (void)type;
    *total += x * floats;
#endif
}

/* A vector folded to four elements of the same sum. */
INLINE Quad
NAME(folded)(NAME(Floats) all)
{
    Quad quads[LANES / 4];
    memcpy(quads, &all, sizeof quads);
    for (int i = LANES / 8; i; i /= 2)
        for (int j = 0; j < i; j++)
            quads[j] += quads[j + i];
    return quads[0];
}

/* -- transposed weights: a row of them for each column of the result ------------------------- */

/* Copy rows of x: part by part, and in each row by row. Behind the end are zeros. */
INLINE void
NAME(copy_parts)(int type, const Thin *thin, int64_t row, int64_t count, int64_t rows, float *copy)
{
    memset(copy, 0, (size_t)(rows * padded(thin->inner)) * sizeof *copy);
    for (int64_t r = 0; r < count; r++)
        for (int64_t first = 0; first < thin->inner; first += STEP(type))
            for (int64_t i = 0; i < STEP(type) && first + i < thin->inner; i++) {
                int64_t place = NAME(place)(type, i), part = first / LANES + place / LANES;
                copy[(part * rows + r) * LANES + place % LANES] =
                    float_at(thin->x, thin->x_type, (row + r) * thin->inner + first + i);
            }
}

/* Copy rows of x: word by word of two elements, step by step, and in each row by row. */
INLINE void
NAME(copy_words)(const Thin *thin, int64_t row, int64_t count, int64_t rows, float *copy)
{
    const int64_t step = STEP(PAIRS), inner = thin->inner;
    memset(copy, 0, (size_t)(rows * padded(inner)) * sizeof *copy);
    for (int64_t r = 0; r < count; r++)
        for (int64_t first = 0; first < inner; first += step)
            memcpy(copy + (first / step * rows + r) * LANES,
                   thin->x + ((row + r) * inner + first) * SIZE(PAIRS),
                   (size_t)((inner - first < step ? inner - first : step) * SIZE(PAIRS)));
}

/* Add products of columns and rows, both of constant number, to sums[MOST_AT_ONCE * column + row]:
 * of the elements of steps from `step` to `end`, of which the last may be no whole one. */
INLINE void
NAME(dots)(int type, int rows, int columns, const Thin *thin, const char *weights,
           const float *copy, int64_t step, int64_t end, float *sums)
{
    const int64_t stride = thin->stride, ahead = columns * stride;
    const int64_t whole = thin->inner / STEP(type);
    const size_t rest = (size_t)(thin->inner % STEP(type) * SIZE(type));
    NAME(Floats) totals[MOST_AT_ONCE * 4], floats[4], x = {0};
    NAME(Words) words[4];
    char last[LANES * 4] = {0};
#define CLEAR(r) totals[4 * r] = totals[4 * r + 1] = totals[4 * r + 2] = totals[4 * r + 3] = x;
    EACH_ROW(MOST_AT_ONCE, CLEAR)
#undef CLEAR
    for (; step < end; step++) {
#define READ(c)                                                                            \
    {                                                                                      \
        const char *from = weights + c * stride + step * LANES * 4;                        \
        if (__builtin_expect(step == whole, 0)) {                                          \
            memcpy(last, from, rest);                                                      \
            from = last;                                                                   \
        } else {                                                                           \
            __builtin_prefetch(from + ahead);                                              \
        }                                                                                  \
        words[c] = WORDS(from);                                                            \
    }
        EACH_COLUMN(columns, READ)
#undef READ
#define CONVERT(c, p) NAME(read_part)(type, words[c], p, &floats[c]);
#define ADD(c, r) NAME(add_product)(type, &totals[4 * r + c], x, floats[c]);
#define ROW(r, p)                                                                          \
    x = FLOATS(copy + ((step * PARTS(type) + p) * rows + r) * LANES);                      \
    EACH_COLUMN(columns, ADD, r)
#define PART(p) EACH_COLUMN(columns, CONVERT, p) EACH_ROW(rows, ROW, p)
        EACH_PART(PARTS(type), PART)
#undef PART
#undef ROW
#undef ADD
#undef CONVERT
    }
    /* Of four rows, or of the columns of one. */
    Quad quads[4] = {{0}}, found;
#define FOLD_ROWS(c, first)                                                                \
    quads[0] = NAME(folded)(totals[4 * first + c]);                                        \
    quads[1] = NAME(folded)(totals[4 * (first + 1) + c]);                                  \
    quads[2] = NAME(folded)(totals[4 * (first + 2) + c]);                                  \
    quads[3] = NAME(folded)(totals[4 * (first + 3) + c]);                                  \
    sum_four(quads, &found);                                                               \
    for (int i = 0; i < 4; i++)                                                            \
        sums[MOST_AT_ONCE * c + first + i] += found[i];
#define FOLD(c, r) quads[c] = NAME(folded)(totals[4 * r + c]);
#define FOLD_COLUMNS(r)                                                                    \
    EACH_COLUMN(columns, FOLD, r)                                                          \
    sum_four(quads, &found);                                                               \
    for (int i = 0; i < columns; i++)                                                      \
        sums[MOST_AT_ONCE * i + r] += found[i];
    if (rows < 4) {
        EACH_ROW(rows, FOLD_COLUMNS)
    } else {
        EACH_COLUMN(columns, FOLD_ROWS, 0)
    }
    if (rows > 4) {
        EACH_COLUMN(columns, FOLD_ROWS, 4)
    }
#undef FOLD_COLUMNS
#undef FOLD
#undef FOLD_ROWS
}

/* Up to UNIT columns by rows of x, as much of these at a time as stays in the first cache. */
INLINE void
NAME(columns_by_rows)(int type, int rows, const Thin *thin, int64_t batch, int64_t row,
                      int64_t count, int64_t begin, int64_t end, const float *copy)
{
    const int64_t stride = thin->stride, together = COLUMNS(rows);
    const int64_t steps = (thin->inner + STEP(type) - 1) / STEP(type);
    const int64_t most = X_CACHED / (rows * PARTS(type) * LANES * (int64_t)sizeof *copy);
    const char *weights = thin->weights + (batch * thin->columns + begin) * stride;
    float sums[UNIT * MOST_AT_ONCE] = {0};
    for (int64_t step = 0, to; step < steps; step = to) {
        to = steps - step < most ? steps : step + most;
        int64_t column = 0;
        for (; column + together <= end - begin; column += together)
            NAME(dots)(type, rows, COLUMNS(rows), thin, weights + column * stride, copy, step, to,
                       sums + column * MOST_AT_ONCE);
        for (; column < end - begin; column++)
            NAME(dots)(type, rows, 1, thin, weights + column * stride, copy, step, to,
                       sums + column * MOST_AT_ONCE);
    }
    for (int64_t r = 0; r < count; r++)
        put(thin, batch * thin->rows + row + r, begin, sums + r, MOST_AT_ONCE, end - begin);
}

INLINE void
NAME(multiply_transposed)(int type, const Thin *thin, int64_t batch, int64_t begin, int64_t end)
{
    for (int64_t from = begin; from < end; from += UNIT) {
        const int64_t to = end - from < UNIT ? end : from + UNIT;
        for (int64_t row = 0, rows; row < thin->rows; row += rows) {
            const float *copy = copy_of(thin, batch, row);
            const int64_t left = thin->rows - row;
            rows = rows_at_once(left);
            const int64_t count = rows < left ? rows : left;
#define CODE(n) NAME(columns_by_rows)(type, n, thin, batch, row, count, from, to, copy);
            FOR_ROWS(rows, CODE)
#undef CODE
        }
    }
}

/* -- weights in the order of the product: a row of them for each element of the inner dimension - */

/* Copy rows of x: element by element, and for each row by row. */
INLINE void
NAME(copy_elements)(const Thin *thin, int64_t row, int64_t count, int64_t rows, float *copy)
{
    for (int64_t i = 0; i < thin->inner; i++)
        for (int64_t r = 0; r < rows; r++)
            copy[i * rows + r] =
                r < count ? float_at(thin->x, thin->x_type, (row + r) * thin->inner + i) : 0;
}

/* Add rows of weights, times their elements of x, to the sums of a step of columns. */
INLINE void
NAME(add)(int type, int rows, int depth, const char *weights, int64_t stride, const float *copy,
          float *sums)
{
    NAME(Floats) totals[MOST_AT_ONCE], floats;
    NAME(Words) words;
#define LOAD(r, p) totals[r] = FLOATS(sums + r * WIDTH + p * LANES);
#define KEEP(r, p) FLOATS(sums + r * WIDTH + p * LANES) = totals[r];
#define ADD(r, i) totals[r] += floats * copy[i * rows + r];
#define ELEMENT(i, p)                                                                      \
    words = WORDS(weights + i * stride);                                                   \
    if (!p)                                                                                \
        __builtin_prefetch(weights + (i + depth) * stride);                                \
    NAME(read_part)(type, words, p, &floats);                                              \
    EACH_ROW(rows, ADD, i)
#define PART(p) EACH_ROW(rows, LOAD, p) EACH_ELEMENT(depth, ELEMENT, p) EACH_ROW(rows, KEEP, p)
    EACH_PART(PARTS(type), PART)
#undef PART
#undef ELEMENT
#undef ADD
#undef KEEP
#undef LOAD
}

/* The same for up to WIDTH columns: the last of them may be no whole step. */
INLINE void
NAME(add_columns)(int type, int rows, int depth, const char *weights, int64_t stride,
                  int64_t columns, const float *copy, float *sums)
{
    const int64_t size = SIZE(type), rest = columns % STEP(type);
    int64_t column = 0;
    for (; column + STEP(type) <= columns; column += STEP(type))
        NAME(add)(type, rows, depth, weights + column * size, stride, copy, sums + column);
    for (int i = 0; rest && i < depth; i++) {
        char last[LANES * 4] = {0};
        memcpy(last, weights + i * stride + column * size, (size_t)(rest * size));
        NAME(add)(type, rows, 1, last, 0, copy + i * rows, sums + column);
    }
}

INLINE void
NAME(multiply)(int type, const Thin *thin, int64_t batch, int64_t begin, int64_t end)
{
    const int64_t size = SIZE(type), stride = thin->stride;
    const char *weights = thin->weights + batch * thin->inner * stride;
    _Alignas(LINE) float sums[MOST_ROWS * WIDTH];
    for (int64_t column = begin; column < end; column += WIDTH) {
        const int64_t width = end - column < WIDTH ? end - column : WIDTH;
        const int64_t filled = (width + STEP(type) - 1) / STEP(type) * STEP(type);
        for (int64_t r = 0; r < (thin->rows > MOST_AT_ONCE ? MOST_ROWS : MOST_AT_ONCE); r++)
            memset(sums + r * WIDTH, 0, (size_t)filled * sizeof *sums);
        for (int64_t i = 0, depth; i < thin->inner; i += depth) {
            const char *from = weights + i * stride + column * size;
            depth = thin->inner - i < DEPTH ? 1 : DEPTH;
            for (int64_t row = 0, rows; row < thin->rows; row += rows) {
                rows = rows_at_once(thin->rows - row);
                const float *copy = copy_of(thin, batch, row) + i * rows;
                float *to = sums + row * WIDTH;
#define CODE(n)                                                                            \
    if (depth == DEPTH)                                                                    \
        NAME(add_columns)(type, n, DEPTH, from, stride, width, copy, to);                  \
    else                                                                                   \
        NAME(add_columns)(type, n, 1, from, stride, width, copy, to);
                FOR_ROWS(rows, CODE)
#undef CODE
            }
        }
        for (int64_t r = 0; r < thin->rows; r++) {
            const int64_t to = batch * thin->rows + r;
            const float *from = sums + r * WIDTH;
            if (PARTS(type) == 1)
                put(thin, to, column, from, 1, width);
            for (int64_t c = 0; PARTS(type) > 1 && c < width; c++)
                put(thin, to, column + c,
                    from + c / STEP(type) * STEP(type) + NAME(place)(type, c % STEP(type)), 1, 1);
        }
    }
}

/* -- both ------------------------------------------------------------------------------------ */

/* Copy x as the loops read it. */
TARGET static void
NAME(copy)(const Thin *thin)
{
#ifdef PAIRS_ALONE
#define COPY_PARTS(type) NAME(copy_words)(thin, first, count, rows, copy);
#else
#define COPY_PARTS(type) NAME(copy_parts)(type, thin, first, count, rows, copy);
#endif
    for (int64_t batch = 0; batch < thin->batches; batch++)
        for (int64_t row = 0, rows; row < thin->rows; row += rows) {
            const int64_t left = thin->rows - row, first = batch * thin->rows + row;
            rows = rows_at_once(left);
            const int64_t count = rows < left ? rows : left;
            float *copy = copy_of(thin, batch, row);
            if (!thin->is_transposed)
                NAME(copy_elements)(thin, first, count, rows, copy);
            else if (thin->weight_type == BF16)
                COPY_PARTS(BF16)
            else if (thin->weight_type == S8)
                COPY_PARTS(S8)
            else
                COPY_PARTS(F32)
        }
#undef COPY_PARTS
}

/* Columns of one batch. */
TARGET static void
NAME(run)(const Thin *thin, int64_t batch, int64_t begin, int64_t end)
{
#ifdef PAIRS_ALONE
    NAME(multiply_transposed)(PAIRS, thin, batch, begin, end);
#else
#define CODE(type)                                                                         \
    if (thin->weight_type == type && thin->is_transposed)                                  \
        NAME(multiply_transposed)(type, thin, batch, begin, end);                          \
    else if (thin->weight_type == type)                                                    \
        NAME(multiply)(type, thin, batch, begin, end);
    CODE(BF16)
    CODE(S8)
    CODE(F32)
#undef CODE
#endif
}

#ifdef PAIRS_ALONE
#undef PAIRS_ALONE
#undef ADD_PAIRS
#endif
#undef FLOATS
#undef WORDS
#undef STEP
#undef INLINE
#undef LANES
#undef COLUMNS
#undef NAME
#undef TARGET
