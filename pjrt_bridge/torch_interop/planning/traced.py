"""Traced models, which are divided over meshes and sent to compilers without any device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.mixed.adapter import Computed, SegmentInput
from pjrt_bridge.stablehlo import Mesh, ShardedProgram, Sharding, shard
from pjrt_bridge.torch_interop.emit.program import Emitted
from pjrt_bridge.torch_interop.exporting.capture import CapturedGraph, Source
from pjrt_bridge.torch_interop.exporting.emission import emitted_row_major
from pjrt_bridge.torch_interop.exporting.lowering import CONTEXT, lift_random_keys, not_lowerable
from pjrt_bridge.torch_interop.meshes.constraint import lowering_over_mesh, move_constraints
from pjrt_bridge.torch_interop.meshes.mesh import BATCH_AXES
from pjrt_bridge.torch_interop.passes.pipeline import rewrite
from pjrt_bridge.torch_interop.placement.predicate import Placement
from pjrt_bridge.torch_interop.sharding.plans import AxisNames, check_divides, divided_further

PARAMETERS_AXIS = "fsdp"
"""The axis over which each parameter is divided, where a mesh has it."""
_OPTIMIZER = "optimizer"


@dataclass
class TracedModel:
    """A forward or training step as one graph, for any mesh.

    Attributes:
        name: of the programs.
        captured: the graph, and what it takes and gives.
        axes: by names of parameters, how a plan divides them.
        trained: names of the parameters whose gradients are the last results.
    """

    name: str
    captured: CapturedGraph
    axes: Mapping[str, AxisNames] = field(default_factory=dict)
    trained: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(
            source.value.numel() for source in self.captured.sources if source.kind == "parameter"
        )

    def over(self, mesh: Mesh) -> ShardedProgram:
        """The program over a mesh, with all parameters and results divided.

        Parameters are divided as the plan says over axes that the mesh has, and over the axis
        `fsdp`; gradients, new values and what an optimizer keeps as their parameters; arguments of
        the call over `dp` and `fsdp`. The rest is found by Shardy's propagation.

        Raises:
            ProgramError: a dimension of a parameter that does not divide.
            NotExportable: operators that do not lower; the text lists all of them.
        """
        known = {
            source.name: self._parameter(source, mesh)
            for source in self.captured.sources
            if source.is_weight and source.kind != _OPTIMIZER
        }
        emitted = self._emit(mesh)
        sources = self.captured.sources
        given = [
            _sharding(sources[position], mesh, known) if position < len(sources) else None
            for position in emitted.inputs
        ]
        parameters = [
            Sharding.replicated(mesh, parameter.type.rank) if sharding is None else sharding
            for parameter, sharding in zip(
                emitted.program.signature.parameters,
                [*given, *[None] * len(emitted.captured)],
                strict=True,
            )
        ]
        results: list[Sharding | None] = [None] * len(emitted.program.signature.results)
        for target, result in emitted.bindings.updates:
            assert isinstance(target, SegmentInput)
            results[result] = _sharding(sources[target.position], mesh, known)
        last = emitted.bindings.outputs[len(emitted.bindings.outputs) - len(self.trained) :]
        for name, output in zip(self.trained, last, strict=True):
            if isinstance(output, Computed):
                results[output.result] = known[name]
        return shard(emitted.program, mesh, parameters, results)

    def _parameter(self, source: Source, mesh: Mesh) -> Sharding:
        shape = tuple(source.value.shape)
        planned = self.axes.get(source.name, [[] for _ in shape])
        axes = [[name for name in names if name in mesh.sizes] for names in planned]
        if PARAMETERS_AXIS in mesh.sizes and source.kind == "parameter":
            axes = divided_further(shape, axes, mesh.sizes, PARAMETERS_AXIS)
        return check_divides(shape, mesh, axes, source.name)

    def _emit(self, mesh: Mesh) -> Emitted:
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.captured.module.graph, {}))
        move_constraints(graph, mesh)
        module, _ = lift_random_keys(fx.GraphModule(self.captured.module, graph))
        module = rewrite(module, CONTEXT, "sized").module
        if reasons := Placement(lowering_over_mesh).fallback_reasons(module.graph):
            raise not_lowerable(list(reasons.values()), self.name)
        return emitted_row_major(module, self.name, {}, lowering_over_mesh, in_place=True)


def _sharding(source: Source, mesh: Mesh, known: Mapping[str, Sharding]) -> Sharding:
    shape = tuple(source.value.shape)
    if source.kind == "input":
        return Sharding.of_batch(mesh, BATCH_AXES, shape)
    if source.kind == _OPTIMIZER:
        # What is kept of each element lies as the parameter, whose name ends the state's.
        _, _, rest = source.name.partition(".")
        found = known.get(rest.partition(".")[2])
        if found is not None and _fits(found, shape):
            return found
        return Sharding.replicated(mesh, len(shape))
    return known[source.name]


def _fits(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    try:
        sharding.shard_shape(shape)
    except ProgramError:
        return False
    return True
