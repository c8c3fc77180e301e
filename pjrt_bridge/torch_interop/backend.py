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

from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning, PjrtError
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit import emit
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.placement import Placement, Refusal
from pjrt_bridge.torch_interop.segments import DeviceSegment


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
    def __init__(self, client: Client, options: BackendOptions) -> None:
        self._client = client
        self._options = options
        self._lookup = _lookup(client)

    def compile(
        self, kind: str, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[list[Any]], Any]:
        """Compile one ATen graph into a boxed function."""
        started = time.perf_counter()
        operations = sum(node.op == "call_function" for node in graph.graph.nodes)
        record = partial(CompiledGraph, kind, self._client.plugin.name, operations)
        refusals = Placement(self._lookup).refusals(graph.graph)
        if refusals:
            self._refuse(kind, [str(refusal) for refusal in _distinct(refusals)])
            reasons = tuple(str(refusal) for refusal in refusals)
            _compiled.append(record(0, reasons, time.perf_counter() - started, 0.0))
            return _on_host(graph)
        emitted = emit(graph, self._lookup, name=kind)
        lowered = time.perf_counter()
        try:
            executable = self._client.compile(
                emitted.program, options=self._options.compile_options()
            )
        except PjrtError as error:
            reason = f"the plugin could not compile it: {error}"
            self._refuse(kind, [reason])
            _compiled.append(record(0, (reason,), lowered - started, 0.0))
            return _on_host(graph)
        compiled = time.perf_counter() - lowered
        _compiled.append(record(1, (), lowered - started, compiled))
        static = frozenset() if kind == "backward" else compat.static_inputs()
        return compat.boxed(DeviceSegment(executable, emitted, static).run)

    def _refuse(self, kind: str, reasons: Sequence[str]) -> None:
        plugin = self._client.plugin.name
        shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if reasons[3:] else "")
        if self._options.fallback == "error":
            raise FallbackForbidden(
                f"the {kind} graph cannot run on plugin {plugin!r}: {shown}. "
                "Change the model there, or allow the host with options={'fallback': 'host'}"
            )
        if (kind, shown) in _warned:
            return
        _warned.add((kind, shown))
        warnings.warn(
            f"a {kind} graph runs on the host instead of plugin {plugin!r}: {shown}",
            HostFallbackWarning,
            stacklevel=2,
        )


def _on_host(graph: fx.GraphModule) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return graph.forward(*given)

    return compat.boxed(run)


def _distinct(refusals: Sequence[Refusal]) -> list[Refusal]:
    """One refusal for each operator and reason: the first."""
    found: dict[tuple[str, str], Refusal] = {}
    for refusal in refusals:
        found.setdefault((refusal.operator, refusal.reason), refusal)
    return list(found.values())


def _lookup(client: Client) -> Callable[[str], portable.Lowering | None]:
    from pjrt_bridge.registry import lowerings

    own = lowerings(client.plugin)
    return lambda name: own.get(name) or portable.find(name)
