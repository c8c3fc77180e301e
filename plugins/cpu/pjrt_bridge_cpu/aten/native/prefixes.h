/* Running combinations of elements that lie side by side, within vectors.
 *
 * A vector is combined with itself, shifted by one, two and four lanes: then each lane has all up
 * to it. The order is another one than that of the elements.
 */

#ifndef PJRT_BRIDGE_CPU_PREFIXES_H
#define PJRT_BRIDGE_CPU_PREFIXES_H

#include "vectors.h"

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && __has_builtin(__builtin_convertvector)
#define HAS_PREFIXES 1
#endif
#endif
#ifndef HAS_PREFIXES
#define HAS_PREFIXES 0
#endif

#if HAS_PREFIXES
enum { WIDTH = 8 };

typedef uint16_t Halves8 __attribute__((vector_size(2 * WIDTH)));
typedef float Singles8 __attribute__((vector_size(4 * WIDTH)));
typedef double Reals8 __attribute__((vector_size(8 * WIDTH)));
typedef uint32_t Words8 __attribute__((vector_size(4 * WIDTH)));
typedef uint64_t Longs8 __attribute__((vector_size(8 * WIDTH)));

/* Macros: a function that gives a vector has another convention for each kind of vectors. */
#define SAME_OF(v) (v)
#define REALS_OF(v) __builtin_convertvector(v, Reals8)
#define SINGLES_OF(v) __builtin_convertvector(v, Singles8)
#define SINGLES_OF_HALVES(v) ((Singles8)(__builtin_convertvector(v, Words8) << 16))
/* As `to_bfloat16`: all ones take the place of a NaN. */
#define HALVES_OF(v)                                                                               \
    __builtin_convertvector(                                                                       \
        (((Words8)(v) + 0x7fff + ((Words8)(v) >> 16 & 1)) >> 16) | (Words8)((v) != (v)), Halves8)

/* For vectors of elements and of what is held, an operator and what changes nothing by it. Gives
 * what is held behind the last whole vector; *done is how many elements there are up to there. */
#define PREFIXES(NAME, TYPE, GIVEN, HELD, VECTOR, OPERATOR, NONE, LOAD, STORE)                     \
    INLINE HELD NAME##_prefixes(const TYPE *x, TYPE *result, int64_t count, bool is_backward,      \
                                HELD total, int64_t *done)                                         \
    {                                                                                              \
        const VECTOR none = (VECTOR){0} + NONE;                                                    \
        VECTOR before = none;                                                                      \
        int64_t i = 0;                                                                             \
        for (int lane = 0; lane < WIDTH; lane++)                                                   \
            before[lane] = total;                                                                  \
        for (; i + WIDTH <= count; i += WIDTH) {                                                   \
            const int64_t at = is_backward ? 1 - WIDTH - i : i;                                    \
            GIVEN elements;                                                                        \
            memcpy(&elements, x + at, sizeof elements);                                            \
            VECTOR v = LOAD(elements);                                                             \
            if (is_backward)                                                                       \
                v = __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0);                         \
            v = v OPERATOR __builtin_shufflevector(v, none, 8, 0, 1, 2, 3, 4, 5, 6);               \
            v = v OPERATOR __builtin_shufflevector(v, none, 8, 8, 0, 1, 2, 3, 4, 5);               \
            v = v OPERATOR __builtin_shufflevector(v, none, 8, 8, 8, 8, 0, 1, 2, 3);               \
            const VECTOR last = __builtin_shufflevector(v, v, 7, 7, 7, 7, 7, 7, 7, 7);             \
            v = before OPERATOR v;                                                                 \
            before = before OPERATOR last;                                                         \
            if (is_backward)                                                                       \
                v = __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0);                         \
            elements = STORE(v);                                                                   \
            memcpy(result + at, &elements, sizeof elements);                                       \
        }                                                                                          \
        *done = i;                                                                                 \
        return before[0];                                                                          \
    }
#endif

/* In the place of prefixes where there are none. */
#define NO_PREFIXES(x, result, count, is_backward, total, done)                         \
    ((void)(result), *(done) = 0, total)

#endif
