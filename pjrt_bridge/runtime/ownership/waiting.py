"""Events that no call waits for, kept until they are signalled with the memory that is in use."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.deferred import inbox
from pjrt_bridge.runtime.ownership.handles import Handle

# The holder of what is in the queue. There is one, so an event may be queued twice.
_QUEUE = object()


_SPIN = 200e-6
"""Seconds of polling without sleep: to sleep and to wake takes tens of microseconds."""

_LONGEST_STEP = 5e-3
"""Seconds between two questions about an event, at most."""


class Completion:
    """The event of something that a plugin does, which most often has ended when it is asked for.

    Attributes:
        made: args struct of the call that gives the event, or destroys it (see `Api.call_for`).
        event: PJRT_Event, 0 for NULL; None: it is in the field `event` of `made`, if anywhere.
        handle: owns it, once it has to be kept.
    """

    made: Any = None
    event: int | None = None
    handle: Handle | None = None


class _Awaited:
    """An event in the queue, and what has to live until it comes."""

    __slots__ = ("_handle", "_memory")

    def __init__(self, handle: Handle, memory: object) -> None:
        self._handle = handle
        self._memory = memory

    def over(self) -> bool:
        """Whether the plugin is done, or cannot be asked: its threads stayed behind in a fork."""
        handle = self._handle
        return (
            not handle.held_by(_QUEUE)
            or not handle.api.usable
            or is_ready(handle.api, handle.pointer)
        )

    def end(self) -> None:
        """Let go of the event; the memory goes with this object."""
        self._handle.let_go(_QUEUE)


def await_event(api: Api, event: int) -> None:
    """Wait for an event; a thread in this function does not count as one that is in a plugin.

    In the main thread signals are seen, Ctrl-C among them: Python handles them between two of its
    instructions, to which a thread that waits within a plugin does not come. So this thread asks
    again and again, at intervals of a sixteenth of the time for which it has waited.

    Raises:
        PjrtError: the operation failed.
    """
    if threading.current_thread() is threading.main_thread():
        begun = time.monotonic()
        while not is_ready(api, event):
            waited = time.monotonic() - begun
            time.sleep(0 if waited < _SPIN else min(waited / 16, _LONGEST_STEP))
    api.call("Event_Await", event=event)


def is_ready(api: Api, event: int) -> bool:
    """Whether an event was signalled, or the plugin cannot tell."""
    try:
        return bool(api.call("Event_IsReady", event=event).is_ready)
    except PjrtError:
        return True


def keep_until(done: Completion, parent: Handle, memory: object = None) -> None:
    """Keep `memory` until the plugin signals an event, if there is one.

    Args:
        done: the event, which is taken over.
        parent: what has to outlive it.
        memory: any object that owns it; None where only the end of the work matters.
    """
    try:
        if done.event is None and done.made is not None:
            done.event, done.made = done.made.event or 0, None
        if not done.event:
            return
        if done.handle is None:
            # Nothing is asked of an event that an interrupted call may have destroyed.
            if done.made is not None or is_ready(parent.api, done.event):
                discard(done, parent.api)
                return
            handle = Handle(parent.api, "Event", parent)
            handle.pointer = done.event
            done.handle = handle
        if not done.handle.owned:
            done.handle.own_for(_QUEUE)
        if done.handle.held_by(_QUEUE):
            pending.queue.append(_Awaited(done.handle, memory))
    except BaseException:
        inbox.append(partial(keep_until, done, parent, memory))
        raise


def discard(done: Completion, api: Api) -> None:
    """Destroy an event, if that was not begun before."""
    if done.event is None and done.made is not None:
        done.event, done.made = done.made.event, None
    if done.made is None and done.event:
        try:
            api.call_for(done, "Event_Destroy", event=done.event)
            done.event = 0
        except PjrtError:
            done.event = 0


def keep_event(event: Handle) -> None:
    """Keep an event until the plugin signals it, also when it is released.

    Raises:
        Closed: it was released before.
    """
    event.hold(_QUEUE)
    pending.queue.append(_Awaited(event, None))
