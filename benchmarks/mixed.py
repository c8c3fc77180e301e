"""What mixed execution costs: splitting a graph, borders between host and device, memory.

Each figure is made of medians of one interleaved run, and says what they were.
"""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import GPT2Config, GPT2Model

import pjrt_bridge
from benchmarks import resident
from benchmarks.figure import Figure
from benchmarks.interleave import measure
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import partition
from pjrt_bridge.mixed.records import GraphRecord, SegmentRecord
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph, MixedGraph, run
from pjrt_bridge.torch_interop.bind.segments import HostSegment, device_segment
from pjrt_bridge.torch_interop.emit.program import emit
from pjrt_bridge.torch_interop.lowering.registry import find_lowering
from pjrt_bridge.torch_interop.placement.split import operators, split


def figures(rounds: int) -> Iterator[Figure]:
    """All figures, each measured when it is asked for."""
    yield from partition_figures(rounds)
    yield segment_figure(rounds)
    yield border_figure(rounds)
    yield model_figure(rounds)
    yield memory_figure()


# -- partitioning ----------------------------------------------------------------------------------

_NODES = 20_000


def partition_figures(rounds: int) -> Iterator[Figure]:
    """Partitioning graphs of many nodes, one in a hundred of them on the host."""
    for shape, draw in _SHAPES.items():
        inputs, nodes, outputs = draw(random.Random(0))

        def build(
            inputs: Sequence[int] = inputs,
            nodes: Sequence[Node] = nodes,
            outputs: Sequence[int] = outputs,
        ) -> Graph:
            return Graph(tuple(inputs), nodes, tuple(outputs))

        graph = build()
        segments = len(partition(graph).segments)
        times = measure(
            shape,
            {"check": build, "split": lambda graph=graph: partition(graph)},
            rounds=rounds,
        )
        best, median = times.bests["split"] * 1e3, times.medians["split"] * 1e3
        yield Figure(
            f"splitting {_NODES} nodes: {shape}",
            median,
            100,
            "ms",
            f"best {best:.1f} ms; {segments} segments; checking the graph "
            f"{times.medians['check'] * 1e3:.1f} ms more",
        )


_Drawn = tuple[Sequence[int], list[Node], Sequence[int]]
_ELSEWHERE = FallbackReason("host", "it was drawn so", "requested")


def _drawn(
    rng: random.Random,
    reads: Callable[[int], Sequence[int]],
    *,
    on_host: Callable[[int], bool] | None = None,
    cheap: float = 0.0,
) -> _Drawn:
    """Nodes of one result each: value 0 is the input, and node `i` makes value `i + 1`."""
    nodes = []
    read: set[int] = set()
    for index in range(_NODES):
        inputs = tuple(dict.fromkeys(reads(index)))
        read.update(inputs)
        host = rng.random() < 0.01 if on_host is None else on_host(index)
        nodes.append(
            Node(
                name=f"n{index}",
                inputs=inputs,
                outputs=(index + 1,),
                fallback_reason=_ELSEWHERE if host else None,
                cheap=rng.random() < cheap,
            )
        )
    return (0,), nodes, [value for value in range(1, _NODES + 1) if value not in read]


def _chains(rng: random.Random, *, cheap: float = 0.0) -> _Drawn:
    """Chains that branch and meet: the value before, and one of the few before that."""
    return _drawn(rng, lambda index: (index, max(0, index - rng.randint(1, 20))), cheap=cheap)


def _wide(rng: random.Random) -> _Drawn:
    """A thousand chains side by side, which read from their neighbours."""
    width = 1000
    return _drawn(
        rng, lambda index: [max(0, index + 1 - width + step) for step in (0, rng.randint(0, 9))]
    )


def _anywhere(rng: random.Random) -> _Drawn:
    """Two values from anywhere before."""
    return _drawn(rng, lambda index: (rng.randint(0, index), rng.randint(0, index)))


def _alternating(rng: random.Random) -> _Drawn:
    """One chain, every other node on the host: as many segments as nodes."""
    return _drawn(rng, lambda index: (index,), on_host=lambda index: index % 2 == 1)


