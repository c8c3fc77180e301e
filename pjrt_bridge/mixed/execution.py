"""One call of a compiled graph: its record, its executions, and deferred values.

A device segment starts its program and waits for nothing. It hands on `DeferredValue`s: the next
device segment takes the plugin's output as it is, a host segment asks for the framework's tensor,
which waits. What the device fails to do, the framework computes when the failure is found.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from pjrt_bridge.errors import DEVICE_FAILURES, PjrtBridgeError
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.stablehlo.types import TensorType


class CallRecord:
    """The record of one call of a graph.

    Args:
        segments: how many the graph has.
        timed: wait for each segment before the next, and take its time.
        outer: a call of which this one is a part.

    Attributes:
        at: index of the segment that runs now.
        shared: bytes that crossed in place, for each segment.
        copied: bytes that were copied to cross, for each segment.
        seconds: time of each segment, where the call is timed.
        started: when each began, from `time.perf_counter_ns`, where the call is timed.
        rearranged: some values did not go into a program as they were.
    """

    __slots__ = (
        "_outer",
        "_unfinished",
        "at",
        "copied",
        "rearranged",
        "seconds",
        "shared",
        "started",
    )

    def __init__(
        self, segments: int, *, timed: bool = False, outer: CallRecord | None = None
    ) -> None:
        self.at = 0
        self.shared = [0] * segments
        self.copied = [0] * segments
        self.seconds = [0.0] * segments if timed else None
        self.started = [0] * segments
        self.rearranged = False
        self._unfinished: list[Execution] = []
        self._outer = outer

    @property
    def bytes_shared(self) -> int:
        """Bytes that crossed in place."""
        return sum(self.shared)

    @property
    def bytes_copied(self) -> int:
        """Bytes that were copied to cross."""
        return sum(self.copied)

    def run(self, runner: Runner, values: list[Any]) -> Sequence[Any]:
        """What a runner gives for the current segment; takes the time if the call is timed."""
        if self.seconds is None:
            return runner(values, self)
        started = self.started[self.at] = time.perf_counter_ns()
        results = runner(values, self)
        self.finish()
        self.seconds[self.at] = (time.perf_counter_ns() - started) / 1e9
        return results

    def crossed(self, at: int, nbytes: int, *, shared: bool) -> None:
        """Count a value that crossed between the host and the device segment at an index."""
        # Arguments of a graph of views alone may be padded, and it has no segment.
        if at < len(self.shared):
            (self.shared if shared else self.copied)[at] += nbytes
        if self._outer is not None:
            self._outer.crossed(self._outer.at, nbytes, shared=shared)

    def began(self, execution: Execution) -> None:
        """Note an execution that has to end before the call does."""
        self._unfinished.append(execution)

    def finish(self) -> None:
        """Wait for all executions; what a failed one's recovery raises passes through."""
        while self._unfinished:
            self._unfinished[-1].finish()
            self._unfinished.pop()

    def let_go(self) -> None:
        """Forget the executions, which go on: call records are kept for longer than values."""
        self._unfinished.clear()

    def abandon(self) -> None:
        """Wait for all executions, and forget them."""
        while self._unfinished:
            self._unfinished.pop().abandon()


Runner = Callable[[list[Any], CallRecord], Sequence[Any]]
"""Runs one segment: values of its inputs in, values of its outputs out, in the segment's order.

What a value is belongs to the framework; a runner accepts what the runners before it gave. It may
return before its results are there, and then tells the call.
"""


class Output(Protocol):
    """A result of a program that may still be running."""

    def tensor(self) -> Any:
        """The framework's tensor over it, once the execution has ended well."""


class Launched(Protocol):
    """A program that was started, by the dispatcher in C or in Python."""

    @property
    def outputs(self) -> Sequence[Output]:
        """The program's results."""

    def finish(self) -> None:
        """Wait for the end; a failure of the device raises."""

    def tensors(self) -> list[Any]:
        """The framework's tensor over each result, once the end was waited for."""


