"""The `pjrt` backend of torch.compile.

    compiled = torch.compile(model, backend="pjrt")

Dynamo hands over a graph; AOTAutograd turns it into functional ATen graphs, one for inference or
one each for forward and backward. A graph of which every node lowers becomes one StableHLO program
on the plugin; of any other the parts that lower do, and PyTorch runs the rest between them, with a
warning that names what stands in the way.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import fx

from pjrt_bridge.errors import (
    FallbackForbidden,
    HostFallbackWarning,
    PjrtError,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.mixed.program import Runner
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.registry import lowerings
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit import emit
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.mixed import HostSegment, MixedGraph
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.placement import Placement, Refusal, is_border
from pjrt_bridge.torch_interop.segments import DeviceSegment
from pjrt_bridge.torch_interop.specialize import Run, Specializer, is_symbolic
from pjrt_bridge.torch_interop.split import split


@dataclass(frozen=True)
class CompiledGraph:
    """What became of one ATen graph.

    Attributes:
        kind: `"inference"`, `"forward"` or `"backward"`.
        plugin: name of the plugin it was meant for.
        operations: operators in the graph.
        segments: executables on the device: 1 for a whole graph, 0 when all of it is on the host.
        refusals: why something of it runs on the host; empty when nothing does.
        lowering_seconds: time from the graph to StableHLO.
        compile_seconds: time that the plugin took to compile.
    """

    kind: str
    plugin: str
    operations: int
    segments: int
    refusals: tuple[str, ...]
    lowering_seconds: float
    compile_seconds: float


_compiled: deque[CompiledGraph] = deque(maxlen=1000)
_warned: set[str] = set()


def pjrt(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph: what torch.compile calls for `backend="pjrt"`.

    Args:
        graph: from Dynamo.
        example_inputs: its (fake) inputs.
        options: see `BackendOptions`.
        mode: must be left at its default.

    Raises:
        OptionError: an unknown option or an impossible value.
        PluginNotFound: no plugin of that name, or none at all.
        FallbackForbidden: the graph cannot run on the device and `fallback` is `"error"`.
    """
    chosen = BackendOptions.parse(options, mode)
    compiler = _Compiler(select_client(chosen.plugin), chosen)
    return compat.run_aot_autograd(
        graph,
        example_inputs,
        forward=partial(compiler.compile, "forward"),
        backward=partial(compiler.compile, "backward"),
        inference=partial(compiler.compile, "inference"),
    )


def compiled_graphs() -> tuple[CompiledGraph, ...]:
    """The graphs that were compiled since the last reset, oldest first (the last 1000)."""
    return tuple(_compiled)


def reset() -> None:
    """Forget the compiled graphs and which warnings were given; torch.compiler.reset calls it."""
    _compiled.clear()
    _warned.clear()


pjrt.reset = reset  # type: ignore[attr-defined]


