"""Deferred actions: of finalizers, and of operations that were interrupted.

Finalizers run at any moment, also inside a locked region, where the garbage collector called them.
So they only enqueue. The queue is drained outside every lock, at once where that is safe and at
the next operation where it is not.

An exception may come from outside at any moment, such as KeyboardInterrupt. So an action stays in
the queue until it has returned, and has to be one that does no harm when it is done again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sized

from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.ownership import callbacks, pending
from pjrt_bridge.runtime.ownership.process import process

# None once the interpreter has cleared this module, which objects that torch holds outlive. It
# clears in this order, so nothing below is None before this is.
_there: bool | None = True
# The first thread in line drains. Each step is one call of C, so an exception from outside cannot
# come between them.
_line: list[object] = []

inbox: deque[Callable[[], None]] = deque()
"""Actions that wait, oldest first. Only `drain` takes something out."""

deferred_queues: tuple[Sized, ...] = (inbox, pending.queue)
"""The queues that `drain` works on: there is something to do where one is not empty."""


def defer(action: Callable[[], None], *, later: bool = False) -> None:
    """Do `action` soon: for finalizers, which must not wait for locks.

    This thread may be inside a locked region of this folder, where the garbage collector called
    it; only then, or when another thread is, the action waits for the next operation. With `later`
    it waits anyway, for threads that a plugin calls back on.

    Args:
        action: does nothing more when it is done again.
        later: leave it to the next operation.
    """
    if _there and process.open:
        inbox.append(action)
        if not (later or process.lock.locked()):
            drain()


def run_deferred() -> None:
    """Run deferred actions, if there are any; called where plugin objects are made or ended."""
    if inbox or pending.queue:
        drain()


def drain(*, patient: bool = False) -> None:
    """Run deferred actions, and give back host memory that plugins are done with.

    Does nothing where another thread, or this one further up the stack, drains, or where another
    thread ends the process.

    Args:
        patient: ask for every loan; else stop at the first that is not over.
    """
    if (callbacks.threads and callbacks.inside()) or (
        process.closer is not None and process.closed_to_this_thread()
    ):
        return
    while process.open:
        me = object()
        try:
            _line.append(me)
            if _line[0] is not me:
                return
            while inbox:
                inbox[0]()
                inbox.popleft()
            if pending.queue:
                pending.end_finished(patient=patient)
            if native.module is not None:
                native.module.settle()
        finally:
            _line.remove(me)
        # Something may have come in between the last look and leaving the line.
        if not inbox:
            return


def _start_again_in_child() -> None:
    # Another thread of the parent may have been in line at the moment of the fork.
    _line.clear()


os.register_at_fork(after_in_child=_start_again_in_child)
