"""How a device segment takes its arguments and starts: in C where that is offered, else in Python.

Both ways give the same: tensors, and results of other segments, go in; results come out that the
next segment takes as they are, and that become tensors when TensorFlow asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pjrt_bridge.mixed.launch import Crossing, Started
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime import Buffer, Event, Executable
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.emit import Emitted
from pjrt_bridge.tf_interop.tensors import put, tensor_over


class Path(Protocol):
    """What starts a program."""

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on a part's inputs; counts what crosses."""


def path_of(executable: Executable, emitted: Emitted, places: Sequence[int]) -> Path:
    """The fastest way to start a program.

    Args:
        executable: compiled from `emitted.program`.
        emitted: what its parameters and results are.
        places: for each input of the program its position among those of the part.
    """
    return General(executable, emitted, places)


class Held:
    """What a function holds, as arguments of a program: variables as they are in each call."""

    def __init__(self, held: Sequence[Any]) -> None:
        self._readers = [compat.held_value(item) for item in held]

    def values(self) -> list[Any]:
        """A tensor for each."""
        return [read() for read in self._readers]


class General:
    """Programs that take and give buffers, on any plugin."""

    def __init__(self, executable: Executable, emitted: Emitted, places: Sequence[int]) -> None:
        self._executable = executable
        self._client = executable.client
        self._places = places
        self._held = Held(emitted.held)
        self._types = [parameter.type for parameter in executable.signature.parameters]

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on a part's inputs; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: a tensor of another shape.
        """
        given = [*(values[place] for place in self._places), *self._held.values()]
        buffers = [
            self._buffer(value, type, call) for value, type in zip(given, self._types, strict=True)
        ]
        results, done = self._executable.submit(buffers)
        return Submitted(results, done, given)

    def _buffer(self, value: Any, type: TensorType, call: Call) -> Buffer:
        if isinstance(value, Crossing):
            direct = value.direct
            if isinstance(direct, Result) and direct.buffer.client is self._client:
                return direct.buffer
            value = value.tensor()
        return put(self._client, value, type, call)


class Submitted:
    """An execution of `Executable.submit`."""

    __slots__ = ("_done", "_given", "outputs")

    def __init__(self, buffers: Sequence[Buffer], done: Event, given: Sequence[Any]) -> None:
        self._done = done
        # Nobody else may hold the values of variables.
        self._given = given
        self.outputs = [Result(buffer) for buffer in buffers]

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


class Result:
    """A result as a buffer."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def tensor(self) -> Any:
        """A tensor over the buffer's memory; waits for the values."""
        return tensor_over(self.buffer)
