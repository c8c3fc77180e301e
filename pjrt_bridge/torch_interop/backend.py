"""The `pjrt` backend of torch.compile.

    compiled = torch.compile(model, backend="pjrt")

Dynamo hands over a graph; AOTAutograd turns it into functional ATen graphs, one for inference or
one each for forward and backward. A graph of which every node lowers becomes one StableHLO program
on the plugin; any other runs in PyTorch as it is, with a warning that names what stands in the way.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import fx

from pjrt_bridge.errors import (
    FallbackForbidden,
    HostFallbackWarning,
    PjrtError,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.registry import lowerings
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit import emit
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.placement import Placement
from pjrt_bridge.torch_interop.segments import DeviceSegment
from pjrt_bridge.torch_interop.specialize import Run, Specializer, is_symbolic


@dataclass(frozen=True)
class CompiledGraph:
    """What became of one ATen graph.

    Attributes:
        kind: `"inference"`, `"forward"` or `"backward"`.
        plugin: name of the plugin it was meant for.
        operations: operators in the graph.
        segments: executables on the device: 1, or 0 when the graph runs on the host.
        refusals: why it runs on the host; empty when it does not.
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
_warned: set[tuple[str, str]] = set()


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
            reason = f"a size in it depends on data: {error}"
            return self._refuse(
                kind, graph, [reason], self._record(kind, graph)(0, (reason,), 0, 0)
            )
        return self._compile_static(kind, static, concrete)

    def _record(self, kind: str, graph: fx.GraphModule) -> Callable[..., CompiledGraph]:
        operations = sum(node.op == "call_function" for node in graph.graph.nodes)
        return partial(CompiledGraph, kind, self._client.plugin.name, operations)

    def _compile_static(self, kind: str, static: frozenset[int], graph: fx.GraphModule) -> Run:
        started = time.perf_counter()
        record = self._record(kind, graph)
        refusals = [str(refusal) for refusal in Placement(self._lookup).refusals(graph.graph)]
        if refusals:
            seconds = time.perf_counter() - started
            return self._refuse(kind, graph, refusals, record(0, tuple(refusals), seconds, 0.0))
        try:
            emitted = emit(graph, self._lookup, name=kind)
            lowered = time.perf_counter()
            executable = self._client.compile(
                emitted.program, options=self._options.compile_options()
            )
        except (NotLowerable, PjrtError, ProgramError, UnsupportedDtype) as error:
            reason = f"it could not be compiled: {error}"
            seconds = time.perf_counter() - started
            return self._refuse(kind, graph, [reason], record(0, (reason,), seconds, 0.0))
        compiled = time.perf_counter() - lowered
        _compiled.append(record(1, (), lowered - started, compiled))
        return DeviceSegment(executable, emitted, static).run

    def _refuse(
        self, kind: str, graph: fx.GraphModule, refusals: Sequence[str], record: CompiledGraph
    ) -> Run:
        """Run a graph on the host, or raise where that is forbidden."""
        distinct = list(dict.fromkeys(refusals))
        more = f"; and {len(distinct) - 3} more" if distinct[3:] else ""
        shown = "; ".join(distinct[:3]) + more
        plugin = self._client.plugin.name
        if self._options.fallback == "error":
            raise FallbackForbidden(
                f"the {kind} graph cannot run on plugin {plugin!r}: {shown}. "
                "Change the model there, or allow the host with options={'fallback': 'host'}"
            )
        _compiled.append(record)
        if (kind, shown) not in _warned:
            _warned.add((kind, shown))
            warnings.warn(
                f"the {kind} graph runs on the host instead of plugin {plugin!r}: {shown}",
                HostFallbackWarning,
                stacklevel=2,
            )
        return partial(_run_on_host, graph)


def _run_on_host(graph: fx.GraphModule, arguments: list[Any]) -> Any:
    given = list(arguments)
    arguments.clear()
    return graph.forward(*given)


def _lookup(client: Client) -> Callable[[str], portable.Lowering | None]:
    own = lowerings(client.plugin)
    return lambda name: own.get(name) or portable.find(name)
