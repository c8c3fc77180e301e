"""Budgets: the memory and cost of a program over a mesh on each device, and whether it fits.

A plugin's compiler is asked where there is one for the topology. Elsewhere the program is divided
by Shardy's own passes, and its cost estimated.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pjrt_bridge.errors import (
    OptionError,
    PjrtError,
    PluginNotFound,
    ResourceExhausted,
    Unimplemented,
)
from pjrt_bridge.registry.ahead import topology as describe
from pjrt_bridge.registry.brought import topology_spec
from pjrt_bridge.registry.spec import DeviceFigures
from pjrt_bridge.runtime import CompiledExecutable, CompileOptions, Topology
from pjrt_bridge.runtime.core.description import MemoryStats
from pjrt_bridge.runtime.objects.collectives import Collective, totals
from pjrt_bridge.stablehlo import ShardedProgram, TensorType
from pjrt_bridge.stablehlo.cost import Cost, estimate
from pjrt_bridge.wrong_arguments import checked

if TYPE_CHECKING:
    from pjrt_bridge.stablehlo import Sharding
    from pjrt_bridge.stablehlo.sharding.mesh import Mesh


@dataclass(frozen=True)
class Budget:
    """The memory and cost of one execution of a program over a mesh, on each device.

    Attributes:
        mesh: the devices.
        topology: what it was asked for; None for devices that nothing is known of.
        source: whose account it is, for people.
        compiled: the program; None where no compiler made one.
        memory: bytes.
        memory_limit: bytes that the device has for a program; None where that is unknown.
        flops: arithmetic operations on elements; None where the compiler does not tell.
        bytes_accessed: bytes between the device and its memory; likewise.
        collectives: operations by which devices exchange data.
        figures: of the device; None where nobody knows them.
        idle_axes: of the mesh, that divide nothing: the devices along them do the same work.
        refused: why the compiler refused the program for want of memory; None where it did not.
        seconds: that the account took.
    """

    mesh: Mesh
    topology: str | None
    source: str
    compiled: CompiledExecutable | None
    memory: MemoryStats
    memory_limit: int | None
    flops: float | None
    bytes_accessed: float | None
    collectives: tuple[Collective, ...]
    figures: DeviceFigures | None
    idle_axes: tuple[str, ...]
    refused: str | None
    seconds: float

    @property
    def is_estimate(self) -> bool:
        """Whether no compiler made the account."""
        return self.compiled is None

    @property
    def fits(self) -> bool | None:
        """Whether the device has the memory; None where its memory is unknown."""
        if self.refused is not None:
            return False
        return None if self.memory_limit is None else self.memory.needed <= self.memory_limit

    @property
    def exchanged(self) -> int:
        """Bytes that the device gets by collective operations."""
        return sum(one.nbytes for one in self.collectives)

    @property
    def times(self) -> dict[str, float]:
        """Seconds that computing, memory and communication take at best; empty where unknown."""
        if self.figures is None:
            return {}
        asked = {
            "compute": (self.flops, self.figures.flops),
            "memory": (self.bytes_accessed, self.figures.bandwidth),
            "communication": (self.exchanged, self.figures.links),
        }
        return {name: amount / rate for name, (amount, rate) in asked.items() if amount is not None}

    @property
    def bound(self) -> str | None:
        """What takes longest: compute, memory or communication; None where that is unknown."""
        return max(self.times, key=self.times.__getitem__, default=None)


@checked
def budget(
    program: ShardedProgram,
    topology: str | Topology | None = None,
    *,
    plugin: str | None = None,
    only_estimate: bool = False,
    figures: DeviceFigures | None = None,
    options: CompileOptions | None = None,
) -> Budget:
    """The budget of a program over a mesh of a topology's devices, which need not be present.

    Args:
        program: see `pjrt_bridge.stablehlo.shard`.
        topology: a name such as "v5e:4x4", or a Topology; None: some devices.
        plugin: whose topology it is; None: the one whose package knows the name.
        only_estimate: ask no compiler, which may take minutes.
        figures: of a device; None: those that the topology's package knows.
        options: for compiling, of which the compiler flags count.

    Raises:
        OptionError: a topology that cannot be meant, or with fewer devices than the mesh.
        PluginNotFound: no package knows the topology, or its library is missing; not for estimates.
        ProgramError: Shardy cannot divide the program.
        PjrtError: what the plugin answered, but that the program does not fit.
    """
    started = time.perf_counter()
    name = topology.name if isinstance(topology, Topology) else topology
    spec = None if name is None else topology_spec(plugin, name, {})
    if figures is None and spec is not None:
        figures = spec.figures
    devices, reason = _devices(topology, plugin, only_estimate=only_estimate)
    known = None if spec is None else spec.devices
    count = known if devices is None else len(devices.devices)
    if count is not None and count < program.mesh.size:
        raise OptionError(
            f"{program.mesh} needs {program.mesh.size} devices, the topology {name!r} has {count}"
        )
    compiled, refused = None, None
    if devices is not None and not only_estimate:
        try:
            compiled = devices.compile(program.program, options=_options(program, options))
        except ResourceExhausted as error:
            refused = str(error)
            reason = f"plugin {devices.plugin.name!r} finds that it does not fit"
        except Unimplemented as error:
            reason = _line(error)
    limit = devices.memory_limit if devices is not None else None
    if limit is None and figures is not None:
        limit = figures.memory
    if compiled is None:
        cost = estimate(program.program)
        return Budget(
            program.mesh,
            name,
            f"an estimate of the bridge ({reason})",
            None,
            _memory(program, cost),
            limit,
            cost.flops,
            cost.bytes_accessed,
            totals(cost.exchanged),
            figures,
            program.idle_axes,
            refused,
            time.perf_counter() - started,
        )
    told = _cost(compiled)
    return Budget(
        program.mesh,
        name,
        f"the compiler of plugin {compiled.api.plugin!r}",
        compiled,
        compiled.memory_stats(),
        limit,
        told.get("flops"),
        told.get("bytes accessed"),
        compiled.collectives(),
        figures,
        program.idle_axes,
        None,
        time.perf_counter() - started,
    )


def _devices(
    topology: str | Topology | None, plugin: str | None, *, only_estimate: bool
) -> tuple[Topology | None, str]:
    """The devices, or why there is no account of them."""
    if isinstance(topology, Topology):
        return topology, "as asked for"
    if topology is None:
        return None, "no topology is given"
    try:
        return describe(topology, plugin), "as asked for"
    except PluginNotFound as error:
        if not only_estimate:
            raise PluginNotFound(f"{error}; only_estimate=True asks no compiler") from error
        return None, f"as asked for; {_line(error)}"
    except Unimplemented as error:
        return None, _line(error)


def _options(program: ShardedProgram, options: CompileOptions | None) -> CompileOptions:
    return CompileOptions(
        num_partitions=program.mesh.size,
        use_shardy_partitioner=True,
        env={} if options is None else options.env,
    )


def _memory(program: ShardedProgram, cost: Cost) -> MemoryStats:
    signature = program.program.signature
    parameters = [
        _shard(parameter.type, sharding)
        for parameter, sharding in zip(signature.parameters, program.parameters, strict=True)
    ]
    results = [
        _shard(result.type, sharding)
        for result, sharding in zip(signature.results, program.results, strict=True)
    ]
    aliased = [parameter.alias for parameter in signature.parameters]
    return MemoryStats(
        generated_code=0,
        arguments=sum(parameters),
        outputs=sum(results),
        aliased=sum(results[at] for at in aliased if at is not None),
        temporaries=cost.temporaries,
    )


def _shard(type: TensorType, sharding: Sharding) -> int:
    return math.prod(sharding.shard_shape(type.shape)) * type.dtype.itemsize


def _cost(compiled: CompiledExecutable) -> dict[str, float]:
    try:
        told = compiled.cost()
    except PjrtError:
        return {}
    return {name: float(value) for name, value in told.items() if isinstance(value, float)}


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(":")
