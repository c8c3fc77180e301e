"""The way from the user's tensors into the dispatcher, past everything between.

Of a function that is one program, called with nothing but tensors, TensorFlow's binding of
arguments and the bridge's own bookkeeping change nothing. Once such a call went well, the next ones
take the shortcut; tensors of other shapes, tapes, somebody who watches and failures go the long
way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.paths import Dispatched
from pjrt_bridge.tf_interop.segments import Variant


class Shortcut:
    """Calls of one program that go as the call before.

    Args:
        variant: the program, whose path is `Dispatched`.
        takes: for each input of the program its index among the arguments.
        order: for each flat result of the function its index among those of the program.
        pack: gives flat results their structure.
    """

    __slots__ = (
        "__weakref__",
        "_arity",
        "_count",
        "_order",
        "_pack",
        "_path",
        "_result_bytes",
        "_taken",
        "_takes",
        "_updates",
    )

    def __init__(
        self,
        variant: Variant,
        path: Dispatched,
        takes: Sequence[int],
        order: Sequence[int],
        pack: Callable[[Any], Any],
    ) -> None:
        self._path = path
        self._updates = variant.updates
        self._arity = len(takes)
        self._takes = _unless_plain(takes, self._arity)
        self._count = len(variant.results)
        self._order = _unless_plain(order, self._count)
        self._pack = pack
        self._result_bytes = variant.result_bytes
        self._taken = False

    def call(self, values: Sequence[Any]) -> Any:
        """What the function gives for these arguments; MISSED where they have to go the long way.

        The caller has seen that nothing is traced and no tape is open.
        """
        if timeline.observers or callbacks.threads:
            return MISSED
        if len(values) != self._arity:
            # Defaults, or too many: the plan would take what the function holds for arguments.
            return MISSED
        if self._takes is not None:
            values = [values[index] for index in self._takes]
        try:
            results = self._path.call(values)
        except DEVICE_FAILURES:
            # Nothing was written: the long way meets it again, and knows what to do.
            return MISSED
        if results is None:
            return MISSED
        self._taken = True
        if self._updates:
            for handle, index in self._updates:
                compat.assign(handle, results[index])
            del results[self._count :]
        if self._order is not None:
            results = [results[index] for index in self._order]
        return self._pack(results)

    def last(self) -> Call | None:
        """The last call, if it came this way."""
        if not self._taken:
            return None
        call = Call(1)
        shared, copied = self._path.plan.crossed
        call.crossed(0, shared + self._path.kept_bytes + self._result_bytes, shared=True)
        call.crossed(0, copied, shared=False)
        return call

    def forget(self) -> None:
        """A call went the long way."""
        self._taken = False


def _unless_plain(order: Sequence[int], count: int) -> tuple[int, ...] | None:
    """An order of so many values; None where it is the one that they have."""
    return None if list(order) == list(range(count)) else tuple(order)


MISSED: Any = object()
"""No result: the call has to go the long way."""
