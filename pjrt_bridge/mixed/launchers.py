"""Launchers start the program of a device segment: in C where that is offered, else in Python.

Both give the same: tensors, and results of other segments, go in; results come out that the next
segment takes as they are, and that become tensors when the framework asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pjrt_bridge.errors import DataError
from pjrt_bridge.mixed.adapter import Bindings, FrameworkAdapter
from pjrt_bridge.mixed.execution import (
    CallRecord,
    DeferredValue,
    Launched,
    ResidentValue,
    tensor_of,
)
from pjrt_bridge.mixed.pinned import PinnedInputs
from pjrt_bridge.runtime import Buffer, Executable, ShardedBuffer
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.dispatch.direct import End
from pjrt_bridge.runtime.dispatch.plans import BoundParameter
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.holders import held_once
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import run_deferred


class Launcher(Protocol):
    """Starts a program on the values of a segment."""

    def launch(self, values: Sequence[Any], call: CallRecord) -> Launched:
        """Start it on the values of a segment; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: a value of another shape or element type.
        """


def launcher_of(
    executable: Executable,
    bindings: Bindings,
    adapter: FrameworkAdapter,
    constants: Sequence[Buffer] = (),
) -> Launcher:
    """The fastest way to start a program.

    Args:
        executable: the compiled program.
        bindings: what it takes and gives.
        adapter: of the values' framework.
        constants: buffers of the parameters that have no position.
    """
    exchange = adapter.exchange()
    plan = None
    if exchange is not None:
        plan = executable.plan(
            bindings.parameters, bindings.results, exchange, targets=bindings.targets()
        )
    pinned = PinnedInputs(
        adapter, executable.client, bindings.parameters, constants, bindings.pinned
    )
    if plan is None:
        return BufferLauncher(executable, bindings, adapter, pinned)
    return DispatchLauncher(executable, plan, bindings, adapter, pinned)


class _ProgramInputs:
    """Chooses the values that a program is given."""

    def __init__(self, bindings: Bindings) -> None:
        self._takes = bindings.takes
        self._reads = bindings.reads

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        """The program's inputs, chosen from the values of a segment."""
        return self.with_read(values if self._takes is None else [values[at] for at in self._takes])

    def with_read(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values, and those that are read in each call."""
        return values if self._reads is None else (*values, *self._reads())


# -- in C ------------------------------------------------------------------------------------------


class DispatchLauncher:
    """Programs that the dispatcher in C starts.

    Attributes:
        plan: the dispatcher's.
        pinned: arguments that stay from call to call.
        parameters: of the program.
    """

    def __init__(
        self,
        executable: Executable,
        plan: Any,
        bindings: Bindings,
        adapter: FrameworkAdapter,
        pinned: PinnedInputs,
    ) -> None:
        # The plan does not keep it from being closed.
        self._executable = executable
        self.plan = plan
        self.pinned = pinned
        self.parameters = bindings.parameters
        self._given = _ProgramInputs(bindings)
        self._adapter = adapter
        self._specs = {item.position: item.spec for item in bindings.parameters}

    def launch(self, values: Sequence[Any], call: CallRecord) -> Launched:
        """Start the program on the values of a segment; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: a value of another shape or element type.
        """
        if callbacks.threads:
            callbacks.check()
        # Plugins may not have done with the memory of earlier launches when these ended.
        run_deferred()
        values = self._given(values)
        given = [value.direct if type(value) is DeferredValue else value for value in values]
        pinned = self.pinned.dispatched or self.pinned.renew(given, call)
        found = self.plan.launch(given, pinned.parts, None)
        if found is None or type(found) is int:
            found = self._launch_rearranged(found, values, given, call)
        call.crossed(call.at, found.shared, shared=True)
        if found.copied:
            call.crossed(call.at, found.copied, shared=False)
        launched: Launched = found
        return launched

    def _launch_rearranged(
        self, found: Any, values: Sequence[Any], given: list[Any], call: CallRecord
    ) -> Any:
        """Launch values some of which do not go in as they are.

        Args:
            found: position of such a value; None where a pinned value is in other memory.
            values: of the call.
            given: the same, as the dispatcher takes them.
            call: counts what crosses.
        """
        rearranged: set[int] = set()
        copies: set[int] = set()
        while found is None or type(found) is int:
            if found is None:
                self.pinned.moved(given, call)
            elif found in rearranged:
                raise DataError(
                    f"argument {found}: found {_described(given[found])}, which cannot be read, "
                    f"expected {self._specs[found].type}"
                )
            else:
                call.rearranged = True
                rearranged.add(found)
                value = tensor_of(values[found])
                given[found] = self._adapter.arranged(value, self._specs[found])
                if self._adapter.address(given[found]) != self._adapter.address(value):
                    copies.add(found)
            pinned = self.pinned.dispatched
            assert pinned is not None
            found = self.plan.launch(given, pinned.parts, copies)
        return found

    def call(self, values: Sequence[Any]) -> list[Any] | None:
        """The results for tensors, waited for; None where `launch` has to be called instead.

        Args:
            values: what the program is given, but for values that are read in each call.

        Raises:
            PjrtError: the plugin failed.
        """
        pinned = self.pinned.dispatched
        if pinned is None:
            return None
        run_deferred()
        found: list[Any] | None = self.plan.call(tuple(self._given.with_read(values)), pinned.parts)
        return found


def _described(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    name = getattr(dtype, "name", dtype)
    return type(value).__name__ if shape is None else f"a tensor of shape {shape} and type {name}"


# -- in Python -------------------------------------------------------------------------------------


class BufferLauncher:
    """Programs that take and give buffers, on any plugin.

    Attributes:
        executable: the program.
    """

    def __init__(
        self,
        executable: Executable,
        bindings: Bindings,
        adapter: FrameworkAdapter,
        pinned: PinnedInputs,
    ) -> None:
        self.executable = executable
        self._client = executable.client
        self._device = executable.devices[0]
        self._adapter = adapter
        self._given = _ProgramInputs(bindings)
        self._parameters = bindings.parameters
        self._results = bindings.results
        self._pinned = pinned

    def launch(self, values: Sequence[Any], call: CallRecord) -> Launched:
        """Start the program on the values of a segment; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: a value of another shape or element type.
        """
        given = self._given(values)
        pinned = self._pinned.buffers(given, call)
        buffers = [
            self._buffer(parameter, given, call) if buffer is None else buffer
            for parameter, buffer in zip(self._parameters, pinned, strict=True)
        ]
        results, done = self.executable.start(
            buffers, donate=donated(self._parameters, given, buffers)
        )
        outputs = [
            BufferOutput(buffer, spec, self._adapter)
            for buffer, spec in zip(results, self._results, strict=True)
        ]
        # Nothing else may refer to the values that were read for this call.
        return BufferLaunched(outputs, done, given)

    def _buffer(self, parameter: BoundParameter, given: Sequence[Any], call: CallRecord) -> Buffer:
        assert parameter.position is not None
        value, spec = given[parameter.position], parameter.spec
        if type(value) is DeferredValue:
            direct = value.direct
            if type(direct) is BufferOutput and direct.spec.lies_as(spec):
                return _on_one_device(parameter, direct.buffer)
            value = value.tensor()
        if isinstance(value, ResidentValue):
            return _on_one_device(parameter, value.buffer_as(spec))
        if isinstance(value, Buffer):
            return value
        host = self._adapter.host_array(value, spec)
        shared = (
            self._client.shares_host_memory
            and host.shareable
            and host.address == self._adapter.address(value)
        )
        call.crossed(call.at, spec.nbytes, shared=shared)
        return putting.put_host(self._client, host, self._device, writable=parameter.written)


def donated(
    parameters: Sequence[BoundParameter], values: Sequence[Any], arrays: Sequence[Any]
) -> list[int]:
    """The parameters whose memory a program may take: it writes there, and nobody else reads it.

    Args:
        parameters: of the program.
        values: that it is given.
        arrays: for each parameter that of its value; the caller has no other reference to it.
    """
    return [
        at
        for at, parameter in enumerate(parameters)
        if parameter.written
        and parameter.position is not None
        # Results of other segments may have readers that are still to come.
        and not isinstance(values[parameter.position], (DeferredValue, Buffer, ShardedBuffer))
        and held_once(arrays, at)
    ]


def _on_one_device(parameter: BoundParameter, array: AnyBuffer) -> Buffer:
    if isinstance(array, ShardedBuffer):
        raise DataError(
            f"argument {parameter.position}: found {array!r}, expected an array on one device"
        )
    return array


class BufferOutput:
    """A result as a buffer, or divided over a mesh."""

    __slots__ = ("_adapter", "buffer", "spec")

    def __init__(self, buffer: AnyBuffer, spec: ValueSpec, adapter: FrameworkAdapter) -> None:
        self.buffer = buffer
        self.spec = spec
        self._adapter = adapter

    def tensor(self) -> Any:
        """The framework's tensor over the buffer's memory; waits for the values."""
        return self._adapter.adopt(self.buffer, self.spec)


class BufferLaunched:
    """An execution of `Executable.start`, or of `ShardedExecutable.submit`."""

    __slots__ = ("_done", "_given", "outputs")

    def __init__(self, outputs: Sequence[BufferOutput], done: End, given: Sequence[Any]) -> None:
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
        """The framework's tensor over each result, once the end was waited for."""
        return [output.tensor() for output in self.outputs]