class Recovery(Protocol):
    """The segment of an execution: counts how it ended, and computes on the host where it failed.

    Attributes:
        shares: results are read where they lie.
    """

    shares: bool

    def count(self, index: int, at: int, call: CallRecord) -> None:
        """Count a result that crosses to the host."""

    def succeeded(self) -> None:
        """Note an execution that went well."""

    def recover(
        self, values: list[Any], call: CallRecord, error: PjrtBridgeError
    ) -> Mapping[int, Any]:
        """The results by index, from the framework, after the device failed."""


class Execution:
    """One run of a device segment, which may still be going on.

    Args:
        segment: what runs.
        values: its inputs.
        launched: its program.
        call: of which it is a part.

    Attributes:
        recovered: the results by index, where the device failed.
    """

    __slots__ = ("_at", "_call", "_launched", "_segment", "_values", "recovered")

    def __init__(
        self, segment: Recovery, values: list[Any], launched: Launched, call: CallRecord
    ) -> None:
        self._segment = segment
        # If the device fails, the framework needs them: until the end is known, or until the
        # results are read where that is a transfer.
        self._values = values
        self._launched: Launched | None = launched
        self._call = call
        self._at = call.at
        self.recovered: Mapping[int, Any] | None = None

    def finish(self) -> None:
        """Wait; where the device failed, compute in the framework."""
        launched, self._launched = self._launched, None
        if launched is None:
            return
        try:
            launched.finish()
        except DEVICE_FAILURES as error:
            self._recover(error)
        else:
            self._segment.succeeded()
            if self._segment.shares:
                self._values = []

    def _recover(self, error: PjrtBridgeError) -> None:
        values, self._values = self._values, []
        self.recovered = self._segment.recover(values, self._call, error)

    def abandon(self) -> None:
        """Wait until the device reads and writes nothing any more; failures do not matter."""
        launched, self._launched = self._launched, None
        if launched is not None:
            with suppress(*DEVICE_FAILURES):
                launched.finish()
        self._values = []

    def tensor(self, index: int, output: Output) -> Any:
        """A result, once it is there."""
        self.finish()
        if self.recovered is None:
            try:
                made = output.tensor()
            except DEVICE_FAILURES as error:
                if self._segment.shares:
                    raise
                self._recover(error)
            else:
                self._segment.count(index, self._at, self._call)
                return made
        assert self.recovered is not None
        return self.recovered[index]


class DeferredValue:
    """A result of a device segment that may still be running: a tensor when a host segment asks.

    Attributes:
        output: the program's.
        type: its shape and element type.
    """

    __slots__ = ("_execution", "_index", "_tensor", "output", "type")

    def __init__(self, execution: Execution, index: int, output: Output, type: TensorType) -> None:
        self._execution = execution
        self._index = index
        self._tensor: Any = None
        self.output = output
        self.type = type

    @property
    def direct(self) -> Any:
        """What the next segment takes: the output; where the device failed, the host's tensor."""
        return self.output if self._execution.recovered is None else self.tensor()

    def tensor(self) -> Any:
        """The framework's tensor over the result's memory; waits for the values."""
        if self._tensor is None:
            self._tensor = self._execution.tensor(self._index, self.output)
        return self._tensor


class ResidentValue(ABC):
    """A value that was on the device before the call: it crosses only to a host segment."""

    __slots__ = ()

    @abstractmethod
    def buffer_as(self, spec: ValueSpec) -> AnyBuffer:
        """Its elements, lying as a program takes them."""

    @abstractmethod
    def tensor(self) -> Any:
        """The framework's tensor of a copy in host memory; waits for the values."""

    @abstractmethod
    def replace(self, buffer: AnyBuffer, spec: ValueSpec) -> None:
        """Have the user's value hold other elements from now on."""

    def place(self, before: AnyBuffer, after: AnyBuffer) -> None:  # noqa: B027
        """Have the user's value hold the same elements, divided, where it holds `before`."""


def tensor_of(value: Any) -> Any:
    """A value as the framework takes it on the host; waits for one that is deferred."""
    return value.tensor() if isinstance(value, (DeferredValue, ResidentValue)) else value
