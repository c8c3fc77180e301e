"""Symbolic graphs: compiled for the sizes that calls bring, padded where that saves programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import fx

from pjrt_bridge.mixed.background import BACKGROUND
from pjrt_bridge.mixed.records import GraphRecord, Ledger, SegmentRecord
from pjrt_bridge.mixed.variants import LIMIT
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.graphs import CompiledGraph, HostGraph, SymbolicGraph
from pjrt_bridge.torch_interop.bind.segments import HostSegment
from pjrt_bridge.torch_interop.device.border import Residency
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.passes.padding import Padded, Padding
from pjrt_bridge.torch_interop.passes.padding.extents import Dims
from pjrt_bridge.torch_interop.passes.substitute_sizes import substitute_sizes
from pjrt_bridge.torch_interop.placement.split import node_names, operators

CompileSized = Callable[[fx.GraphModule, GraphRecord, frozenset[int]], CompiledGraph]
"""Compiles a graph of known sizes; with its record, and positions of what stays between calls."""

Object = Callable[[GraphRecord, str, Iterable[FallbackReason]], None]
"""Raises where the host is forbidden, else warns; with what is affected."""


class SymbolicCompiler:
    """Compiles the symbolic graphs of one Dynamo graph.

    Args:
        plugin: its name.
        options: the user's.
        ledger: of what is compiled.
        compile: compiles one size.
        object: told what runs on the host.
    """

    def __init__(
        self,
        plugin: str,
        options: BackendOptions,
        ledger: Ledger,
        compile: CompileSized,
        object: Object,
    ) -> None:
        self._plugin = plugin
        self._options = options
        self._ledger = ledger
        self._compile = compile
        self._object = object
        # The padded dimensions of what the forward graph saves, for the backward graph.
        self._extents: Mapping[str, Dims] = {}

    def compile(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> SymbolicGraph:
        """Compile a graph for the sizes that come; `record` tells what it is."""
        padding = None
        resident = Residency.of(graph.graph) is not None
        # Padding moves positions into range.
        if self._options.buckets and not self._options.check_indices and not resident:
            padding = Padding(graph, self._options.buckets, self._extents)
            if record.kind == "forward":
                self._extents = padding.extents
        uncompiled = None
        host = GraphRecord(
            record.kind, record.name, self._plugin, within=record.within, code=record.code
        )
        if self._options.fallback != "error":
            names = node_names(graph.graph)
            host.segments.append(SegmentRecord("host", operators(graph.graph), names))
            uncompiled = HostGraph(HostSegment(graph), host)
        compiler = partial(self._specialized, graph, record, static, padding)
        full = None if uncompiled is None else partial(self._too_many_sizes, host, padding)
        begin = None if resident or BACKGROUND.is_off else BACKGROUND.begin
        return SymbolicGraph(compiler, uncompiled, padding, full, begin)

    def _too_many_sizes(self, record: GraphRecord, padding: Padding | None) -> None:
        """Note and tell that PyTorch runs calls of sizes that are not compiled."""
        why = "" if padding is None else "; ".join(padding.reasons())
        text = f"its sizes keep changing: {LIMIT} are compiled, and PyTorch runs the others" + (
            f"; they are not padded because of {why}" if why else ""
        )
        record.segments[0].fallback_reasons.append(FallbackReason("", text, "sizes"))
        self._ledger.add(record)
        self._ledger.warn_once(
            f"plugin {self._plugin!r} does not run all calls of the {record.kind} graph: {text}. "
            "Fewer sizes help: pad them in the model, or use a cache of a fixed size"
        )

    def _specialized(
        self,
        graph: fx.GraphModule,
        model: GraphRecord,
        static: frozenset[int],
        padding: Padding | None,
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
            self._plugin,
            trigger,
            model.within,
            code=model.code,
            division=model.division,
        )
        if padding is not None and padded is not None:
            graph, static = padding.module, static - padding.positions
        try:
            specialized = substitute_sizes(graph, arguments)
            if padding is not None and padded is not None:
                padding.check(specialized, padded)
        except compat.DATA_DEPENDENT as error:
            reason = FallbackReason("", f"a size in it depends on data: {error}", "data")
            self._object(record, f"the {record.kind} graph", [reason])
            names = node_names(graph.graph)
            record.segments.append(SegmentRecord("host", operators(graph.graph), names, [reason]))
            self._ledger.add(record)
            return HostGraph(HostSegment(graph), record)
        return self._compile(specialized, record, static)
