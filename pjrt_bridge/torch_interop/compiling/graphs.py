"""Compiles graphs of known sizes: whole, in parts, or for PyTorch alone.

A graph of which every node lowers becomes one StableHLO program; of any other the parts that lower
do, and PyTorch runs the rest between them. A part with sizes that depend on data is compiled for
the sizes that come, when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from torch import fx

from pjrt_bridge import timeline
from pjrt_bridge.errors import DEVICE_FAILURES, ProgramError, UnsupportedDtype
from pjrt_bridge.mixed.execution import Runner
from pjrt_bridge.mixed.mesh_launcher import Division
from pjrt_bridge.mixed.records import GraphRecord, SegmentRecord
from pjrt_bridge.mixed.renewal import Renewal
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.runtime import Executable
from pjrt_bridge.runtime.objects.mesh_program import MeshProgram
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.bind.graphs import (
    CompiledGraph,
    DeviceGraph,
    HostGraph,
    MixedGraph,
    PlainGraph,
    RewrittenGraph,
    SymbolicGraph,
)
from pjrt_bridge.torch_interop.bind.segments import HostSegment, device_segment, mesh_segment
from pjrt_bridge.torch_interop.compiling import fallbacks
from pjrt_bridge.torch_interop.compiling.division import Divisions
from pjrt_bridge.torch_interop.compiling.records import (
    counting,
    note_exchanges,
    note_executable,
    note_renewal,
    segment_record,
)
from pjrt_bridge.torch_interop.compiling.sizes import SymbolicCompiler
from pjrt_bridge.torch_interop.compiling.target import Target
from pjrt_bridge.torch_interop.emit.program import Emitted, emit
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.nodes import is_mutation, is_size_computation
from pjrt_bridge.torch_interop.passes.pipeline import PassContext, rewrite
from pjrt_bridge.torch_interop.placement.split import Part, node_names, operators, split
from pjrt_bridge.torch_interop.resident.graphs.border import BorderGraph
from pjrt_bridge.torch_interop.resident.graphs.residency import Residency, with_host_promises
from pjrt_bridge.torch_interop.resident.graphs.resident_graph import ResidentGraph
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.shared.place import SharedPlace, to_host

_FAILURES = (NotLowerable, *DEVICE_FAILURES, ProgramError, UnsupportedDtype)
_COMPILING = 4
"""Programs of one graph that are compiled at the same time."""


class GraphCompiler:
    """Compiles the rewritten graphs of one Dynamo graph.

    Args:
        target: what they are compiled for.
        divisions: how their values are divided over a mesh.

    Attributes:
        saved: of the last graph, see `Emitted.saved`.
    """

    def __init__(self, target: Target, divisions: Divisions | None = None) -> None:
        self._target = target
        self._divisions = Divisions(target.options.mesh) if divisions is None else divisions
        self._options = target.options
        self._orders = target.options.orders()
        self._symbolic = SymbolicCompiler(target, self.compile)
        self.saved: Mapping[int, tuple[int, ...]] = {}

    def compile_symbolic(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> SymbolicGraph:
        """A graph that is compiled for the sizes that calls bring; `record` tells what it is."""
        return self._symbolic.compile(graph, record, static)

    def compile(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int]
    ) -> CompiledGraph:
        """Compile a graph whose inputs have known sizes.

        Args:
            graph: the passes for unknown sizes were applied to it.
            record: of the graph.
            static: positions of arguments that stay in the same memory between calls.

        Raises:
            FallbackForbidden: it cannot run on the device, and the host is forbidden.
        """
        context = PassContext(
            record.kind,
            keeps=self._options.wants_on_host,
            check_indices=self._options.check_indices is True,
            kernels=self._target.kernels,
        )
        rewritten = rewrite(graph, context, "sized")
        module = rewritten.module
        residency = Residency.of(module.graph, self._target.devices[1:])
        compiled: CompiledGraph
        if residency is None:
            compiler = self
            if self._options.mesh is not None and self._divisions.have_mesh(module.graph):
                compiler = self._for(self._target.over_mesh())
            compiled = compiler.compile_rewritten(module, record, static)
        else:
            of_device = self._resident if residency.kind == NAME else self._shared
            compiled = of_device(module, residency, record, static)
        return RewrittenGraph(compiled, rewritten) if rewritten.steps else compiled

    def _for(self, target: Target) -> GraphCompiler:
        return GraphCompiler(target, self._divisions)

    def _resident(
        self,
        module: fx.GraphModule,
        residency: Residency,
        record: GraphRecord,
        static: frozenset[int],
    ) -> ResidentGraph:
        module = with_host_promises(module, NAME, transfer.to_host)
        target = self._target.for_device(NAME, residency.index)
        over_mesh = self._for(target.over_mesh())
        in_place = target.client.shares_host_memory
        if self._divisions.have_mesh(module.graph):
            compiled = over_mesh.compile_rewritten(module, record, static)
            return ResidentGraph(compiled, residency, in_place=in_place)

        def divided() -> ResidentGraph:
            again = GraphRecord(
                record.kind,
                record.name,
                record.plugin,
                record.trigger,
                record.within,
                code=record.code,
                division=record.division,
            )
            compiled = over_mesh.compile_rewritten(module, again, static)
            return ResidentGraph(compiled, residency, in_place=in_place)

        plain = self._for(target).compile_rewritten(module, record)
        return ResidentGraph(plain, residency, divided, in_place=in_place)

    def _shared(
        self,
        module: fx.GraphModule,
        residency: Residency,
        record: GraphRecord,
        static: frozenset[int],
    ) -> BorderGraph:
        """A graph over tensors of torch's own device, whose memory its programs use."""
        module = with_host_promises(module, residency.kind, to_host)
        target = self._target.for_device(residency.kind, residency.index)
        place = SharedPlace(target.client, residency.kind, residency.index)
        plain = self._for(target).compile_rewritten(module, record)
        return BorderGraph(
            plain, residency, place.of_call, in_place=target.client.shares_host_memory
        )

    def compile_rewritten(
        self, graph: fx.GraphModule, record: GraphRecord, static: frozenset[int] = frozenset()
    ) -> PlainGraph:
        """Compile a graph over host tensors that all passes were applied to; see `compile`."""
        if all(map(_launches_nothing, graph.graph.nodes)):
            record.segments.append(SegmentRecord("host", operators(graph.graph)))
            return self._on_host(HostSegment(graph), record)
        together = self._target.together(graph.graph)
        if together is not None:
            return self._for(together).compile_rewritten(graph, record, static)
        with counting(record, "lowering_seconds"), timeline.span(f"place {record.name}"):
            reasons = self._target.placement().fallback_reasons(graph.graph)
        fallbacks.tell(self._target, record, f"the {record.kind} graph", reasons.values())
        if reasons or self._options.min_segment > 1:
            return self._in_parts(graph, record, static, reasons)
        host = HostSegment(graph)
        segment = SegmentRecord("device", operators(graph.graph), node_names(graph.graph))
        record.segments.append(segment)
        emit = partial(self._emit, record.name, graph, record, static, orders_saved=self._is_plain)
        try:
            emitted = emit()
            program = self._compile_program(emitted, emit, segment, graph)
            division = self._divisions.of(graph.graph, record.kind, static)
            compiled = self._segment(program, emitted, record, segment, static, host, division)
        except _FAILURES as error:
            fallbacks.not_compiled(self._target, record, segment, error, graph.graph)
            return self._on_host(host, record)
        self._target.ledger.add(record)
        self.saved = emitted.saved
        return DeviceGraph(
            compiled,
            record,
            took_precisions=emitted.took_precisions,
            checks_data=emitted.checks_data,
        )

    def _in_parts(
        self,
        graph: fx.GraphModule,
        record: GraphRecord,
        static: frozenset[int],
        reasons: Mapping[str, FallbackReason],
    ) -> PlainGraph:
        """Compile what can run on the device, and leave the rest to PyTorch."""
        if any(node.name in reasons and is_mutation(node) for node in graph.graph.nodes):
            names = node_names(graph.graph)
            found = SegmentRecord("host", operators(graph.graph), names, list(reasons.values()))
            record.segments.append(found)
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
        self._target.ledger.add(record)
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
            inner = GraphRecord(record.kind, name, record.plugin, within=record, code=record.code)
            symbolic = self._symbolic.compile(part.module, inner, frozenset())
            return lambda: symbolic.start
        inputs = part.inputs_among(static)
        division = self._divisions.of_part(part, record.kind, static)
        emit = partial(self._emit, name, part.module, record, inputs)
        try:
            emitted = emit()
        except _FAILURES as error:
            fallbacks.not_compiled(self._target, record, segment, error, part.module.graph)
            return lambda: host.start
        compiling = pool.submit(self._compile_program, emitted, emit, segment, part.module)

        def ready() -> Runner:
            try:
                program = compiling.result()
                device = self._segment(program, emitted, record, segment, inputs, host, division)
                return device.start
            except _FAILURES as error:
                fallbacks.not_compiled(self._target, record, segment, error, part.module.graph)
                return host.start

        return ready

    @property
    def _is_plain(self) -> bool:
        """Whether results of programs are tensors of the host, each of one device."""
        target = self._target
        return target.adapter is ADAPTER and not target.divides and target.agreement is None

    def _emit(
        self,
        name: str,
        graph: fx.GraphModule,
        record: GraphRecord,
        static: frozenset[int],
        *,
        orders_saved: bool = False,
        like: Emitted | None = None,
    ) -> Emitted:
        with counting(record, "lowering_seconds"), timeline.span(f"emit {name}"):
            return emit(
                graph,
                self._target.lookup,
                name=name,
                in_place=self._target.donates,
                argument_specs=dict.fromkeys(static, self._orders.parameter),
                kernels=self._target.kernels,
                excess_precision=self._options.excess_precision,
                precisions=self._target.precisions,
                # A backward graph computes with the positions of its forward graph.
                checks_positions=record.kind != "backward"
                and self._options.check_indices is not False,
                orders_saved=orders_saved,
                like=like,
            )

    def _compile_program(
        self,
        emitted: Emitted,
        emit: Callable[..., Emitted],
        segment: SegmentRecord,
        graph: fx.GraphModule,
    ) -> Executable | MeshProgram:
        options = self._target.compile_options(graph.graph)
        if self._target.divides:
            return MeshProgram(self._target.client, emitted.program, options)

        def compile(program: Program) -> Executable:
            with counting(segment, "compile_seconds"):
                return self._target.client.compile(program, options=options)

        def emit_again() -> Program | None:
            again = emit(like=emitted)
            return again.program if again.takes_as(emitted) else None

        executable = compile(emitted.program)
        segment.cached = executable.cached
        if executable.num_devices > 1:
            note_exchanges(segment, executable)
        else:
            replaced = partial(note_renewal, segment)
            renewal = Renewal(self._target.kernels, emit_again, compile, replaced)
            renewal.watch(executable, emitted.program, emitted.kernels_version)
        return executable

    def _segment(
        self,
        program: Executable | MeshProgram,
        emitted: Emitted,
        record: GraphRecord,
        segment: SegmentRecord,
        static: frozenset[int],
        host: HostSegment,
        division: Division,
    ) -> DeviceSegment:
        failed = partial(
            fallbacks.failed_in_a_call,
            self._target,
            record,
            segment,
            together=isinstance(program, Executable) and program.num_devices > 1,
        )
        adapter = self._target.adapter
        if isinstance(program, MeshProgram):
            compiled = partial(note_executable, segment)
            return mesh_segment(program, emitted, host, failed, adapter, division, compiled)
        return device_segment(program, emitted, static, host, failed, adapter)

    def _on_host(self, segment: HostSegment, record: GraphRecord) -> HostGraph:
        self._target.ledger.add(record)
        return HostGraph(segment, record)


def _launches_nothing(node: fx.Node) -> bool:
    """Whether a node is an argument, a result, or a calculation with sizes: nothing to launch."""
    return node.op in ("placeholder", "output") or is_size_computation(node)
