"""PJRT_Event: the end of work that goes on after a call has returned.

One `Event` may stand behind several pointers, each of which its receiver destroys. The work knows
nothing of that: it ends its event once, with a failure or without.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference.caller_arguments import address
from pjrt_bridge_reference.slots import ERRORS, OBJECTS, Slots

SLOTS = Slots()

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Event:
    """Work that ends once.

    Attributes:
        failure: why it failed; None before its end, and where it went well.
    """

    def __init__(self) -> None:
        self.failure: Status | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Status | None], None]] = []

    @staticmethod
    def ended(failure: Status | None = None) -> Event:
        """An event of work that is over."""
        event = Event()
        event.end(failure)
        return event

    @property
    def ready(self) -> bool:
        """Whether the work has ended, well or not."""
        return self._ended.is_set()

    def end(self, failure: Status | None = None) -> None:
        """Say that the work has ended; what is said later does not count."""
        with self._lock:
            if self.ready:
                return
            # A Status that was raised holds frames, and with them buffers.
            self.failure = failure and Status(failure.code, failure.message)
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self.failure)

    def wait(self) -> Status | None:
        """Block until the end; the failure, or None."""
        self._ended.wait()
        return self.failure

    def on_end(self, callback: Callable[[Status | None], None]) -> None:
        """Call a function with the failure: at the end on the thread that worked, or at once."""
        with self._lock:
            if not self.ready:
                self._callbacks.append(callback)
                return
        callback(self.failure)

    def check(self) -> None:
        """Raise the failure."""
        if self.failure is not None:
            raise Status(self.failure.code, self.failure.message)


def when_all(events: Sequence[Event], action: Callable[[], None]) -> None:
    """Do something when all events have ended: at once, or on the thread that ends the last one.

    Nothing waits meanwhile. A worker that waited for an event could wait for work that is queued
    behind it.
    """
    left = len(events) + 1
    lock = threading.Lock()

    def one_ended(_: Status | None) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            action()

    for event in events:
        event.on_end(one_ended)
    one_ended(None)


@SLOTS.implements("Event_Destroy")
def _destroy(args: Any) -> None:
    # The work goes on, and callbacks that wait for it are called all the same.
    if args.event:
        OBJECTS.remove(args.event, Event)


@SLOTS.implements("Event_IsReady")
def _is_ready(args: Any) -> None:
    args.is_ready = OBJECTS.get(args.event, Event).ready


@SLOTS.implements("Event_Error")
def _error(args: Any) -> None:
    event = OBJECTS.get(args.event, Event)
    if not event.ready:
        raise Status(ErrorCode.FAILED_PRECONDITION, "PJRT_Event_Error: the event is not ready")
    event.check()


@SLOTS.implements("Event_Await")
def _await(args: Any) -> None:
    event = OBJECTS.get(args.event, Event)
    event.wait()
    event.check()


@SLOTS.implements("Event_OnReady")
def _on_ready(args: Any) -> None:
    event = OBJECTS.get(args.event, Event)
    function = _CALLBACK(address(args.callback, "callback"))
    user_arg = args.user_arg

    def call(failure: Status | None) -> None:
        # The callback owns the error.
        error = None if failure is None else ERRORS.new(failure.code, failure.message)
        function(error, user_arg)

    event.on_end(call)
