"""Ownership of plugin objects: who may destroy what, and when.

A `Handle` owns one plugin object. It knows its parent (a buffer's client, say), and three rules
follow from that for any order of drops and any thread:

* a plugin object is destroyed once, after its owner released it, when no call and no view uses it
  (pins) and all its children are gone;
* finalizers only enqueue; the queue is worked off outside every lock of this module, at once where
  that is safe and at the next operation where it is not;
* what a plugin has not done with yet (see `runtime.ownership.pending`) is kept until it has, and
  the interpreter waits for it before it exits: the libraries of plugins come down with the process,
  under the threads that still run in them.

Every function here may be called from any thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import Closed, PjrtError, PluginIncompatible
from pjrt_bridge.runtime.dispatch import native
from pjrt_bridge.runtime.ownership import callbacks, pending

BUNDLE = "Bundle"
"""Kind of a handle that is no plugin object of its own."""

# Whether plugins may be called. None once the interpreter has cleared this module, which objects
# that torch holds outlive. It clears in this order, so nothing below is None before this is.
_open: bool | None = True
# Not re-entrant on purpose: a finalizer that a garbage collection starts inside a locked region
# finds the lock taken and leaves its work in the inbox (see `defer`).
_lock = threading.Lock()
_draining = threading.Lock()
_live: Counter[str] = Counter()
_inbox: deque[Callable[[], None]] = deque()
_roots: set[Handle] = set()
# Thread that runs the exit handlers; operations of others end with their thread from then on.
_closer: int | None = None


class Handle:
    """One plugin object that the bridge owns.

    Args:
        api: the table that the object belongs to.
        kind: API object name, `Buffer`, `LoadedExecutable`, ...; its `<kind>_Destroy` ends it.
        pointer: the plugin's pointer.
        parent: what has to outlive this object.
        argument: name of the pointer's field in the args of the destroy function.
        pinned: start with one pin, for a creator that goes on using the pointer: from here on
            another thread may close the parent, and this object with it.

    Attributes:
        released: its owner gave it up; it ends with the last pin, the last child and the lease.
        lease: keeps the object until the last reference to it is dropped; None if nobody asked for
            one, and again when the object was released.
        running: of a buffer; the execution or copy that it comes from may still be under way.

    Raises:
        PluginIncompatible: the plugin returned NULL.
    """

    __slots__ = (
        "_argument",
        "_children",
        "_dead",
        "_leased",
        "_loan",
        "_pins",
        "api",
        "kind",
        "lease",
        "parent",
        "pointer",
        "released",
        "running",
    )

    def __init__(
        self,
        api: Api,
        kind: str,
        pointer: int | None,
        parent: Handle | None,
        *,
        argument: str,
        pinned: bool = False,
    ) -> None:
        if not pointer:
            raise PluginIncompatible(f"plugin {api.plugin!r} returned no {kind}, but a NULL")
        self.api = api
        self.kind = kind
        self.pointer: int = pointer
        self.parent = parent
        self.released = False
        self.running = False
        self._argument = argument
        self._pins = 1 if pinned else 0
        self._children: set[Handle] | None = None
        self._dead = False
        self.lease: Lease | None = None
        self._leased = False
        self._loan: tuple[int | None, object] | None = None
        with _lock:
            _live[kind] += 1
            if parent is None:
                _roots.add(self)
            else:
                if parent._children is None:
                    parent._children = set()
                parent._children.add(self)
                # Another thread closed the parent while this object was made.
                self.released = parent.released
            ended = self._ended()
        if ended:
            self._destroy()
        tidy()

    def pin(self) -> None:
        """Keep the object from being destroyed until `unpin`, for a call or for a view.

        Raises:
            Closed: it was released before.
        """
        if pin_all((self,)) is not None:
            raise Closed(f"this {self.kind} was closed")

    def unpin(self) -> None:
        """Undo one `pin`; does nothing once the interpreter has cleared this module."""
        if _open is not None:
            unpin_all((self,))

    @contextmanager
    def held(self) -> Iterator[int]:
        """Pin the object during a `with` block, and give its pointer.

        Raises:
            Closed: it was released before.
        """
        self.pin()
        try:
            yield self.pointer
        finally:
            self.unpin()

    def offer_lease(self) -> None:
        """See to it that there is a `lease`, unless the object was released."""
        with _lock:
            if not (self._leased or self.released):
                self._leased = True
                self.lease = Lease(self)

    def end_lease(self) -> None:
        """Note that nobody holds the lease any more."""
        with _lock:
            self._leased = False
            ended = self._ended()
        if ended:
            self._destroy()

    def release(self) -> None:
        """Give up ownership, children first; later calls do nothing.

        Nor does it do anything once the interpreter has cleared this module.
        """
        if _open is None:
            return
        with _lock:
            if self.released:
                return
            self.released = True
            children = tuple(self._children or ())
            ended = self._ended()
        # Its finalizer takes the lock.
        self.lease = None
        for child in children:
            child.release()
        if ended:
            self._destroy()
        tidy()

    def lend(self, memory: object, done: int | None) -> None:
        """Keep the host memory that a buffer was made over until its plugin is done with it.

        Args:
            memory: any object that owns it.
            done: PJRT_Event that says so, some time after the buffer's end; taken over.
        """
        self._loan = done, memory

    def watch(self) -> None:
        """See to it that the execution that ends with this buffer is waited for at exit."""
        self.running = False
        # What failed has ended, too.
        with suppress(PjrtError):
            self.outlive(self.api.call("Buffer_ReadyEvent", buffer=self.pointer).event)

    def wait(self, event: int | None, memory: object = None) -> None:
        """Wait for an event of this object, which is taken over.

        Where the plugin cannot wait, `memory` is kept until it is done with it nevertheless. The
        caller pins the object.

        Raises:
            PjrtError: the operation failed.
            PluginIncompatible: there is no event, but a NULL, so nobody knows when it ends.
        """
        if not event:
            raise PluginIncompatible(f"plugin {self.api.plugin!r} returned no Event, but a NULL")
        try:
            self.api.call("Event_Await", event=event)
        finally:
            self.outlive(event, memory)

    def outlive(self, event: int | None, memory: object = None) -> None:
        """Keep `memory` until the plugin signals an event, which is taken over."""
        if not event:
            return
        if pending.is_ready(self.api, event):
            pending.destroy(self.api, event)
            return
        done = Handle(self.api, "Event", event, self.parent, argument="event", pinned=True)
        # Nobody owns it: it ends with its pin.
        done.released = True
        keep_until(done, memory)

    def _ended(self) -> bool:
        """Whether this moment ends the object; true once. Needs the lock."""
        if self._dead or not self.released or self._pins or self._children or self._leased:
            return False
        self._dead = True
        return True

    def _destroy(self) -> None:
        # A forked child has none of the plugin's threads, and at exit they may be gone.
        if _open and self.api.usable:
            if self.running:
                self.watch()
            # A plugin that refuses keeps the object, and there is nobody to tell: this may run in
            # a finalizer or in the middle of a call that has nothing to do with it.
            try:
                self._give_back()
            except PjrtError:
                if self._loan is not None:
                    pending.give_up(self.api, *self._loan)
            else:
                if self._loan is not None:
                    self.outlive(*self._loan)
        self._loan = None
        with _lock:
            _live[self.kind] -= 1
            parent = self.parent
            if parent is None:
                _roots.discard(self)
                return
            assert parent._children is not None
            parent._children.discard(self)
            ended = parent._ended()
        if ended:
            parent._destroy()

    def _give_back(self) -> None:
        """End the plugin's object."""
        self.api.call(f"{self.kind}_Destroy", **{self._argument: self.pointer})