_SHAPES: dict[str, Callable[[random.Random], _Drawn]] = {
    "chains with branches, 1 % on the host": _chains,
    "the same, 20 % of the nodes cheap": lambda rng: _chains(rng, cheap=0.2),
    "1000 chains side by side, 1 % on the host": _wide,
    "reads from anywhere, 1 % on the host": _anywhere,
    "one chain, every other node on the host": _alternating,
}


# -- one segment -----------------------------------------------------------------------------------


def segment_figure(rounds: int) -> Figure:
    """A program that is one device segment, beside a direct call of that segment."""
    x, y = torch.randn(64), torch.randn(64)
    module = make_fx(lambda x, y: (x * y + x,), tracing_mode="fake")(x, y)
    emitted = emit(module, find_lowering, name="one_segment")
    executable = pjrt_bridge.client().compile(emitted.program)
    segment = device_segment(executable, emitted, frozenset(), HostSegment(module), _fail)
    whole = DeviceGraph(
        segment,
        _record(module),
        took_precisions=emitted.took_precisions,
        checks_data=emitted.checks_data,
    )
    parts = split(module, {})
    mixed = MixedGraph(parts, [segment.start], _record(module))
    bindings = emitted.bindings
    (result,) = bindings.results

    def by_hand() -> torch.Tensor:
        buffers = [
            putting.put_host(executable.client, ADAPTER.host_array(tensor, parameter.spec))
            for parameter, tensor in zip(bindings.parameters, (x, y), strict=True)
        ]
        return ADAPTER.adopt(executable.execute(buffers)[0], result)

    times = measure(
        "one segment",
        {
            "by hand": by_hand,
            # The same way into the executable as the program's, whatever way that is.
            "direct": lambda: segment.run([x, y], CallRecord(1)),
            "whole": lambda: run(whole, [x, y]),
            "mixed": lambda: run(mixed, [x, y]),
        },
        rounds=rounds,
    )
    micro = {name: seconds * 1e6 for name, seconds in times.medians.items()}
    return Figure(
        "a program of one segment, beyond a direct call of that segment on tensors",
        micro["whole"] - micro["direct"],
        1,
        "us",
        f"program {micro['whole']:.1f} us, direct {micro['direct']:.1f} us; buffers put and "
        f"executed one by one {micro['by hand']:.1f} us; as a mixed program of "
        f"one segment {micro['mixed']:.1f} us",
    )


def _fail(error: Exception) -> None:
    raise error


def _record(module: fx.GraphModule) -> GraphRecord:
    segments = [SegmentRecord("device", operators(module.graph))]
    return GraphRecord("inference", "one_segment", "cpu", segments=segments)


# -- borders ---------------------------------------------------------------------------------------

_LENGTHS = (1, 5, 10, 20, 50)


def border_figure(rounds: int) -> Figure:
    """What each border adds to a chain of trivial operators on alternating sides."""
    torch.compiler.reset()
    # So few elements that XLA's CPU plugin computes in the thread that calls.
    x = torch.randn(64)
    contenders: dict[str, Callable[[], object]] = {}
    for length in _LENGTHS:
        mixed = torch.compile(
            _chain(length, torch.neg), backend="pjrt", options={"host_ops": ["aten.neg"]}
        )
        device = torch.compile(_chain(length, None), backend="pjrt", options={"fallback": "error"})
        contenders[f"mixed {length}"] = lambda function=mixed: function(x)
        contenders[f"device {length}"] = lambda function=device: function(x)
        contenders[f"host {length}"] = lambda length=length: _negated(x, length)
    with torch.no_grad():
        times = measure("borders", contenders, rounds=rounds)
    extra = {
        # Each operator on the host lies between two borders.
        2 * length: times.medians[f"mixed {length}"]
        - times.medians[f"device {length}"]
        - times.medians[f"host {length}"]
        for length in _LENGTHS
    }
    slope, _ = statistics.linear_regression(list(extra), list(extra.values()))
    longest = _LENGTHS[-1]
    sides = ", ".join(
        f"{name} {times.medians[f'{name} {longest}'] * 1e6:.0f} us"
        for name in ("mixed", "device", "host")
    )
    return Figure(
        "each border between host and device",
        slope * 1e6,
        10,
        "us",
        f"slope over {', '.join(map(str, extra))} borders; at {2 * longest}: {sides}",
    )


