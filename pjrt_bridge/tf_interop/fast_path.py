"""The fast path of a function: from the user's tensors into the dispatcher.

It goes past TensorFlow's binding of arguments and the bridge's own bookkeeping. Calls with anything
but tensors, tensors of other shapes, tapes, observers and failures take the usual path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES
from pjrt_bridge.mixed.adapter import Constant
from pjrt_bridge.mixed.fast_path import FastPath
from pjrt_bridge.mixed.launchers import DispatchLauncher
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.tf_interop import compat


class FunctionPath(FastPath):
    """The fast path of a function that is one program.

    Args:
        segment: the program, which the dispatcher starts.
        takes: for each input of the program its index among the arguments.
        order: for each flat result of the function its index among those of the program.
        pack: gives flat results their structure.
    """

    def __init__(
        self,
        segment: DeviceSegment,
        takes: Sequence[int],
        order: Sequence[int],
        pack: Callable[[Any], Any],
    ) -> None:
        assert isinstance(segment.launcher, DispatchLauncher)
        super().__init__(segment.launcher, segment.result_bytes)
        bindings = segment.bindings
        self._updates = [
            (target.value, index)
            for target, index in bindings.updates
            if isinstance(target, Constant)
        ]
        self._arity = len(takes)
        self._takes = _unless_plain(takes, self._arity)
        self._count = len(bindings.outputs)
        self._order = _unless_plain(order, self._count)
        self._pack = pack

    def call(self, values: Sequence[Any]) -> Any:
        """The function's results for these arguments; MISSED where they have to go the usual path.

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
            results = self._launcher.call(values)
        except DEVICE_FAILURES:
            # Nothing was written: the usual path meets it again, and knows what to do.
            return MISSED
        if results is None:
            return MISSED
        self.taken = True
        if self._updates:
            for handle, index in self._updates:
                compat.assign(handle, results[index])
            del results[self._count :]
        if self._order is not None:
            results = [results[index] for index in self._order]
        return self._pack(results)


def _unless_plain(order: Sequence[int], count: int) -> tuple[int, ...] | None:
    """An order of so many values; None where it is the one that they have."""
    return None if list(order) == list(range(count)) else tuple(order)


MISSED: Any = object()
"""No result: the call has to take the usual path."""
