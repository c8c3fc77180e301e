"""From ATen graphs to what runs them: place, split, emit, compile, and record what became of each.

A graph of which every node lowers becomes one StableHLO program; of any other the parts that lower
do, and PyTorch runs the rest between them. Sizes that only a call knows are compiled when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

from torch import fx

from pjrt_bridge import timeline
from pjrt_bridge.errors import (
    DEVICE_FAILURES,
    DeviceError,
    FallbackForbidden,
    PjrtBridgeError,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.mixed.execution import Runner
from pjrt_bridge.mixed.records import GraphRecord, Ledger, SegmentRecord
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.report.fallback_reason import FallbackReason, UnintendedFallback
from pjrt_bridge.runtime import Client, Device, Executable
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.bind.entrance import Entrance
from pjrt_bridge.torch_interop.bind.graphs import (
    CompiledGraph,
    DeviceGraph,
    HostGraph,
    MixedGraph,
    PlainGraph,
    RewrittenGraph,
    run,
)
from pjrt_bridge.torch_interop.bind.segments import HostSegment, device_segment
from pjrt_bridge.torch_interop.bind.sizes import is_symbolic
from pjrt_bridge.torch_interop.compiling_records import (
    counting,
    name_of_segment,
    segment_record,
)
from pjrt_bridge.torch_interop.compiling_sizes import SymbolicCompiler
from pjrt_bridge.torch_interop.device.border import (
    RESIDENT,
    Residency,
    ResidentGraph,
    on_host_terms,
)
from pjrt_bridge.torch_interop.device.chosen import chosen
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.emit.lookup import kernels_of, lookup
from pjrt_bridge.torch_interop.emit.program import Emitted, emit
from pjrt_bridge.torch_interop.ledger import LEDGER
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.nodes import is_mutation, is_size_computation
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.passes.pipeline import Context, Rewritten, rewrite
from pjrt_bridge.torch_interop.placement.calibration import slower_operators
from pjrt_bridge.torch_interop.placement.predicate import Placement
from pjrt_bridge.torch_interop.placement.split import Part, node_names, operators, split

_FAILURES = (NotLowerable, *DEVICE_FAILURES, ProgramError, UnsupportedDtype)
_COMPILING = 4
"""Programs of one graph that are compiled at the same time."""


class Compiler:
    """Compiles the ATen graphs of one Dynamo graph for one client.

    Args:
        client: of the plugin that runs them.
        options: the user's.
        division: see `GraphRecord.division`.
        ledger: of what is compiled, and of the warnings.
    """

    def __init__(
        self,
        client: Client,
        options: BackendOptions,
        division: str | None = None,
        ledger: Ledger = LEDGER,
    ) -> None:
        self._client = client
        self._plugin = client.plugin.name
        self._options = options
        self._division = division
        self._ledger = ledger
        self._kernels = kernels_of(client)
        self._lookup = lookup(client, self._kernels)
        self._orders = options.orders()
        # Who forbids the host wants everything on the device.
        weighed = options.placement == "auto" and options.fallback == "host"
        self._slower = slower_operators(client) if weighed else {}
        self._static: frozenset[int] = frozenset()
        self._entrance: Entrance | None = None
        self._device: Device | None = None
        self._adapter = ADAPTER
        self._sizes = SymbolicCompiler(self._plugin, options, ledger, self._compile, self._object)

    def entrance(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo's code is to call: what AOTAutograd made, or a fast path before it."""
        return compiled if self._entrance is None else self._entrance.before(compiled)

    def compile(
        self, kind: str, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[list[Any]], Any]:
        """Compile one ATen graph into a boxed function.

        Args:
            kind: `"inference"`, `"forward"` or `"backward"`.
            graph: functional but for the new values of arguments at its end.
            example_inputs: not used; the graph holds what is known of its inputs.

        Raises:
            FallbackForbidden: it cannot run on the device, and the host is forbidden.
        """
        if kind == "backward":
            static = compat.saved_inputs(graph.graph, self._static)
        else:
            static = self._static = compat.static_inputs()
            compat.donate_nothing()
        context = Context(
            kind,
            returned=compat.returned(kind),
            orders=self._orders,
            keeps=self._options.wants_on_host,
            check_indices=self._options.check_indices,
        )
        rewritten = rewrite(graph, context, sized=False)
        record = GraphRecord(
            kind, kind, self._plugin, code=compat.compile_id(), division=self._division
        )
        start: Callable[[list[Any]], Any]
        if is_symbolic(rewritten.module.graph):
            start = self._sizes.compile(rewritten.module, record, static).run
        else:
            compiled = self._compile(rewritten.module, record, static)
            start = partial(run, compiled)
            if (
                kind == "inference"
                and isinstance(compiled, DeviceGraph)
                and not rewritten.steps
                and compat.passes_through(len(graph.graph.find_nodes(op="placeholder")))
            ):
                self._entrance = compiled.fast_path()
        return compat.boxed(partial(rewritten.call, start) if rewritten.steps else start)

    def rewrite_call(
        self, graph: fx.GraphModule, kind: str
    ) -> tuple[fx.GraphModule, tuple[Rewritten, ...]]:
        """Apply the passes to the graph of an operator that is called on resident tensors.

        Args:
            graph: functional, over arrays that lie in order; it has known sizes.
            kind: see `compile`.

        Returns:
            The graph, and what leads to its calls, the first to be called first.
        """
        context = Context(
            kind,
            returned=compat.Returned(inference=True),
            check_indices=self._options.check_indices,
        )
        first = rewrite(graph, context, sized=False)
        second = rewrite(first.module, context, sized=True)
        return second.module, (first, second)

    def compile_rewritten(
        self, graph: fx.GraphModule, record: GraphRecord, index: int
    ) -> PlainGraph:
        """Compile a graph that `rewrite_call` gave, or several as one, for a device."""
        return self._for_device(index)._compile_plain(graph, record, frozenset())

    def lowers(self, graph: fx.GraphModule) -> bool:
        """Whether all of a graph can be on the device."""
        placement = Placement(self._lookup, self._options.wants_on_host, self._slower)
        return not placement.fallback_reasons(graph.graph)

    # -- one graph ---------------------------------------------------------------------------------

    def _compile(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> CompiledGraph:
        """Compile a graph whose inputs have concrete sizes."""
        context = Context(
            record.kind,
            keeps=self._options.wants_on_host,
            check_indices=self._options.check_indices,
        )
        rewritten = rewrite(graph, context, sized=True)
        compiled = self._compile_rewritten(rewritten.module, record, static)
        return RewrittenGraph(compiled, rewritten) if rewritten.steps else compiled

    def _compile_rewritten(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> CompiledGraph:
        """Compile a graph that all passes were applied to."""
        residency = Residency.of(graph.graph)
        if residency is None:
            return self._compile_plain(graph, record, static)
        compiler = self._for_device(residency.index)
        compiled = compiler._compile_plain(on_host_terms(graph), record, frozenset())
        return ResidentGraph(compiled, residency)

    def _for_device(self, index: int) -> Compiler:
        """What compiles graphs over resident tensors.

        Raises:
            DeviceError: these tensors are on another client's device.
        """
        client, device = chosen(index)
        if self._options.plugin is not None and client.plugin.name != self._plugin:
            raise DeviceError(
                f"plugin {self._plugin!r} was asked for, and the tensors of the graph are on "
                f"device '{NAME}', which is plugin {client.plugin.name!r}"
            )
        found = Compiler(client, self._options, self._division, self._ledger)
        found._device, found._adapter, found._slower = device, RESIDENT, {}
        return found

    def _compile_plain(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> PlainGraph:
        """Compile a graph of host tensors."""
        if all(map(_only_hands_on, graph.graph.nodes)):
            record.segments.append(SegmentRecord("host", operators(graph.graph)))
            return self._on_host(HostSegment(graph), record)
        with counting(record, "lowering_seconds"), timeline.span(f"place {record.name}"):
            placement = Placement(self._lookup, self._options.wants_on_host, self._slower)
            reasons = placement.fallback_reasons(graph.graph)
        self._object(record, f"the {record.kind} graph", reasons.values())
        if reasons or self._options.min_segment > 1:
            return self._compile_parts(graph, record, static, reasons)
        host = HostSegment(graph)
        segment = SegmentRecord("device", operators(graph.graph), node_names(graph.graph))
        record.segments.append(segment)
        try:
            emitted = self._emit(record.name, graph, record, static)
            executable = self._compile_program(emitted, segment)
            compiled = self._segment(executable, emitted, record, segment, static, host)
        except _FAILURES as error:
            self._failed(record, segment, error)
            return self._on_host(host, record)
        self._ledger.add(record)
        return DeviceGraph(compiled, record)

    def _compile_parts(
        self,
        graph: fx.GraphModule,
        record: GraphRecord,
        static: frozenset[int],
        reasons: Mapping[str, FallbackReason],
    ) -> PlainGraph:
        """Compile what can run on the device, and leave the rest to PyTorch."""
        if any(node.name in reasons and is_mutation(node) for node in graph.graph.nodes):
            record.segments.append(
                SegmentRecord(
                    "host",
                    operators(graph.graph),
                    node_names(graph.graph),
                    list(reasons.values()),
                )
            )
            return self._on_host(HostSegment(graph), record)
        parts = split(graph, reasons, min_segment=self._options.min_segment)
        record.segments += map(segment_record, parts.parts)
        # Segments depend on each other's values, not on each other's programs.
        with ThreadPoolExecutor(_COMPILING, "pjrt-bridge compiles") as pool:
            begun = [
                self._begin(index, part, record, segment, static, pool)
                for index, (part, segment) in enumerate(
                    zip(parts.parts, record.segments, strict=True)
                )
            ]
            runners = [ready() for ready in begun]
        self._ledger.add(record)
        return MixedGraph(parts, runners, record)

    def _begin(
        self,
        index: int,
        part: Part,
        record: GraphRecord,
        segment: SegmentRecord,
        static: frozenset[int],
        pool: Executor,
    ) -> Callable[[], Runner]:
        """Emit a part, and begin to compile it; what is returned waits for that."""
        host = HostSegment(part.module)
        if not part.on_device:
            return lambda: host.start
        name = f"{record.name}_{index}"
        if part.symbolic:
            inner = GraphRecord(record.kind, name, self._plugin, within=record, code=record.code)
            symbolic = self._sizes.compile(part.module, inner, frozenset())
            return lambda: symbolic.start
        inputs = part.inputs_among(static)
        try:
            emitted = self._emit(name, part.module, record, inputs)
        except _FAILURES as error:
            self._failed(record, segment, error)
            return lambda: host.start
        compiling = pool.submit(self._compile_program, emitted, segment)

        def ready() -> Runner:
            try:
                executable = compiling.result()
                device = self._segment(executable, emitted, record, segment, inputs, host)
                return device.start
            except _FAILURES as error:
                self._failed(record, segment, error)
                return host.start

        return ready

    def _emit(
        self, name: str, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> Emitted:
        with counting(record, "lowering_seconds"), timeline.span(f"emit {name}"):
            return emit(
                graph,
                self._lookup,
                name=name,
                in_place=self._client.shares_host_memory,
                argument_specs=dict.fromkeys(static, self._orders.parameter),
                kernels=self._kernels,
                excess_precision=self._options.excess_precision,
            )

    def _compile_program(self, emitted: Emitted, segment: SegmentRecord) -> Executable:
        with counting(segment, "compile_seconds"):
            executable = self._client.compile(
                emitted.program, options=self._options.compile_options(self._device)
            )
        segment.cached = executable.cached
        return executable

    def _segment(
        self,
        executable: Executable,
        emitted: Emitted,
        record: GraphRecord,
        segment: SegmentRecord,
        static: frozenset[int],
        host: HostSegment,
    ) -> DeviceSegment:
        failed = partial(self._failed_in_a_call, record, segment)
        return device_segment(executable, emitted, static, host, failed, self._adapter)

    def _on_host(self, segment: HostSegment, record: GraphRecord) -> HostGraph:
        self._ledger.add(record)
        return HostGraph(segment, record)

    # -- what the host has to do -------------------------------------------------------------------

    def _object(self, record: GraphRecord, what: str, reasons: Iterable[FallbackReason]) -> None:
        """Raise where the host is forbidden, else warn once of each unintended fallback."""
        found = UnintendedFallback.among(reasons)
        if found is None:
            return
        if self._options.fallback == "error":
            raise FallbackForbidden(
                f"the {record.kind} graph cannot run on plugin {self._plugin!r}: {found.shown}. "
                "Change the model there, or allow the host with options={'fallback': 'host'}"
            )
        self._ledger.warn_once(
            f"plugin {self._plugin!r} does not run {found.affected(what, 'operator')}, PyTorch "
            f"does: {found.shown}"
        )

    def _failed(self, record: GraphRecord, segment: SegmentRecord, error: Exception) -> None:
        """Note that a segment cannot be compiled: it runs on the host."""
        segment.placement = "host"
        segment.failed(f"it could not be compiled: {error}")
        self._object(record, name_of_segment(record), segment.fallback_reasons[-1:])

    def _failed_in_a_call(
        self, record: GraphRecord, segment: SegmentRecord, error: PjrtBridgeError
    ) -> None:
        if self._options.fallback == "error":
            raise error
        segment.failed(f"it failed on the device: {error}")
        self._object(record, name_of_segment(record), segment.fallback_reasons[-1:])


def _only_hands_on(node: fx.Node) -> bool:
    """Whether a node is an argument, a result, or a calculation with sizes: nothing to launch."""
    return node.op in ("placeholder", "output") or is_size_computation(node)