def keep_until(done: Handle, memory: object = None) -> None:
    """Keep an event, whose pin is taken over, and `memory` until the plugin signals the event."""
    pending.queue.append(pending.Pending(done, memory))


def pin_all(handles: Sequence[Handle]) -> Handle | None:
    """Pin all of them, or none and return the first that was released before.

    Raises:
        SystemExit: the interpreter exits, on another thread. What a daemon thread begins now would
            go on while the plugin is taken down; this ends the thread without a word.
        PjrtBridgeError: a plugin called this thread back.
    """
    if callbacks.threads:
        callbacks.check()
    if _closer is not None and _closer != threading.get_ident():
        raise SystemExit
    with _lock:
        for handle in handles:
            if handle.released:
                return handle
        for handle in handles:
            handle._pins += 1
    return None


def unpin_all(handles: Sequence[Handle]) -> None:
    """Undo one pin of each."""
    with _lock:
        for handle in handles:
            handle._pins -= 1
        ended = [handle for handle in handles if handle.released and handle._ended()]
    for handle in ended:
        handle._destroy()
    tidy()


def defer(action: Callable[[], None], *, later: bool = False) -> None:
    """Do `action` soon: for finalizers, which must not wait for locks.

    This thread may be inside a locked region of this module, where the garbage collector called
    it; only then, or when another thread is, the action waits for the next operation. With `later`
    it waits anyway, for threads that a plugin calls back on.
    """
    if _open:
        _inbox.append(action)
        if not (later or _lock.locked()):
            drain()


