"""Ownership of plugin objects: who may destroy what, and when.

A `Handle` owns one plugin object. It knows its parent (a buffer's client, say), and three rules
follow from that for any order of drops and any thread:

* a plugin object is destroyed once, after its owner released it, when no call and no view uses it
  (pins) and all its children are gone;
* finalizers only enqueue; the queue is worked off outside every lock of this module, at once where
  that is safe and at the next operation where it is not;
* host memory that a plugin reads in place (a loan) outlives the plugin's use of it, as the plugin's
  own `done_with_host_buffer` event says.

Every function here may be called from any thread.
"""

from __future__ import annotations

import atexit
import threading
from collections import Counter, deque
from collections.abc import Callable

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import Closed, PjrtError

# Not re-entrant on purpose: a finalizer that a garbage collection starts inside a locked region
# finds the lock taken and leaves its work in the inbox (see `defer`).
_lock = threading.Lock()
_draining = threading.Lock()
_live: Counter[str] = Counter()
_inbox: deque[Callable[[], None]] = deque()
_loans: deque[_Loan] = deque()
_exiting = False


class Handle:
    """One plugin object that the bridge owns.

    Args:
        api: the table that the object belongs to.
        kind: API object name, `Buffer`, `LoadedExecutable`, ...; its `<kind>_Destroy` ends it.
        pointer: the plugin's pointer.
        parent: what has to outlive this object.
        argument: name of the pointer's field in the args of the destroy function.
    """

    __slots__ = (
        "_argument",
        "_children",
        "_dead",
        "_pins",
        "api",
        "kind",
        "parent",
        "pointer",
        "released",
    )

    def __init__(
        self, api: Api, kind: str, pointer: int, parent: Handle | None, *, argument: str
    ) -> None:
        self.api = api
        self.kind = kind
        self.pointer = pointer
        self.parent = parent
        self.released = False
        self._argument = argument
        self._pins = 0
        self._children: set[Handle] = set()
        self._dead = False
        with _lock:
            _live[kind] += 1
            if parent is not None:
                parent._children.add(self)
        drain()

    def pin(self) -> None:
        """Keep the object from being destroyed until `unpin`, for a call or for a view.

        Raises:
            Closed: it was released before.
        """
        with _lock:
            if self.released:
                raise Closed(f"this {self.kind} was closed")
            self._pins += 1

    def unpin(self) -> None:
        """Undo one `pin`."""
        with _lock:
            self._pins -= 1
            ended = self._ended()
        if ended:
            self._destroy()

    def release(self) -> None:
        """Give up ownership, children first; later calls do nothing."""
        with _lock:
            if self.released:
                return
            self.released = True
            children = tuple(self._children)
            ended = self._ended()
        for child in children:
            child.release()
        if ended:
            self._destroy()
        drain()

    def _ended(self) -> bool:
        """Whether this moment ends the object; true once. Needs the lock."""
        if self._dead or not self.released or self._pins or self._children:
            return False
        self._dead = True
        return True

    def _destroy(self) -> None:
        # A forked child has none of the plugin's threads, and at exit they may be gone.
        if self.api.usable and not _exiting:
            self.api.call(f"{self.kind}_Destroy", **{self._argument: self.pointer})
        with _lock:
            _live[self.kind] -= 1
            parent = self.parent
            if parent is None:
                return
            parent._children.discard(self)
            ended = parent._ended()
        if ended:
            parent._destroy()


class Pin:
    """A pin that ends with this object: what a view of a buffer's memory holds on to.

    While it lives the plugin counts an external reference and does not donate the buffer.
    """

    __slots__ = ("_handle",)

    def __init__(self, buffer: Handle) -> None:
        buffer.pin()
        buffer.api.call("Buffer_IncreaseExternalReferenceCount", buffer=buffer.pointer)
        self._handle = buffer

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            defer(self._end)

    def _end(self) -> None:
        handle = self._handle
        if handle.api.usable and not _exiting:
            handle.api.call("Buffer_DecreaseExternalReferenceCount", buffer=handle.pointer)
        handle.unpin()


class _Loan:
    """Host memory that a plugin may still read, and the event that says when it is done."""

    __slots__ = ("event", "memory")

    def __init__(self, event: Handle, memory: object) -> None:
        # Pinned: closing the client releases the event, but the loan still has to ask it.
        event.pin()
        self.event = event
        self.memory = memory

    def over(self) -> bool:
        if not self.event.api.usable:
            return False
        try:
            return bool(self.event.api.call("Event_IsReady", event=self.event.pointer).is_ready)
        except PjrtError:
            return True


def lend(event: Handle, memory: object) -> None:
    """Keep `memory` alive until the plugin signals `event`; takes over the event."""
    _loans.append(_Loan(event, memory))


def defer(action: Callable[[], None]) -> None:
    """Do `action` soon: for finalizers, which must not take locks or call plugins themselves."""
    _inbox.append(action)
    if _lock.acquire(blocking=False):
        _lock.release()
        drain()


def live() -> dict[str, int]:
    """Number of plugin objects that the bridge owns at this moment, by kind; zeros left out.

    Works off the queue first, so the numbers are exact when no other thread is inside a call.
    """
    drain()
    with _lock:
        return {kind: count for kind, count in _live.items() if count}


def drain() -> None:
    """Do what finalizers left behind, and give back host memory that plugins are done with."""
    while not _exiting and _draining.acquire(blocking=False):
        try:
            while _inbox:
                _inbox.popleft()()
            _settle_loans()
        finally:
            _draining.release()
        # Something may have come in between the last look and the release of the lock.
        if not _inbox:
            return


def _settle_loans() -> None:
    for _ in range(len(_loans)):
        loan = _loans.popleft()
        if loan.over():
            loan.event.release()
            loan.event.unpin()
        else:
            _loans.append(loan)


def _stop() -> None:
    global _exiting
    drain()
    _exiting = True


atexit.register(_stop)
