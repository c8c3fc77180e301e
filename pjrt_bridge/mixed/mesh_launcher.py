"""Device segments over a mesh: compiled for the shardings of the values that come.

What is divided already stays as it is. Of the rest the division of the segment says how it is put;
where it says nothing Shardy's propagation decides.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pjrt_bridge.errors import DataError
from pjrt_bridge.mixed.adapter import Bindings, Computed, FrameworkAdapter, SegmentInput
from pjrt_bridge.mixed.execution import CallRecord, DeferredValue, ResidentValue
from pjrt_bridge.mixed.launchers import BufferLaunched, BufferOutput, donated
from pjrt_bridge.runtime import Buffer, ShardedBuffer, ShardedExecutable
from pjrt_bridge.runtime.dispatch.plans import BoundParameter
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import MeshProgram, common_mesh, placed
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.sharding.sharding import Sharding


@dataclass(frozen=True)
class Division:
    """The division over a mesh of those values of a segment that are not divided yet.

    Attributes:
        mesh: that values have to be divided over; None: that of the values, of which one is.
        batch_axes: axes over which the first dimension of a batch is divided.
        replicated: positions of values that each device has as a whole.
        batches: positions of batches.
        inputs: for positions of values the numbers by which gradients are known.
        gradients: for outputs that are gradients the number of what they are the gradient of.
        shardings: of the values with these numbers, in the order of their dimensions; a forward
            segment writes them, a backward segment reads them.
    """

    mesh: Mesh | None = None
    batch_axes: tuple[str, ...] = ()
    replicated: frozenset[int] = frozenset()
    batches: frozenset[int] = frozenset()
    inputs: Mapping[int, int] = field(default_factory=dict)
    gradients: Mapping[int, int] = field(default_factory=dict)
    shardings: MutableMapping[int, Sharding] = field(default_factory=dict)


class MeshLauncher:
    """Starts a program over the mesh of the values that it is given.

    Args:
        program: divides and compiles.
        bindings: what it takes and gives.
        adapter: of the values' framework.
        constants: the arrays of the parameters that have no position.
        division: how values are divided that are not.
        compiled: told each executable, and the seconds that it took to compile.
    """

    def __init__(
        self,
        program: MeshProgram,
        bindings: Bindings,
        adapter: FrameworkAdapter,
        constants: Sequence[HostArray],
        division: Division,
        compiled: Callable[[ShardedExecutable, float], None],
    ) -> None:
        self._program = program
        self._parameters = bindings.parameters
        self._specs = bindings.results
        self._adapter = adapter
        self._constants = constants
        self._division = division
        self._compiled = compiled
        self._known: dict[Mesh, list[ShardedBuffer]] = {}
        written = {
            target.position: result
            for target, result in bindings.updates
            if isinstance(target, SegmentInput)
        }
        self._written = {
            at: written[parameter.position]
            for at, parameter in enumerate(bindings.parameters)
            if parameter.position in written
        }
        self._gradients = {
            item.result: division.gradients[at]
            for at, item in enumerate(bindings.outputs)
            if isinstance(item, Computed) and at in division.gradients
        }

    def launch(self, values: Sequence[Any], call: CallRecord) -> BufferLaunched:
        """Start the program on the values of a segment; counts what crosses.

        Raises:
            PjrtError: the plugin failed.
            DataError: values over several meshes, or over none.
        """
        taken = [self._taken(parameter, values) for parameter in self._parameters]
        mesh = common_mesh(taken) or self._division.mesh
        if mesh is not None and self._division.mesh not in (None, mesh):
            raise DataError(
                f"program {self._program.program.name!r}: found values over {mesh}, expected "
                f"{self._division.mesh}, which the options or constraints of the graph name"
            )
        if mesh is None:
            raise DataError(
                f"program {self._program.program.name!r}: found no value over a mesh, expected one"
            )
        parameters = [self._sharding(at, array, mesh) for at, array in enumerate(taken)]
        executable = self._executable(mesh, parameters)
        constants = iter(self._constants_over(mesh) if self._constants else ())
        numbers: dict[Any, ShardedBuffer] = {}
        given = [
            next(constants)
            if array is None
            else self._placed(at, array, sharding, values, call, numbers)
            for at, (array, sharding) in enumerate(
                zip(taken, executable.program.parameters, strict=True)
            )
        ]
        self._note(executable.program.parameters)
        del taken
        results, done = executable.submit(given, donate=donated(self._parameters, values, given))
        outputs = [
            BufferOutput(array, spec, self._adapter)
            for array, spec in zip(results, self._specs, strict=True)
        ]
        return BufferLaunched(outputs, done, given)

    def _taken(self, parameter: BoundParameter, values: Sequence[Any]) -> Any:
        """The array that a value is; of the host, on one device or on all. None for a constant."""
        if parameter.position is None:
            return None
        value, spec = values[parameter.position], parameter.spec
        if isinstance(value, DeferredValue):
            direct = value.direct
            if isinstance(direct, BufferOutput) and direct.spec.lies_as(spec):
                return direct.buffer
            value = value.tensor()
        if isinstance(value, ResidentValue):
            return value.buffer_as(spec)
        if isinstance(value, (Buffer, ShardedBuffer)):
            return value
        return self._adapter.host_array(value, spec)

    def _sharding(self, at: int, array: Any, mesh: Mesh) -> Sharding | None:
        """How a parameter is to be divided; None leaves it to propagation."""
        if isinstance(array, ShardedBuffer):
            return array.sharding
        parameter = self._parameters[at]
        position, memory = parameter.position, parameter.spec.memory
        if position in self._division.batches and at not in self._written:
            return _batch(parameter.spec, mesh, self._division.batch_axes)
        whole = position is None or position in self._division.replicated
        if (whole and at not in self._written) or not memory.rank:
            return Sharding.replicated(mesh, memory.rank)
        return None

    def _executable(self, mesh: Mesh, parameters: Sequence[Sharding | None]) -> ShardedExecutable:
        results: list[Sharding | None] = [None] * len(self._specs)
        for result, number in self._gradients.items():
            found = self._division.shardings.get(number)
            if found is not None and found.mesh == mesh:
                results[result] = in_memory(found, self._specs[result])
        for at, result in self._written.items():
            if self._parameters[at].spec.lies_as(self._specs[result]):
                results[result] = parameters[at]
        before, started = len(self._program.executables), time.perf_counter()
        executable = self._program.executable(mesh, parameters, results)
        if len(self._program.executables) > before:
            self._compiled(executable, time.perf_counter() - started)
        return executable

    def _constants_over(self, mesh: Mesh) -> list[ShardedBuffer]:
        found = self._known.get(mesh)
        if found is None:
            client = self._program.client
            found = self._known[mesh] = [
                ShardedBuffer.put_host(client, host, Sharding.replicated(mesh, len(host.shape)))
                for host in self._constants
            ]
        return found

    def _placed(
        self,
        at: int,
        array: Any,
        sharding: Sharding,
        values: Sequence[Any],
        call: CallRecord,
        numbers: dict[Any, ShardedBuffer],
    ) -> ShardedBuffer:
        if isinstance(array, HostArray):
            key = None
            if not array.shape:
                # Optimizers count their steps for each parameter; equal numbers are put once.
                size = self._parameters[at].spec.nbytes
                key = array.dtype, ctypes.string_at(array.address, size)
                if key in numbers:
                    return numbers[key]
            call.crossed(call.at, self._parameters[at].spec.nbytes, shared=False)
            if key is not None or at in self._written:
                # Its new value comes when one device has it, and the others may still read the old.
                array = array.copied()
            made = ShardedBuffer.put_host(self._program.client, array, sharding)
            if key is not None:
                numbers[key] = made
            return made
        found = placed(array, sharding)
        position = self._parameters[at].position
        # What is written gets its new elements as the program divides them.
        if found is not array and position is not None and at not in self._written:
            value = values[position]
            if isinstance(value, ResidentValue):
                # Further calls find it where it is needed.
                value.place(array, found)
        return found

    def _note(self, parameters: Sequence[Sharding]) -> None:
        """Note how inputs are divided, for their gradients."""
        for parameter, sharding in zip(self._parameters, parameters, strict=True):
            number = self._division.inputs.get(
                -1 if parameter.position is None else parameter.position
            )
            if number is not None:
                found = of_dimensions(sharding, parameter.spec)
                if found is not None:
                    self._division.shardings[number] = found


def _batch(spec: ValueSpec, mesh: Mesh, axes: Sequence[str]) -> Sharding:
    found = in_memory(Sharding.of_batch(mesh, axes, spec.type.shape), spec)
    return Sharding.replicated(mesh, spec.memory.rank) if found is None else found


def in_memory(sharding: Sharding, spec: ValueSpec) -> Sharding | None:
    """The sharding of the array in memory, of that of an array's dimensions."""
    return _permuted(sharding, spec, spec.order)


def of_dimensions(sharding: Sharding, spec: ValueSpec) -> Sharding | None:
    """The sharding of an array's dimensions, of that of the array in memory."""
    return _permuted(sharding, spec, spec.inverse)


def _permuted(sharding: Sharding, spec: ValueSpec, order: Sequence[int] | None) -> Sharding | None:
    """The sharding with its dimensions in another order; None where elements repeat in memory."""
    if spec.once != spec.type or len(sharding.dimensions) != spec.type.rank:
        return None
    if order is None:
        return sharding
    return Sharding(sharding.mesh, tuple(sharding.dimensions[at] for at in order))
