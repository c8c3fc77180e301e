"""Handle: owns one plugin object, and destroys it when nothing uses it any more.

A `Handle` owns one plugin object. It knows its parent (a buffer's client, say), and these rules
follow from that for any order of drops and any thread:

* its handle exists before the object: the plugin writes the pointer into memory of the handle;
* it is destroyed once, after its owner released it, when no call uses it (pins), no view and no
  lease keeps it (holders), and all its children are gone;
* finalizers only enqueue (see `runtime.ownership.deferred`).

An exception may come from outside at any moment, such as KeyboardInterrupt. So an object ends in
steps that do no harm when they are done again, and whatever stops them leaves them to the queue.
Python raises such exceptions where a function begins, after a call, and where a loop starts again;
between assignments there is nothing to fear. Every function may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import Closed, PjrtError, PluginIncompatible
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import defer, inbox, run_deferred
from pjrt_bridge.runtime.ownership.process import process

# None once the interpreter has cleared this module, which objects that torch holds outlive. It
# clears in this order, so nothing below is None before this is.
_there: bool | None = True

roots: set[Handle] = set()
"""Objects without a parent."""

# By kind the function that destroys an object, and the pointer's field in its args.
_DESTROY = {
    "Buffer": ("Buffer_Destroy", "buffer"),
    "Client": ("Client_Destroy", "client"),
    "Event": ("Event_Destroy", "event"),
    "Executable": ("Executable_Destroy", "executable"),
    "LoadedExecutable": ("LoadedExecutable_Destroy", "executable"),
    "TopologyDescription": ("TopologyDescription_Destroy", "topology"),
}

BUNDLE = "Bundle"
"""Kind of a handle that is no plugin object of its own."""


class Handle:
    """One plugin object that the bridge owns, or is about to own.

    As a context manager it releases the object where the block fails.

    Args:
        api: the table that the object belongs to.
        kind: API object name, `Buffer`, `LoadedExecutable`, ...; its `<kind>_Destroy` ends it.
        parent: what has to outlive this object.
        made: where the plugin is about to write the pointer; None: into the args struct of a call.
        out: the index in `made`, an array, or the field of the args struct; None: it is named as
            that of the function that destroys the object.

    Attributes:
        pointer: the plugin's pointer; 0 until there is one.
        owned: its parent knows of it.
        children: what has to end before this object; None where there was nothing yet.
        gone: the plugin's object ended.
        released: its owner gave it up; it ends with the last pin, holder and child.
        refused: the plugin would not destroy it.
        keeps: what the plugin's object uses, kept until it was destroyed.
        lease: see `runtime.ownership.leases`; None if none was asked for, and again when the
            object was released.
        made: memory of a call that makes the object, or destroys it (see `Api.call_for`).
    """

    __slots__ = (
        "_ending",
        "_holders",
        "_out",
        "_pins",
        "api",
        "children",
        "gone",
        "keeps",
        "kind",
        "lease",
        "made",
        "owned",
        "parent",
        "pointer",
        "refused",
        "released",
    )

    def __init__(
        self,
        api: Api,
        kind: str,
        parent: Handle | None,
        *,
        made: Any = None,
        out: str | int | None = None,
    ) -> None:
        self.api = api
        self.kind = kind
        self.parent = parent
        self.pointer: int = 0
        # `_ending`: a thread is ending the object.
        self.owned = self.gone = self.released = self.refused = self._ending = False
        self.keeps: object = None
        self.lease: object = None
        self.made = made
        self.children: set[Handle] | None = None
        self._out = out
        self._pins = 0
        self._holders: set[object] | None = None

    def make(self, function: str, **values: Any) -> None:
        """Call the function of the plugin that makes the object, and own it.

        Args:
            function: as for `Api.call`.
            **values: as for `Api.call`.

        Raises:
            PjrtError: the plugin refused.
            PluginIncompatible: it returned NULL.
        """
        self.api.call_for(self, function, **values)
        self.own()

    def own(self, pointer: int | None = None) -> None:
        """Take over what a call made, or the object at a pointer.

        Raises:
            PluginIncompatible: there is none, but a NULL.
        """
        if pointer:
            self.pointer, self.made = pointer, None
        elif not self.find():
            raise PluginIncompatible(
                f"plugin {self.api.plugin!r} returned no {self.kind}, but a NULL"
            )
        parent = self.parent
        if parent is None:
            roots.add(self)
        else:
            if parent.children is None:
                with process.lock:
                    parent.children = parent.children or set()
            parent.children.add(self)
            if parent.released:
                # Another thread closed the parent while this object was made.
                self.released = True
        self.owned = True
        if self.released and not self._holders:
            self._end()

    def own_for(self, holder: object) -> None:
        """`own` an object without an owner, for as long as a holder keeps it."""
        self._holders = {holder}
        self.released = True
        self.own()

    def find(self) -> bool:
        """Look where the plugin writes the pointer; whether there is one."""
        made, out = self.made, self._out
        if not self.pointer and made is not None:
            if isinstance(out, int):
                pointer = made[out]
            else:
                pointer = getattr(made, out or _DESTROY[self.kind][1])
            self.pointer = pointer or 0
            self.made = None
        return self.pointer != 0

    @property
    def ended(self) -> bool:
        """Whether the plugin's object was destroyed, or a thread is destroying it."""
        return self._ending or self.gone

    def pin(self) -> None:
        """Keep the object from being destroyed until `unpin`, for the length of a call.

        Raises:
            Closed: it was released before.
        """
        if pin_all((self,)) is not None:
            raise Closed(f"this {self.kind} was closed")

    def unpin(self) -> None:
        """Undo one `pin`; does nothing once the interpreter has cleared this module."""
        if _there:
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

    def hold(self, holder: object) -> None:
        """Keep the object from being destroyed until `let_go` of the same holder.

        Raises:
            Closed: it was released before.
        """
        with process.lock:
            released = self.released
            if not released:
                self._add(holder)
        if released:
            raise Closed(f"this {self.kind} was closed")

    def let_go(self, holder: object) -> None:
        """Undo `hold`; later calls do nothing."""
        with process.lock:
            if self._holders:
                self._holders.discard(holder)
        if self.released:
            self._end()

    def held_by(self, holder: object) -> bool:
        """Whether `hold` was called for a holder, and `let_go` not yet."""
        return self._holders is not None and holder in self._holders

    def _add(self, holder: object) -> None:
        if self._holders is None:
            self._holders = set()
        self._holders.add(holder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.release()

    def release(self) -> None:
        """Give up ownership, children first; later calls do nothing.

        Nor does it do anything once the interpreter has cleared this module.
        """
        if _there:
            self.finish()
            run_deferred()

    def finish(self) -> None:
        """`release`, without draining the queues."""
        try:
            if not self.owned:
                self.find()
            # A child that is not found here is about to find that this is released.
            self.released = True
            self.lease = None
            if self.children:
                for child in tuple(self.children):
                    child.finish()
            self._end()
        except BaseException:
            inbox.append(self.finish)
            raise

    def _end(self) -> None:
        """End the object, if nothing keeps it any more; and its parent, if that waited for it."""
        parent = self.parent
        mine = False
        try:
            if not self.gone:
                with process.lock:
                    kept = self._pins or self._holders or self.children
                    if kept or self._ending or not (self.released and self.pointer):
                        return
                    self._ending = mine = True
                # A forked child has none of the plugin's threads, and at exit they may be gone.
                if process.open and self.api.usable:
                    self._destroy()
                if parent is None:
                    roots.discard(self)
                elif parent.children is not None:
                    parent.children.discard(self)
                self.gone, self.keeps = True, None
            if parent is not None and parent.released:
                parent._end()
        except BaseException:
            if mine:
                self._ending = False
            inbox.append(self._end)
            raise

    def _destroy(self) -> None:
        """End the plugin's object, if that was not begun before."""
        if self.made is None and not self.refused:
            function, field = _DESTROY[self.kind]
            try:
                self.api.call_for(self, function, **{field: self.pointer})
            except PjrtError:
                # The plugin keeps the object. That cannot be raised: this may run in a finalizer
                # or in a call that has nothing to do with it.
                self.refused = True


def owned() -> Iterator[Handle]:
    """Every object that was not destroyed."""
    found = list(roots)
    for handle in found:
        # One step, so others may add to them meanwhile.
        found.extend(tuple(handle.children or ()))
    return iter(found)


def pin_all(handles: Sequence[Handle]) -> Handle | None:
    """Pin all of them, or none and return the first that was released before.

    Raises:
        SystemExit: the interpreter exits, on another thread. What a daemon thread begins now would
            go on while the plugin is unloaded; this ends the thread without a message.
        PjrtBridgeError: a plugin called this thread back.
    """
    if callbacks.threads:
        callbacks.check()
    if process.closer is not None and process.closed_to_this_thread():
        raise SystemExit
    left = iter(handles)
    try:
        with process.lock:
            for handle in handles:
                if handle.released:
                    return handle
            for handle in left:
                handle._pins += 1
    except BaseException:
        unpin_all(handles[: len(handles) - len(list(left))])
        raise
    return None


def pin_where(wanted: Callable[[Handle], bool]) -> list[Handle]:
    """Pin objects that were not destroyed, whether they were released or not.

    Args:
        wanted: which of them; this must take no lock.
    """
    with process.lock:
        found = [one for one in owned() if one.api.usable and not one.ended and wanted(one)]
        for handle in found:
            handle._pins += 1
    return found


def unpin_all(handles: Sequence[Handle]) -> None:
    """Undo one pin of each."""
    left: Iterable[Handle] = handles
    ended: list[Handle] = []
    try:
        left = iter(handles)
        with process.lock:
            for handle in left:
                handle._pins -= 1
                if handle.released:
                    ended.append(handle)
        for handle in ended:
            handle._end()
    except BaseException:
        inbox.append(partial(_unpin_rest, list(left), handles))
        raise
    run_deferred()


def _unpin_rest(rest: list[Handle], handles: Sequence[Handle]) -> None:
    with process.lock:
        while rest:
            rest[-1]._pins -= 1
            rest.pop()
    for handle in handles:
        if handle.released:
            handle._end()


def release_soon(handle: Handle | None) -> None:
    """Release, in a finalizer, the handle of an object; None if it had none yet.

    A finalizer takes this function as the default of a parameter: at the interpreter's exit objects
    outlive the names in their modules, but not the defaults of their methods.
    """
    # `_there` first: what this function knows may be cleared by then.
    if _there and handle is not None and not handle.released:
        defer(handle.finish)


Finalizer = Callable[[Handle | None], None]
"""Type of `release_soon`."""
