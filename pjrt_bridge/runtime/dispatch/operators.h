/* Operators: calls of a framework's operators on a device, led to their shortcuts. */

#ifndef PJRT_BRIDGE_OPERATORS_H
#define PJRT_BRIDGE_OPERATORS_H

#include "process.h"

extern PyType_Spec operators_spec;

#endif
