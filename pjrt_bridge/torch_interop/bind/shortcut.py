"""The way from Dynamo's code into the dispatcher, past everything between.

Of a graph that is one program, takes the user's tensors as they come and gives new ones, nothing in
AOTAutograd's wrapper and in the bridge's own bookkeeping changes what a call gives. Once such a
call went well, the next ones take the shortcut. Whatever is not as it was goes the long way: a
parameter in other memory, a value that has to be rearranged, somebody who watches, a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime.dispatch import native
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.handles import left_behind, tidy
from pjrt_bridge.torch_interop.bind.paths import Dispatched

_QUIET = (timeline.observers, callbacks.threads, *left_behind)
"""While all of these are empty, a call is nobody's business but the dispatcher's."""


class Shortcut:
    """Calls of one program that go as the call before.

    The first of them look whether arguments stay where they are; those are kept as parameters are.

    Args:
        path: how the program starts.
        result_bytes: of all results together.
    """

    __slots__ = (
        "__weakref__",
        "_addresses",
        "_entrance",
        "_kept",
        "_looks",
        "_path",
        "_result_bytes",
    )

    def __init__(self, path: Dispatched, result_bytes: int) -> None:
        self._path = path
        self._result_bytes = result_bytes
        self._kept: Any = None
        self._looks = True
        self._addresses: Mapping[int, int] | None = None
        self._entrance: Any = None

    def open(self) -> None:
        """A call went the long way, and well.

        Values that had to be rearranged may hold other numbers than their memory does (PyTorch
        negates lazily), which the shortcut does not look at.
        """
        if self._path.kept is not None and not self._path.rearranged:
            self._kept = self._path.kept.parts
        self._update(taken=False)

    def close(self) -> None:
        """The next call goes the long way."""
        self._kept = None
        self._update()

    def _update(self, *, taken: bool | None = None) -> None:
        if self._entrance is not None:
            self._entrance.kept = None if self._looks else self._kept
            if taken is not None:
                self._entrance.taken = taken

    def last(self) -> Call | None:
        """The last call, if it came this way."""
        if self._entrance is None or not self._entrance.taken:
            return None
        call = Call(1)
        shared, copied = self._path.plan.crossed
        call.crossed(0, shared + self._path.staying_bytes + self._result_bytes, shared=True)
        call.crossed(0, copied, shared=False)
        return call

    def before(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo's code calls: the shortcut, and where it is closed the long way."""
        plan = self._path.plan

        def attentive(*values: Any) -> Any:
            kept = self._kept
            if kept is not None and not timeline.observers and not callbacks.threads:
                tidy()
                try:
                    results = plan.call(values, kept)
                except DEVICE_FAILURES:
                    results = None
                if results is None:
                    return refused(*values)
                self._entrance.taken = True
                if self._looks:
                    self._look(values)
                return results
            return otherwise(*values)

        def refused(*values: Any) -> Any:
            # Nothing was written: the long way meets a failure again, and knows what to do.
            self.close()
            return otherwise(*values)

        assert native.module is not None
        self._entrance = native.module.Entrance(plan, _QUIET, DEVICE_FAILURES, attentive, refused)
        self._update()
        return self._entrance  # type: ignore[no-any-return]

    def _look(self, values: Sequence[Any]) -> None:
        """Find out, in two calls, which arguments stay."""
        before, self._addresses = self._addresses, self._path.addresses(values)
        if before is None:
            return
        self._looks = False
        staying = dict(before.items() & self._addresses.items())
        if staying:
            self._path.keep_too(staying, values)
            self.open()
        self._update()
