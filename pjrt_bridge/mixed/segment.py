"""DeviceSegment: a part of a graph as one program, for any framework.

Values cross as they are: a device segment hands on what the plugin gave, a host segment tensors,
and each takes what it gets as its own kind, over the same memory where the plugin uses host memory.
What the device fails to do in a call, the framework does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pjrt_bridge.errors import (
    DEVICE_FAILURES,
    OutOfRange,
    PjrtBridgeError,
    PjrtError,
    ResourceExhausted,
)
from pjrt_bridge.mixed.adapter import Bindings, Computed, Constant, FrameworkAdapter, SegmentInput
from pjrt_bridge.mixed.execution import (
    CallRecord,
    DeferredValue,
    Execution,
    Launched,
    ResidentValue,
    Runner,
)
from pjrt_bridge.mixed.fast_path import FastPath
from pjrt_bridge.mixed.launchers import BufferOutput, Launcher

MAX_FAILURES = 3
"""Failures in a row after which a segment is not tried on the device again."""


class DeviceSegment:
    """A segment, or a whole graph, as one program.

    Args:
        launcher: starts the program.
        bindings: what the program takes and gives.
        adapter: of the values' framework.
        host: the same in the framework, for when the device fails.
        on_failure: told each failure of the device; raises it where the host is forbidden.
        shares: results are read where they lie.

    Attributes:
        launcher: see above.
        bindings: see above.
        shares: see above.
        result_bytes: of all results of the program.
        is_plain: the outputs are the results of the program, and nothing else.
        fast_path: notified of calls that went well, and of those that failed; None: there is none.
    """

    def __init__(
        self,
        launcher: Launcher,
        bindings: Bindings,
        adapter: FrameworkAdapter,
        host: Runner,
        on_failure: Callable[[PjrtBridgeError], None],
        *,
        shares: bool,
    ) -> None:
        self.launcher = launcher
        self.bindings = bindings
        self.shares = shares
        self.fast_path: FastPath | None = None
        self._adapter = adapter
        self._host = host
        self._on_failure = on_failure
        self._failures = 0
        self._types = [spec.type for spec in bindings.results]
        self._bytes = [spec.nbytes for spec in bindings.results]
        self.result_bytes = sum(self._bytes)
        self._returned = {item.result for item in bindings.outputs if isinstance(item, Computed)}
        self.is_plain = list(bindings.outputs) == [Computed(at) for at in range(len(self._bytes))]

    def run(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs, there, and all updates made.

        Raises:
            PjrtError: a program that writes into its arguments failed on the way.
        """
        if self._failures >= MAX_FAILURES:
            return self._host(values, call)
        try:
            launched = self.launcher.launch(values, call)
            launched.finish()
            stays = self._staying(values)
            results = _read(launched, stays)
        except DEVICE_FAILURES as error:
            if self.may_have_written(error):
                raise
            return self._compute_on_host(values, call, error)
        self._failures = 0
        crossed = self.result_bytes - sum(self._bytes[index] for index in stays)
        call.crossed(call.at, crossed, shared=self.shares)
        if self.fast_path is not None:
            self.fast_path.went_well(call)
        for target, index in self.bindings.updates:
            place = self._place(target, values)
            if isinstance(place, ResidentValue):
                _replace(place, launched.outputs[index])
            else:
                self._adapter.assign(place, results[index])
        return self._outputs(values, results)

    def _staying(self, values: Sequence[Any]) -> Collection[int]:
        """The results that replace resident values, and that nobody reads."""
        return {
            index
            for target, index in self.bindings.updates
            if index not in self._returned
            and isinstance(self._place(target, values), ResidentValue)
        }

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs, deferred; waits for nothing but updates of host memory.

        Takes tensors, and what other segments have started.
        """
        resident = [
            (place, index)
            for target, index in self.bindings.updates
            if isinstance(place := self._place(target, values), ResidentValue)
        ]
        if len(resident) < len(self.bindings.updates):
            return self.run(values, call)
        if self._failures >= MAX_FAILURES:
            return self._host(values, call)
        try:
            launched = self.launcher.launch(values, call)
        except DEVICE_FAILURES as error:
            if self.may_have_written(error):
                raise
            return self._compute_on_host(values, call, error)
        execution = Execution(self, values, launched, call)
        call.began(execution)
        results = [
            DeferredValue(execution, index, output, type)
            for index, (output, type) in enumerate(zip(launched.outputs, self._types, strict=True))
        ]
        for place, index in resident:
            _replace(place, launched.outputs[index])
        return self._outputs(values, results)

    @staticmethod
    def _place(target: SegmentInput | Constant, values: Sequence[Any]) -> Any:
        return values[target.position] if isinstance(target, SegmentInput) else target.value

    def _outputs(self, values: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        if self.is_plain:
            return results
        return [_output(item, values, results) for item in self.bindings.outputs]

    def count(self, index: int, at: int, call: CallRecord) -> None:
        """Count a result that crosses to the host."""
        call.crossed(at, self._bytes[index], shared=self.shares)

    def succeeded(self) -> None:
        """Note an execution that went well."""
        self._failures = 0

    def recover(
        self, values: list[Any], call: CallRecord, error: PjrtBridgeError
    ) -> Mapping[int, Any]:
        """The program's results by index, from the framework, after the device failed."""
        outputs = self._compute_on_host(values, call, error)
        return {
            item.result: value
            for item, value in zip(self.bindings.outputs, outputs, strict=True)
            if isinstance(item, Computed)
        }

    def _compute_on_host(
        self, values: list[Any], call: CallRecord, error: PjrtBridgeError
    ) -> Sequence[Any]:
        if isinstance(error, ResourceExhausted) and any(
            isinstance(value, ResidentValue) for value in values
        ):
            # What the host computes would need the same room on the device.
            raise error
        counted = self._counted(error)
        outputs = self._host(values, call)
        if not counted:
            self._failed(error)
        self._failures += 1
        return outputs

    def may_have_written(self, error: PjrtBridgeError) -> bool:
        """Whether arguments may be gone, so that the host cannot compute; the error says so."""
        if not self.bindings.writes or _failed_before_execution(error):
            return False
        self._counted(error)
        error.add_note(
            "The program may have begun to write into its arguments, so the host cannot compute it "
            "instead: tensors that it updates may hold old, new or partial values."
        )
        return True

    def _counted(self, error: PjrtBridgeError) -> bool:
        """Count a failure, unless the framework may refuse the call for the same reason."""
        if isinstance(error, OutOfRange):
            return False
        self._failed(error)
        return True

    def _failed(self, error: PjrtBridgeError) -> None:
        if self.fast_path is not None:
            self.fast_path.close()
        self._on_failure(error)


def _read(launched: Launched, stays: Collection[int]) -> Sequence[Any]:
    """The framework's tensors over the results; None in the places of those that stay."""
    if not stays:
        return launched.tensors()
    return [
        None if index in stays else output.tensor() for index, output in enumerate(launched.outputs)
    ]


def _replace(place: ResidentValue, output: object) -> None:
    assert isinstance(output, BufferOutput)
    place.replace(output.buffer, output.spec)


def _failed_before_execution(error: PjrtBridgeError) -> bool:
    """Whether a failure is that of a step before the execution.

    An execution may fail after it has written: plugins run small programs inside the call.
    """
    return isinstance(error, PjrtError) and error.function == "Client_BufferFromHostBuffer"


def _output(
    item: SegmentInput | Computed | Constant, values: Sequence[Any], results: Sequence[Any]
) -> Any:
    """An output of a segment, from its values and the results of its program."""
    if isinstance(item, Computed):
        return results[item.result]
    return values[item.position] if isinstance(item, SegmentInput) else item.value
