"""Symbolic graphs: compiled for the sizes that calls bring, padded where that saves programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import fx

from pjrt_bridge.mixed.background import BACKGROUND
from pjrt_bridge.mixed.records import GraphRecord, SegmentRecord
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.changing_strides import ChangingStrides
from pjrt_bridge.torch_interop.bind.graphs import CompiledGraph, HostGraph, SymbolicGraph
from pjrt_bridge.torch_interop.bind.segments import HostSegment
from pjrt_bridge.torch_interop.compiling import fallbacks
from pjrt_bridge.torch_interop.compiling.host_calls import HostCalls
from pjrt_bridge.torch_interop.compiling.many_sizes import ManySizes
from pjrt_bridge.torch_interop.compiling.target import Target
from pjrt_bridge.torch_interop.emit.substitute_sizes import substitute_sizes
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.passes.padding import GraphPadding, Padded
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims, Size, Symbol
from pjrt_bridge.torch_interop.passes.padding.memory import HOST, PaddingMemory
from pjrt_bridge.torch_interop.placement.refusals import refused_for_types
from pjrt_bridge.torch_interop.placement.split import node_names, operators
from pjrt_bridge.torch_interop.resident.graphs.residency import Residency
from pjrt_bridge.torch_interop.resident.storages.padded import ResidentMemory
from pjrt_bridge.torch_interop.shared.place import SharedMemory

CompileSized = Callable[[fx.GraphModule, GraphRecord, frozenset[int]], CompiledGraph]
"""Compiles a graph of known sizes; with its record, and positions of what stays between calls."""


class SymbolicCompiler:
    """Compiles the symbolic graphs of one Dynamo graph.

    Args:
        target: what they are compiled for.
        compile: compiles one variant.
    """

    def __init__(self, target: Target, compile: CompileSized) -> None:
        self._target = target
        self._options = target.options
        self._compile = compile
        # A backward graph is compiled when it runs, where that is not known any more.
        self._changing = compat.sizes_are_known_to_change()
        # For the backward graph: the padded dimensions of what the forward graph saves, and sizes
        # that follow from others in calls of both.
        self._extents: Mapping[str, PaddedDims] = {}
        self._following: Mapping[Symbol, Size] = {}

    def compile(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> SymbolicGraph:
        """Compile a graph for the sizes that come; `record` tells what it is."""
        padding = None
        residency = Residency.of(graph.graph, self._target.devices[1:])
        if self._options.buckets and self._options.check_indices is not True:
            padding = GraphPadding(
                graph,
                self._options.buckets,
                self._extents,
                _memory_of(residency),
                # A backward graph computes with the positions of its forward graph.
                checks_positions=record.kind != "backward"
                and self._options.check_indices is not False,
                changing=self._changing,
                following=self._following,
                refused=refused_for_types,
            )
            if record.kind == "forward":
                self._extents, self._following = padding.extents, padding.following
        uncompiled = None
        host = GraphRecord(
            record.kind, record.name, record.plugin, within=record.within, code=record.code
        )
        # Other processes do not know what this one leaves to PyTorch, or when it is compiled.
        alone = not self._target.spans(graph.graph)
        # PyTorch would run each operator of resident tensors as a program of its own for each size.
        if alone and residency is None and self._options.fallback != "error":
            names = node_names(graph.graph)
            host.segments.append(SegmentRecord("host", operators(graph.graph), names))
            uncompiled = HostGraph(HostSegment(graph), host)
        each = None if residency is None else ManySizes(self._target, record.kind, padding)
        compiler = partial(self._specialized, graph, record, static, padding, each)
        on_host = None if uncompiled is None else HostCalls(self._target, host, padding).add
        begin = BACKGROUND.begin if alone and not BACKGROUND.is_off else None
        # Resident tensors have no gaps.
        strides = ChangingStrides.of(graph.graph) if residency is None else None
        return SymbolicGraph(compiler, uncompiled, padding, strides, on_host, begin)

    def _specialized(
        self,
        graph: fx.GraphModule,
        model: GraphRecord,
        static: frozenset[int],
        padding: GraphPadding | None,
        each: ManySizes | None,
        arguments: list[Any],
        trigger: str | None,
        padded: Padded | None,
    ) -> CompiledGraph:
        refusals = [] if padding is None else padding.refusals(arguments)
        if trigger and refusals:
            trigger += f"; not padded to a bucket because of {'; '.join(refusals)}"
        record = GraphRecord(
            model.kind,
            model.name,
            model.plugin,
            trigger,
            model.within,
            code=model.code,
            division=model.division,
        )
        if padded is None and each is not None:
            each.add()
        if padding is not None and padded is not None:
            graph, static = padding.module, static - padding.positions
        try:
            with nullcontext() if padded is None else compat.errors_unlogged():
                specialized = substitute_sizes(graph, arguments)
            if padding is not None and padded is not None:
                padding.check(specialized, padded)
        except compat.DATA_DEPENDENT as error:
            reason = FallbackReason("", f"a size in it depends on data: {error}", "data")
            fallbacks.tell(self._target, record, f"the {record.kind} graph", [reason])
            names = node_names(graph.graph)
            record.segments.append(SegmentRecord("host", operators(graph.graph), names, [reason]))
            self._target.ledger.add(record)
            return HostGraph(HostSegment(graph), record)
        except RuntimeError as error:
            if padding is None or padded is None:
                raise
            # An operator refuses the padded sizes, not those of the call.
            raise padding.refused(padded, str(error)) from error
        return self._compile(specialized, record, static)


def _memory_of(residency: Residency | None) -> PaddingMemory:
    """The memory that the tensors of a graph are in."""
    if residency is None:
        return HOST
    if residency.kind == NAME:
        return ResidentMemory(residency.index)
    return SharedMemory(residency.kind, residency.index)
