"""Leases: a plugin object is kept as long as there are references to its lease."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pjrt_bridge.errors import Closed
from pjrt_bridge.runtime.ownership.deferred import defer
from pjrt_bridge.runtime.ownership.handles import Handle


class Lease:
    """Keeps a handle's object while it is referred to; the interpreter may exit nevertheless.

    The dispatcher takes references to it, for as long as its calls use the object.

    Raises:
        Closed: the object was released before.
    """

    __slots__ = ("_handle", "_holder")

    def __init__(self, handle: Handle) -> None:
        self._holder = object()
        self._handle = handle
        handle.hold(self._holder)

    def __del__(self, defer: Callable[[Callable[[], None]], None] = defer) -> None:
        if hasattr(self, "_handle"):
            defer(self._end)

    def _end(self) -> None:
        self._handle.let_go(self._holder)


def offer_lease(handle: Handle) -> None:
    """See to it that a handle has a `lease`, unless its object was released."""
    with suppress(Closed):
        if handle.lease is None:
            # Of two threads that come here at once one loses its lease, which ends then.
            handle.lease = Lease(handle)
        if handle.released:
            handle.lease = None
