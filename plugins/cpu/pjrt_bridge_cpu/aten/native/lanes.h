/* Vectors of 16 floats, which processors with shorter ones divide. */

#ifndef PJRT_BRIDGE_CPU_LANES_H
#define PJRT_BRIDGE_CPU_LANES_H

#include <stdint.h>

enum { LANES = 16 };

typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef Lanes LanesAt __attribute__((aligned(1), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef Words WordsAt __attribute__((aligned(1), may_alias));
#define AT(where) (*(LanesAt *)(where))

#endif
