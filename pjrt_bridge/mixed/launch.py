"""Results of device segments on their way to the next segment, in any framework.

A device segment starts its program and waits for nothing. What it hands on is a `Crossing`: the
next device segment takes the plugin's output as it is, a host segment asks for the tensor, and is
waited for then. What the device fails to do, the framework computes when the failure is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from pjrt_bridge.errors import DEVICE_FAILURES, PjrtBridgeError
from pjrt_bridge.mixed.program import Call

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Buffer, Event

PATIENCE = 3
"""Failures in a row after which a segment is not tried on the device again."""


class Output(Protocol):
    """A result of a program, which may not be there."""

    def tensor(self) -> Any:
        """A tensor over it, once the launch has ended well."""


class Started(Protocol):
    """An execution that may not have ended."""

    @property
    def outputs(self) -> Sequence[Output]:
        """The program's results."""

    def finish(self) -> None:
        """Wait for the end; a failure of the device raises."""

    def tensors(self) -> list[Any]:
        """A tensor over each result, once the end was waited for."""


class Path(Protocol):
    """What starts a program."""

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on the inputs of a segment; counts what crosses."""


class BufferOutput(Output, Protocol):
    """A result as a buffer."""

    @property
    def buffer(self) -> Buffer:
        """The plugin's."""


class Submitted:
    """An execution of `Executable.submit`.

    Args:
        outputs: its results; the framework says how they become tensors.
        done: when it has ended.
        given: what nobody else may hold, and has to stay until then.
    """

    __slots__ = ("_done", "_given", "outputs")

    def __init__(
        self, outputs: Sequence[BufferOutput], done: Event, given: Sequence[Any] = ()
    ) -> None:
        self._done = done
        self._given = given
        self.outputs = outputs

    def finish(self) -> None:
        """Wait for the end; a failure of the device raises."""
        try:
            self._done.wait()
        finally:
            self._done.close()
            self._given = ()
        for output in self.outputs:
            output.buffer.mark_ready()

    def tensors(self) -> list[Any]:
        """A tensor over each result, once the end was waited for."""
        return [output.tensor() for output in self.outputs]


class Launcher(Protocol):
    """A device segment, as its launches know it.

    Attributes:
        shares: results are read where they lie.
    """

    shares: bool

    def count(self, index: int, at: int, call: Call) -> None:
        """Count a result that crosses to the host."""

    def succeeded(self) -> None:
        """Note a launch that went well."""

    def recover(self, values: list[Any], call: Call, error: PjrtBridgeError) -> Mapping[int, Any]:
        """The results by index, from the framework, after the device failed."""


class Launch:
    """A run of a device segment that may not have ended.

    Args:
        segment: what runs.
        values: its inputs.
        started: its execution.
        call: of which it is a part.

    Attributes:
        recovered: the results by index, where the device failed.
    """

    __slots__ = ("_at", "_call", "_segment", "_started", "_values", "recovered")

    def __init__(self, segment: Launcher, values: list[Any], started: Started, call: Call) -> None:
        self._segment = segment
        # If the device fails, the framework needs them: until the end is known, or until the
        # results are read where that is a transfer.
        self._values = values
        self._started: Started | None = started
        self._call = call
        self._at = call.at
        self.recovered: Mapping[int, Any] | None = None

    def finish(self) -> None:
        """Wait; where the device failed, compute in the framework."""
        started, self._started = self._started, None
        if started is None:
            return
        try:
            started.finish()
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
        """Wait for the end, well or not."""
        started, self._started = self._started, None
        if started is not None:
            with suppress(*DEVICE_FAILURES):
                started.finish()
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


class Crossing:
    """A result of a device segment on its way, and a tensor when a host segment asks.

    Attributes:
        output: what the plugin gave.
        form: its shape and type, where the frontend wants to know before it is there.
    """

    __slots__ = ("_index", "_launch", "_tensor", "form", "output")

    def __init__(self, launch: Launch, index: int, output: Output, form: Any = None) -> None:
        self._launch = launch
        self._index = index
        self._tensor: Any = None
        self.output = output
        self.form = form

    @property
    def direct(self) -> Any:
        """What the next segment takes: the output; where the device failed, the host's tensor."""
        return self.output if self._launch.recovered is None else self.tensor()

    def tensor(self) -> Any:
        """The tensor over the result's memory; waits for the values."""
        if self._tensor is None:
            self._tensor = self._launch.tensor(self._index, self.output)
        return self._tensor


def tensor_of(value: Any) -> Any:
    """A value as the framework takes it."""
    return value.tensor() if isinstance(value, Crossing) else value
