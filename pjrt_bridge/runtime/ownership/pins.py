"""Views of buffers' memory: they keep the buffer, and keep it from being donated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime.ownership.deferred import defer
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.runtime.ownership.process import process


class Pin:
    """The hold of a view on a buffer's memory: it keeps the buffer as long as this object lives.

    While it lives the plugin counts an external reference and does not donate the buffer.

    Attributes:
        made: the plugin was asked to count.

    Raises:
        Closed: the buffer was released before.
    """

    __slots__ = ("_handle", "_holder", "made")

    def __init__(self, buffer: Handle) -> None:
        self.made: Any = None
        self._holder = object()
        self._handle = buffer
        buffer.hold(self._holder)
        api = buffer.api
        api.call_for(self, "Buffer_IncreaseExternalReferenceCount", buffer=buffer.pointer)

    def __del__(self, defer: Callable[[Callable[[], None]], None] = defer) -> None:
        if hasattr(self, "_handle"):
            defer(self._end)

    def _end(self) -> None:
        handle = self._handle
        if self.made is not None and process.open and handle.api.usable:
            # At most once: what is counted too often is only not donated.
            self.made = None
            with suppress(PjrtError):
                handle.api.call("Buffer_DecreaseExternalReferenceCount", buffer=handle.pointer)
        handle.let_go(self._holder)