def _chain(length: int, between: Callable[[Any], Any] | None) -> fx.GraphModule:
    """Multiplications, with another operator between each two."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = x * 2
            if between is not None:
                x = between(x)
        return x * 2

    # Code of its own for each length, or torch would count them as recompilations of one function.
    return fx.symbolic_trace(function)


def _negated(x: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        x = torch.neg(x)
    return x


# -- a model ---------------------------------------------------------------------------------------


def model_figure(rounds: int) -> Figure:
    """A model with one operator in a hundred on the host, beside all of it on the device."""
    torch.compiler.reset()
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=12,
        n_embd=256,
        n_head=4,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2Model(config).eval()
    on_host = model.h[1::3]
    for block in on_host:
        block.mlp.act = nn.GELU(approximate="tanh")
    tokens = torch.randint(0, 1000, (4, 128))
    hidden = torch.randn(4, 128, 4 * config.n_embd)

    def activations() -> None:
        for block in on_host:
            block.mlp.act(hidden)

    device = torch.compile(model, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        device(tokens)
        mixed = torch.compile(
            copy.deepcopy(model), backend="pjrt", options={"host_ops": ["aten.gelu"]}
        )
        mixed(tokens)
        report = compiled_graphs()[-1]
        times = measure(
            "a model",
            {
                "mixed": lambda: mixed(tokens),
                "device": lambda: device(tokens),
                "host": activations,
            },
            rounds=rounds,
        )
    milli = {name: seconds * 1e3 for name, seconds in times.medians.items()}
    return Figure(
        f"a GPT-2 of 12 layers with {len(report.fallback_reasons)} of {report.operations} "
        "operators on the host, in units of its parts",
        milli["mixed"] / (milli["device"] + milli["host"]),
        1.15,
        "x",
        f"mixed {milli['mixed']:.1f} ms, all on the device {milli['device']:.1f} ms, these "
        f"operators in PyTorch {milli['host']:.1f} ms",
    )


# -- memory ----------------------------------------------------------------------------------------

_BATCH, _WIDTH, _DEPTH = 262_144, 64, 8
"""Activations of 64 MiB in float32, between layers that alternate between device and host."""


def memory_figure() -> Figure:
    """How much memory a call takes at its peak, beyond what the process has before it."""
    peaks: dict[bool, list[int]] = {False: [], True: []}
    for mixed in (False, True, True, False):
        # A process of its own for each: what one leaves to the allocator would help the next.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            peaks[mixed].append(pool.submit(_peak, mixed).result())
    eager, ours = (statistics.median(found) / 1e6 for found in peaks.values())
    return Figure(
        "memory of a call at its peak, in units of eager PyTorch's",
        ours / eager,
        1.1,
        "x",
        f"mixed {ours:.0f} MB, eager {eager:.0f} MB; a perceptron of {_DEPTH} layers and "
        f"{2 * _DEPTH} segments, {4 * _BATCH * _WIDTH / 1e6:.0f} MB between any two",
    )


def _peak(mixed: bool) -> int:
    """Bytes by which a call raises the resident memory of this process, at most."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(_DEPTH)]
    model: Any = nn.Sequential(*layers).eval()
    if mixed:
        model = torch.compile(model, backend="pjrt", options={"host_ops": ["aten.gelu"]})
    x = torch.randn(_BATCH, _WIDTH)
    found = []
    with torch.no_grad():
        for _ in range(4):
            resident.forget_peak()
            before = resident.now()
            model(x)
            found.append(resident.peak() - before)
    # The first call compiles.
    return int(statistics.median(found[1:]))
