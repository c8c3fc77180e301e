/* A custom call that gives a tensor of divisors as it is, and fails where one is zero. */

#ifndef PJRT_BRIDGE_CPU_DIVISORS_H
#define PJRT_BRIDGE_CPU_DIVISORS_H

#include "xla.h"

/* Operand and result: integers or bool, of one shape. Attribute: `where`, what the message begins
 * with. */
Error *check_divisors(Frame *frame);

#endif
