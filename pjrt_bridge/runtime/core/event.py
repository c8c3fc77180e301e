"""Event: the end of an asynchronous operation of a plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Self

from pjrt_bridge.runtime.ownership.handles import Finalizer, Handle, release_soon
from pjrt_bridge.runtime.ownership.kinds import require_kind
from pjrt_bridge.runtime.ownership.waiting import await_event, keep_event
from pjrt_bridge.wrong_arguments import require


class Event:
    """The completion of an asynchronous operation, successful or not.

    Wait with `wait()`, ask with `ready`, or `await` it inside asyncio; a failed operation raises
    its `PjrtError` from `wait` and `await`, as often as it is asked.

    Args:
        handle: the plugin's object, which is taken over.
    """

    def __init__(self, handle: Handle) -> None:
        require_kind(handle, ("Event",), "Event: handle")
        self._handle = handle

    @classmethod
    def make(cls, parent: Handle, function: str, **values: Any) -> Self:
        """The event that a function of the plugin gives.

        Args:
            parent: what the event ends with.
            function: as for `Api.call`; its args struct has a field `event`.
            **values: as for `Api.call`.

        Raises:
            ArgumentError: an argument of a wrong kind.
            PjrtError: the plugin refused.
            PluginIncompatible: it returned NULL.
        """
        require(parent, Handle, "Event.make: parent")
        require(function, str, "Event.make: function")
        with Handle(parent.api, "Event", parent) as handle:
            handle.make(function, **values)
            return cls(handle)

    @property
    def ready(self) -> bool:
        """Whether the operation has ended, well or not.

        Raises:
            Closed: the event or its client was closed.
        """
        handle = self._handle
        handle.pin()
        try:
            return bool(handle.api.call("Event_IsReady", event=handle.pointer).is_ready)
        finally:
            handle.unpin()

    def wait(self) -> None:
        """Block until the operation has ended; other Python threads go on.

        Raises:
            PjrtError: the operation failed.
            Closed: the event or its client was closed.
        """
        handle = self._handle
        handle.pin()
        try:
            await_event(handle.api, handle.pointer)
        finally:
            handle.unpin()

    def __await__(self) -> Generator[Any, None, None]:
        # A worker thread waits: a callback on a plugin's thread could enter Python after exit.
        yield from asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()

    def outlive(self) -> None:
        """Keep the plugin's event until the operation has ended, even if this object is dropped."""
        keep_event(self._handle)

    def close(self) -> None:
        """Forget the event; the operation goes on."""
        self._handle.release()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "_handle", None))
