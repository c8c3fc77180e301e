/* Entrance: what a framework calls where one program is all.
 *
 * It is a plan's `call` as long as there is nothing to be seen to, and Python functions that know
 * what to do otherwise.
 */

#ifndef PJRT_BRIDGE_ENTRANCE_H
#define PJRT_BRIDGE_ENTRANCE_H

#include "process.h"

extern PyType_Spec entrance_spec;

#endif
