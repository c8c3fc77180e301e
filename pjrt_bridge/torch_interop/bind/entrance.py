"""The fast path of a compiled graph: from Dynamo's code into the dispatcher.

It skips AOTAutograd's wrapper and the bridge's own bookkeeping. The first calls determine which
arguments stay in the same memory; these are pinned as parameters are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES, PjrtBridgeError
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.fast_path import FastPath
from pjrt_bridge.mixed.launchers import DispatchLauncher
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import deferred_queues, run_deferred

_BLOCKERS = (timeline.observers, callbacks.threads, *deferred_queues)
"""While all of these are empty, a call needs the dispatcher alone."""

_SMALL = 1 << 16
"""Bytes of an argument that may be pinned though it is no parameter; a view keeps its memory."""


class Entrance(FastPath):
    """The fast path that Dynamo's code calls.

    Args:
        launcher: of the program.
        segment: the program.
    """

    def __init__(self, launcher: DispatchLauncher, segment: DeviceSegment) -> None:
        super().__init__(launcher, segment.result_bytes)
        self._segment = segment
        self._parts: Any = None
        self._watches = True
        self._addresses: Mapping[int, int] | None = None
        self._native: Any = None

    @staticmethod
    def of(segment: DeviceSegment) -> Entrance | None:
        """The fast path of a program whose results are new tensors, or values of arguments."""
        launcher = segment.launcher
        if segment.bindings.targets() is None or not isinstance(launcher, DispatchLauncher):
            return None
        return Entrance(launcher, segment)

    @property
    def is_open(self) -> bool:
        """Whether the next call may come this way."""
        return self._parts is not None

    def went_well(self, call: CallRecord) -> None:
        """A call on the usual path went well: the next one may come this way.

        Values that had to be rearranged may hold other numbers than their memory does (PyTorch
        negates lazily), which the dispatcher does not check.
        """
        pinned = self._launcher.pinned.dispatched
        if pinned is not None and not call.rearranged:
            self._parts = pinned.parts
        self._update(taken=False)

    def close(self) -> None:
        """The next call takes the usual path."""
        self._parts = None
        self._update()

    def _update(self, *, taken: bool | None = None) -> None:
        if self._native is not None:
            self._native.pinned = None if self._watches else self._parts
            if taken is not None:
                self._native.taken = taken

    def last(self) -> CallRecord | None:
        """The last call, if it came this way."""
        self.taken = self._native is not None and bool(self._native.taken)
        return super().last()

    def before(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo's code calls: the fast path, and where it is closed the usual path."""
        plan = self._launcher.plan

        def checked_call(*values: Any) -> Any:
            parts = self._parts
            if parts is not None and not timeline.observers and not callbacks.threads:
                run_deferred()
                try:
                    results = plan.call(values, parts)
                except DEVICE_FAILURES as error:
                    return failed_call(error, values)
                if results is None:
                    return declined_call(*values)
                self._native.taken = True
                if self._watches:
                    self._watch(values)
                return results
            return otherwise(*values)

        def declined_call(*values: Any) -> Any:
            self.close()
            return otherwise(*values)

        def failed_call(error: PjrtBridgeError, values: tuple[Any, ...]) -> Any:
            if self._segment.may_have_written(error):
                raise error
            # The usual path meets it again, and knows what to do.
            return declined_call(*values)

        assert native.module is not None
        self._native = native.module.Entrance(
            plan, _BLOCKERS, DEVICE_FAILURES, checked_call, declined_call, failed_call
        )
        self._update()
        return self._native  # type: ignore[no-any-return]

    def _watch(self, values: Sequence[Any]) -> None:
        """Find out, in two calls, which arguments stay in the same memory."""
        before = self._addresses
        self._addresses = {
            parameter.position: values[parameter.position].data_ptr()
            for parameter in self._launcher.parameters
            if parameter.position is not None
            and parameter.spec.nbytes <= _SMALL
            and not parameter.written
        }
        if before is None:
            return
        self._watches = False
        staying = dict(before.items() & self._addresses.items())
        if staying:
            self._launcher.pinned.add(staying, values)
            self.went_well(CallRecord(1))
        self._update()