class _Compiler:
    """Compiles the ATen graphs of one Dynamo graph for one client."""

    def __init__(self, client: Client, options: BackendOptions) -> None:
        self._client = client
        self._options = options
        self._lookup = _lookup(client)
        self._static: frozenset[int] = frozenset()

    def compile(
        self, kind: str, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[list[Any]], Any]:
        """Compile one ATen graph into a boxed function."""
        if kind == "backward":
            static = compat.saved_inputs(graph.graph, self._static)
        else:
            static = self._static = compat.static_inputs()
        if is_symbolic(graph.graph):
            specialized = partial(self._compile_specialized, kind, static, graph)
            return compat.boxed(Specializer(specialized).run)
        return compat.boxed(self._compile_static(kind, static, graph))

    def _compile_specialized(
        self, kind: str, static: frozenset[int], graph: fx.GraphModule, arguments: list[Any]
    ) -> Run:
        try:
            concrete = compat.specialize(graph, arguments)
        except compat.DATA_DEPENDENT as error:
            return self._on_host(kind, graph, [f"a size in it depends on data: {error}"])
        return self._compile_static(kind, static, concrete)

    def _compile_static(self, kind: str, static: frozenset[int], graph: fx.GraphModule) -> Run:
        stopwatch = Stopwatch()
        with stopwatch.counting("lowering_seconds"):
            refusals = Placement(self._lookup).refusals(graph.graph)
        if refusals:
            return self._compile_mixed(kind, static, graph, refusals, stopwatch)
        try:
            segment = self._segment(kind, graph, static, stopwatch)
        except _FAILURES as error:
            return self._on_host(kind, graph, [f"it could not be compiled: {error}"])
        self._record(kind, graph, 1, [], stopwatch)
        return segment.run

    def _compile_mixed(
        self,
        kind: str,
        static: frozenset[int],
        graph: fx.GraphModule,
        refusals: Sequence[Refusal],
        stopwatch: Stopwatch,
    ) -> Run:
        """Compile what can run on the device, and leave the rest to PyTorch."""
        reasons = [str(refusal) for refusal in refusals]
        refused = {refusal.node: refusal.reason for refusal in refusals}
        if any(node.name in refused and is_border(node) for node in graph.graph.nodes):
            return self._on_host(kind, graph, reasons)
        parts = split(graph, refused)
        if not any(part.on_device for part in parts.parts):
            return self._on_host(kind, graph, reasons)
        self._object(kind, f"{_count(len(refusals))} of the {kind} graph", reasons)
        runners: list[Runner] = []
        segments = 0
        for index, part in enumerate(parts.parts):
            runners.append(HostSegment(part.module).start)
            if not part.on_device:
                continue
            inputs = part.inputs_among(static)
            try:
                segment = self._segment(f"{kind}_{index}", part.module, inputs, stopwatch)
            except _FAILURES as error:
                reasons.append(f"segment {index} could not be compiled: {error}")
                self._object(kind, f"a segment of the {kind} graph", reasons[-1:])
            else:
                runners[-1] = segment.start
                segments += 1
        self._record(kind, graph, segments, reasons, stopwatch)
        return MixedGraph(parts, runners).run

    def _segment(
        self, name: str, graph: fx.GraphModule, static: frozenset[int], stopwatch: Stopwatch
    ) -> DeviceSegment:
        with stopwatch.counting("lowering_seconds"):
            emitted = emit(graph, self._lookup, name=name)
        with stopwatch.counting("compile_seconds"):
            executable = self._client.compile(
                emitted.program, options=self._options.compile_options()
            )
        return DeviceSegment(executable, emitted, static)

    def _on_host(self, kind: str, graph: fx.GraphModule, reasons: Sequence[str]) -> Run:
        """Run a whole graph in PyTorch."""
        self._object(kind, f"the {kind} graph", reasons)
        self._record(kind, graph, 0, reasons, Stopwatch())
        return HostSegment(graph).start

    def _object(self, kind: str, what: str, reasons: Sequence[str]) -> None:
        """Raise where the host is forbidden, else warn once of each thing."""
        distinct = list(dict.fromkeys(reasons))
        more = f"; and {len(distinct) - 3} more" if distinct[3:] else ""
        shown = "; ".join(distinct[:3]) + more
        plugin = self._client.plugin.name
        if self._options.fallback == "error":
            raise FallbackForbidden(
                f"the {kind} graph cannot run on plugin {plugin!r}: {shown}. "
                "Change the model there, or allow the host with options={'fallback': 'host'}"
            )
        text = f"plugin {plugin!r} does not run {what}, PyTorch does: {shown}"
        if text not in _warned:
            _warned.add(text)
            warnings.warn(text, HostFallbackWarning, stacklevel=2)

    def _record(
        self,
        kind: str,
        graph: fx.GraphModule,
        segments: int,
        reasons: Sequence[str],
        stopwatch: Stopwatch,
    ) -> None:
        operations = sum(node.op == "call_function" for node in graph.graph.nodes)
        _compiled.append(
            CompiledGraph(
                kind=kind,
                plugin=self._client.plugin.name,
                operations=operations,
                segments=segments,
                refusals=tuple(reasons),
                lowering_seconds=stopwatch.lowering_seconds,
                compile_seconds=stopwatch.compile_seconds,
            )
        )


class Stopwatch:
    """Seconds that compiling a graph takes, in two parts."""

    def __init__(self) -> None:
        self.lowering_seconds = 0.0
        self.compile_seconds = 0.0

    @contextmanager
    def counting(self, seconds: Literal["lowering_seconds", "compile_seconds"]) -> Iterator[None]:
        """Add the time of a `with` block to one of the two."""
        started = time.perf_counter()
        yield
        setattr(self, seconds, getattr(self, seconds) + time.perf_counter() - started)


_FAILURES = (NotLowerable, PjrtError, ProgramError, UnsupportedDtype)


def _count(operators: int) -> str:
    return "1 operator" if operators == 1 else f"{operators} operators"


def _lookup(client: Client) -> Callable[[str], portable.Lowering | None]:
    own = lowerings(client.plugin)
    return lambda name: own.get(name) or portable.find(name)
