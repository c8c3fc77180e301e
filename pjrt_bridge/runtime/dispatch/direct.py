"""Direct calls: an executable on buffers and on NumPy's arrays, started by the dispatcher in C.

A call that goes through Python takes several times as long as a small program. What is given has to
lie as the program takes it, nothing is donated, and the results lie as the plugin lays them out by
default; everything else goes through `pjrt_bridge.runtime.dispatch.executing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.dispatch import outputs, plans
from pjrt_bridge.runtime.dispatch.arguments import Arguments
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import run_deferred
from pjrt_bridge.runtime.transfers.dlpack import has_own_elements

# Results are handed on as buffers, so no array is made of a capsule.
_NUMPY = plans.Capsules(np.ndarray, np.ndarray.__dlpack__, np.from_dlpack)


class End(Protocol):
    """The end of an execution, successful or not."""

    def wait(self) -> None:
        """Block until the execution has ended.

        Raises:
            PjrtError: it failed.
        """

    def close(self) -> None:
        """Forget the end; the execution goes on."""


class LaunchEnd:
    """The end of a launch of the dispatcher."""

    __slots__ = ("_launch",)

    def __init__(self, launch: Any) -> None:
        self._launch = launch

    def wait(self) -> None:
        """See `End`."""
        if self._launch is not None:
            self._launch.finish()

    def close(self) -> None:
        """See `End`."""
        self._launch = None


class DirectCalls:
    """Starts one executable.

    Args:
        target: the executable.
        plan: the dispatcher's.
        arguments: checks what calls are given.
        layouts: of the results.
    """

    def __init__(
        self,
        target: plans.PlannedExecutable,
        plan: Any,
        arguments: Arguments,
        layouts: Sequence[Layout],
    ) -> None:
        assert target.device is not None
        self._client = target.client
        self._device: Device = target.device
        self._reads_arrays = target.client.shares_host_memory
        self._plan = plan
        self._arguments = arguments
        self._results = tuple(zip(target.outputs, layouts, strict=True))
        self._pinned = plans.PinnedBuffers(
            [None] * len(arguments.types), [0] * len(arguments.types)
        )

    def on_buffers(self, buffers: Sequence[Buffer]) -> tuple[tuple[Buffer, ...], LaunchEnd] | None:
        """The results for buffers that were compared with the parameters, and the end.

        Returns:
            None where a buffer is not there any more, which the other way says.

        Raises:
            PjrtError: the plugin failed.
        """
        return self._start([buffer.handle.dispatched() for buffer in buffers])

    def on_arrays(self, arrays: Sequence[Any]) -> tuple[Buffer, ...] | None:
        """The results for arrays and buffers, as many as there are parameters.

        Returns:
            None where one of them has to be converted, moved or refused.

        Raises:
            PjrtError: the plugin failed.
        """
        values = []
        for index, array in enumerate(arrays):
            if isinstance(array, Buffer):
                if not self._arguments.fits(index, array, self._device):
                    return None
                values.append(array.handle.dispatched())
            elif self._reads_arrays and (own := _as_numpy(array)) is not None:
                values.append(own)
            else:
                return None
        found = self._start(values)
        return None if found is None else found[0]

    def _start(self, values: list[Any]) -> tuple[tuple[Buffer, ...], LaunchEnd] | None:
        if callbacks.threads:
            callbacks.check()
        run_deferred()
        launch = self._plan.launch(values, self._pinned.parts, None)
        if type(launch) is int:
            return None
        results = [
            outputs.buffer_of(output, self._client, type, self._device, layout)
            for output, (type, layout) in zip(launch.outputs, self._results, strict=True)
        ]
        return tuple(results), LaunchEnd(launch)


def _as_numpy(array: Any) -> Any:
    """An array of another framework as NumPy's, over the same memory; None where there is none."""
    if type(array) is np.ndarray:
        return array
    if not hasattr(array, "__dlpack__"):
        return None
    # Each framework refuses with exceptions of its own what DLPack or NumPy cannot describe.
    with suppress(Exception):
        if has_own_elements(array):
            return np.from_dlpack(array)
    return None


def direct_calls(
    target: plans.PlannedExecutable, arguments: Arguments, layouts: Sequence[Layout] | None
) -> DirectCalls | None:
    """Direct calls of an executable; None where each call has to go the other way.

    Args:
        target: the executable.
        arguments: checks what calls are given.
        layouts: of the results; None where the plugin's default is another one, or bounds are not
            sizes.
    """
    if layouts is None or not layouts or any(arguments.layouts):
        return None
    plan = plans.plan(
        target,
        [
            plans.BoundParameter(index, ValueSpec.row_major(type))
            for index, type in enumerate(arguments.types)
        ],
        list(map(ValueSpec.row_major, target.outputs)),
        _NUMPY,
        on_device=True,
    )
    return None if plan is None else DirectCalls(target, plan, arguments, layouts)
