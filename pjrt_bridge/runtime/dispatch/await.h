/* Waiting for an event of a plugin, so that Ctrl-C is seen. */

#ifndef PJRT_BRIDGE_AWAIT_H
#define PJRT_BRIDGE_AWAIT_H

#include "plan.h"

/* Wait for the end of what an event stands for, without the GIL, which is taken at times to look for
 * signals: `state` is what `enter_plugin` gave. False, with an exception, where a signal's handler
 * raised one; then the event is still to come. */
bool await_event(Plan *plan, void *event, PyThreadState **state);

#endif
