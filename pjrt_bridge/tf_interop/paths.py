"""How a device segment takes its arguments and starts: in C where that is offered, else in Python.

Both ways give the same: tensors, and results of other segments, go in; results come out that the
next segment takes as they are, and that become tensors when TensorFlow asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.errors import DataError
from pjrt_bridge.mixed.launch import Crossing, Path, Started, Submitted, tensor_of
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime import Buffer, Executable
from pjrt_bridge.runtime.dispatch.plans import Array, Given, Kept, Made
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.handles import tidy
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.emit import Emitted
from pjrt_bridge.tf_interop.tensors import memory_of, put, tensor_over

_PATIENCE = 8
"""How often buffers of variables that moved are made again."""


def path_of(executable: Executable, emitted: Emitted, places: Sequence[int]) -> Path:
    """The fastest way to start a program.

    Args:
        executable: compiled from `emitted.program`.
        emitted: what its parameters and results are.
        places: for each input of the program its position among those of the part.
    """
    signature = executable.signature
    given = [
        Given(index, Array.row_major(item.type)) for index, item in enumerate(signature.parameters)
    ]
    results = [Array.row_major(item.type) for item in signature.results]
    made = [Made(array, array.shape, array.strides) for array in results]
    plan = executable.plan(given, made, compat.capsules())
    if plan is None:
        return General(executable, emitted, places)
    return Dispatched(plan, executable, emitted, places)


class Held:
    """What a function holds, as arguments of a program: variables as they are in each call."""

    def __init__(self, held: Sequence[Any]) -> None:
        self._values = list(held)
        self._places = [at for at, item in enumerate(held) if compat.is_variable(item)]
        self._read = compat.reader([held[at] for at in self._places])

    def values(self) -> list[Any]:
        """A tensor for each."""
        if len(self._places) == len(self._values):
            return self._read()
        values = self._values.copy()
        for at, value in zip(self._places, self._read(), strict=True):
            values[at] = value
        return values


# -- in C ------------------------------------------------------------------------------------------


class Dispatched:
    """Programs that the dispatcher starts.

    Variables that the program does not update mostly stay where they are: their buffers are kept,
    and taken while the variable's value is at the same address. The values themselves are read in
    each call, because only that tells where they are.

    Attributes:
        plan: the dispatcher's.
    """

    def __init__(
        self, plan: Any, executable: Executable, emitted: Emitted, places: Sequence[int]
    ) -> None:
        self.plan = plan
        self._executable = executable
        self._client = executable.client
        self._places = tuple(places)
        self._held = Held(emitted.held)
        self._types = [parameter.type for parameter in executable.signature.parameters]
        count = len(places)
        updated = {at for at, _ in emitted.updates}
        self._staying = [count + at for at in range(len(emitted.held)) if at not in updated]
        self._patience = _PATIENCE
        self._kept_bytes = 0
        self._kept = Kept([None] * len(self._types), [0] * len(self._types))

    def launch(self, values: Sequence[Any], call: Call) -> Started:
        """Start it on a part's inputs; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: a tensor of another shape.
        """
        if callbacks.threads:
            callbacks.check()
        tidy()
        given = [values[place] for place in self._places]
        given = [value.direct if type(value) is Crossing else value for value in given]
        given += self._held.values()
        if self._staying and self._patience == _PATIENCE:
            self._renew(given, call)
        found = self.plan.launch(given, self._kept.parts, None)
        tried: set[int] = set()
        while found is None or type(found) is int:
            if found is None:
                self._renew(given, call)
            elif found in tried:
                expected = self._types[found]
                raise DataError(
                    f"argument {found}: found {_shown(given[found])}, expected {expected}"
                )
            else:
                tried.add(found)
                if found < len(self._places):
                    given[found] = tensor_of(values[self._places[found]])
            found = self.plan.launch(given, self._kept.parts, None)
        call.crossed(call.at, found.shared, shared=True)
        if found.copied:
            call.crossed(call.at, found.copied, shared=False)
        started: Started = found
        return started

    def call(self, values: Sequence[Any]) -> list[Any] | None:
        """The results for tensors, waited for; None where `launch` has to look at them.

        Raises:
            PjrtError: the plugin failed.
        """
        tidy()
        found: list[Any] | None = self.plan.call((*values, *self._held.values()), self._kept.parts)
        return found

    @property
    def kept_bytes(self) -> int:
        """Of the variables whose buffers are kept."""
        return self._kept_bytes

    def _renew(self, given: Sequence[Any], call: Call) -> None:
        """Keep buffers over the values of variables, while they do not move too often."""
        buffers: list[Buffer | None] = [None] * len(self._types)
        addresses = [0] * len(self._types)
        self._kept_bytes = 0
        if self._patience:
            self._patience -= 1
            for index in self._staying:
                host = memory_of(given[index])
                if host.shareable:
                    buffers[index] = self._client.put_host(host)
                    addresses[index] = host.address
                    self._kept_bytes += self._types[index].nbytes
                    call.crossed(call.at, self._types[index].nbytes, shared=True)
        self._kept = Kept(buffers, addresses)


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    dtype = getattr(getattr(value, "dtype", None), "name", "")
    return type(value).__name__ if shape is None else f"a tensor of shape {shape} and type {dtype}"


# -- in Python -------------------------------------------------------------------------------------


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
        # Nobody else may hold the values of variables.
        return Submitted(list(map(Result, results)), done, given)

    def _buffer(self, value: Any, type: TensorType, call: Call) -> Buffer:
        if isinstance(value, Crossing):
            direct = value.direct
            if isinstance(direct, Result) and direct.buffer.client is self._client:
                return direct.buffer
            value = value.tensor()
        return put(self._client, value, type, call)


class Result:
    """A result as a buffer."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def tensor(self) -> Any:
        """A tensor over the buffer's memory; waits for the values."""
        return tensor_over(self.buffer)