def release_soon(handle: Handle | None) -> None:
    """What a finalizer does about the handle that its object had, if it came so far.

    A finalizer takes this function as the default of a parameter: at the interpreter's exit objects
    outlive the names in their modules, but not the defaults of their methods.
    """
    # `_open` first: what this function knows may be cleared by then.
    if _open and handle is not None and not handle.released:
        defer(handle.release)


class Lease:
    """Keeps a handle's object while anybody holds this; the interpreter may exit nevertheless."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __del__(self, defer: Callable[[Callable[[], None]], None] = defer) -> None:
        defer(self._handle.end_lease)


class Pin:
    """A pin that ends with this object: what a view of a buffer's memory holds on to.

    While it lives the plugin counts an external reference and does not donate the buffer.

    Raises:
        Closed: the buffer was released before.
    """

    __slots__ = ("_handle",)

    def __init__(self, buffer: Handle) -> None:
        buffer.pin()
        try:
            buffer.api.call("Buffer_IncreaseExternalReferenceCount", buffer=buffer.pointer)
        except BaseException:
            buffer.unpin()
            raise
        self._handle = buffer

    def __del__(self, defer: Callable[[Callable[[], None]], None] = defer) -> None:
        if hasattr(self, "_handle"):
            defer(self._end)

    def _end(self) -> None:
        handle = self._handle
        if _open and handle.api.usable:
            with suppress(PjrtError):
                handle.api.call("Buffer_DecreaseExternalReferenceCount", buffer=handle.pointer)
        handle.unpin()


def plugins_are_there() -> bool:
    """Whether plugins may be called: not once the interpreter is past its exit handlers."""
    return bool(_open)


Finalizer = Callable[[Handle | None], None]
"""Type of `release_soon`."""


def live() -> dict[str, int]:
    """Number of plugin objects that the bridge owns at this moment, by kind; zeros left out.

    Works off the queue first, so the numbers are exact when no other thread is inside a call and
    no execution is under way.
    """
    drain(patient=True)
    with _lock:
        found = _live.copy()
    del found[BUNDLE]
    if native.module is not None:
        buffers, events = native.module.live()
        found.update(Buffer=buffers, Event=events)
    return {kind: count for kind, count in found.items() if count}


left_behind: tuple[Sized, ...] = (_inbox, pending.queue)
"""What `tidy` is there for: there is something to do where one of these is not empty."""


def tidy() -> None:
    """Do what was left behind, if there is anything; for whatever makes or ends plugin objects."""
    if _inbox or pending.queue:
        drain()


def drain(*, patient: bool = False) -> None:
    """Do what finalizers left behind, and give back host memory that plugins are done with.

    Args:
        patient: ask for every loan; else stop at the first that is not over.
    """
    if callbacks.inside():
        return
    while _open and _draining.acquire(blocking=False):
        try:
            while _inbox:
                _inbox.popleft()()
            if pending.queue:
                pending.settle(patient=patient)
        finally:
            _draining.release()
        # Something may have come in between the last look and the release of the lock.
        if not _inbox:
            return


def _stop() -> None:
    """Wait for what plugins do, before their libraries come down with the process.

    A program that runs would go on in memory that is unmapped. Whoever waits too long can interrupt
    this with Ctrl-C, as any other wait.
    """
    global _closer, _open
    _closer = threading.get_ident()
    if native.module is not None:
        native.module.close()
    while _busy():
        time.sleep(0.001)
    _open = False
    if native.module is not None:
        native.module.end()


def _busy() -> bool:
    """Whether another thread is inside a call, or an execution is under way."""
    drain(patient=True)
    with _lock:
        roots = [root for root in _roots if root.api.usable]
        alive = [*roots, *(child for root in roots for child in root._children or ())]
        inside = any(handle._pins and handle.kind in _CALLED for handle in alive)
        running = [handle for handle in alive if handle.running and not handle._dead]
    for handle in running:
        handle.watch()
    if native.module is not None and native.module.busy():
        return True
    return inside or bool(pending.queue)


def _start_again_in_child() -> None:
    # Another thread of the parent may have held them at the moment of the fork.
    global _lock, _draining
    _lock = threading.Lock()
    _draining = threading.Lock()
    if native.module is not None:
        native.module.forked()


_CALLED = ("Client", "LoadedExecutable", "TopologyDescription")
atexit.register(_stop)
os.register_at_fork(after_in_child=_start_again_in_child)
