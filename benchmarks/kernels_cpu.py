"""What the CPU package's own kernels gain over XLA's: the figures of its README.

`python -m benchmarks.kernels_cpu [reductions] [depthwise] [stored] [combined] [expressions]` prints
them. No
kernel of PyTorch is called in the programs. Contenders take turns and least times are compared; of
whole networks and scatters least processor times, which other work does not lengthen.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.interleave import measure
from pjrt_bridge.torch_interop.lowering.api import Kernels
from pjrt_bridge_cpu import kernels
from pjrt_bridge_cpu.aten import VARIABLE
from pjrt_bridge_cpu.aten import kernels as aten_kernels
from pjrt_bridge_cpu.depthwise import DepthwiseSums
from pjrt_bridge_cpu.materialization import MaterializedValues
from pjrt_bridge_cpu.reductions import BlockedReductions

ROUNDS = 12

Function = Callable[..., Any]
Contenders = Mapping[str, Callable[[], object]]


class InOrder(DepthwiseSums, MaterializedValues):
    """Rows are reduced in XLA's order."""


class Convolved(BlockedReductions, MaterializedValues):
    """Depthwise convolutions are XLA's."""


class ComputedAgain(DepthwiseSums, BlockedReductions):
    """What several loops read is computed in each of them."""


class Scattered(kernels.XlaKernels):
    """Updates are combined by XLA."""

    combine_along = Kernels.combine_along


class Looped(kernels.XlaKernels):
    """Elementwise expressions are XLA's loops."""

    expression = Kernels.expression


def reductions() -> Iterator[str]:
    """Rows as columns, in units of XLA's order."""
    yield "| | columns / XLA's order |"
    yield "|---|---|"
    for name, function, arguments in _rows():
        ways = {"columns": kernels.XlaKernels(), "rows": InOrder()}
        contenders = compiled(function, arguments, ways)
        least = measure(name, contenders, rounds=ROUNDS).bests
        yield f"| {name} | {least['columns'] / least['rows']:.2f} |"


def _rows() -> Iterator[tuple[str, Function, Sequence[torch.Tensor]]]:
    square, image = torch.randn(1000, 1000), torch.randn(8, 64, 56, 56)
    whole = torch.randint(-(1 << 31), 1 << 31, (1000, 1024)).int()
    yield "sum over rows of 1000x1000, f32", lambda x: x.sum(1), (square,)
    yield "sum of 1000x1000, f32", lambda x: x.sum(), (square,)
    yield "sum over batch and places of 8x64x56x56, f32", lambda x: x.sum((0, 2, 3)), (image,)
    yield "minimum over rows of 1000x1024, int32", lambda x: x.amin(1), (whole,)
    for rows, length, kind in ((1000, 1000, "f32"), (2364, 197, "f32"), (2048, 768, "bf16")):
        x = _drawn(kind, rows, length)
        yield f"softmax {rows}x{length}, {kind}", lambda x: x.softmax(-1), (x,)
    for rows, length, kind in ((1000, 1000, "f32"), (2048, 768, "f32"), (2048, 768, "bf16")):
        layer = (_drawn(kind, rows, length), *_drawn(kind, 2, length))
        yield f"layer norm {rows}x{length}, {kind}", _layer_norm, layer
    sides = tuple(_drawn("f32", 4, 12, 512, 64) for _ in range(3))
    yield "attention, 48 heads of 512x64, f32", _attention, sides


def _drawn(kind: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to({"f32": torch.float32, "bf16": torch.bfloat16}[kind])


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[1:], weight, bias)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.mT / 8).softmax(-1) @ value


def depthwise() -> Iterator[str]:
    """A layer of 128 channels of 4x56x56, kernel 3x3, float32."""
    arguments = (torch.randn(4, 128, 56, 56), torch.randn(128, 1, 3, 3))

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight, padding=1, groups=128)

    ways = {"a sum": kernels.XlaKernels(), "XLA's convolution": Convolved()}
    contenders = compiled(layer, arguments, ways)
    contenders["eager PyTorch"] = lambda: layer(*arguments)
    least = measure("depthwise", contenders, rounds=ROUNDS).bests
    yield "depthwise convolution: " + _milliseconds(least, 1)


def stored() -> Iterator[str]:
    """BERT base with 2x128 tokens."""
    import transformers

    config = transformers.BertConfig(attn_implementation="sdpa", use_cache=False)
    tokens = torch.randint(0, config.vocab_size, (2, 128))
    for kind, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        model = transformers.BertModel(config).eval().to(dtype)

        def network(tokens: torch.Tensor, model: Function = model) -> torch.Tensor:
            found: torch.Tensor = model(tokens).last_hidden_state
            return found

        ways = {"stored": kernels.XlaKernels(), "computed again": ComputedAgain()}
        contenders = compiled(network, (tokens,), ways)
        contenders["eager PyTorch"] = lambda network=network: network(tokens)
        yield f"BERT base, {kind}: " + _milliseconds(processor_times(contenders), 0)


def combined() -> Iterator[str]:
    """20,000 updates with a position for each of 64 elements, and along the last dimension."""
    index, source = torch.randint(0, 2000, (20_000, 64)), torch.randn(20_000, 64)
    cases: Mapping[str, tuple[Function, torch.Tensor, torch.Tensor]] = {
        "scatter_add": (
            lambda i, x: torch.zeros(2000, 64).scatter_add(0, i, x),
            index,
            source,
        ),
        "scatter_reduce of maxima": (
            lambda i, x: torch.zeros(2000, 64).scatter_reduce(0, i, x, "amax"),
            index,
            source,
        ),
        "index_add along the last": (
            lambda i, x: torch.zeros(64, 2000).index_add(1, i, x),
            index[:, 0].contiguous(),
            source.T.contiguous(),
        ),
    }
    for name, (function, *arguments) in cases.items():
        ways = {"by a call": kernels.XlaKernels(), "XLA's scatter": Scattered()}
        contenders = compiled(function, arguments, ways)
        contenders["eager PyTorch"] = lambda f=function, a=arguments: f(*a)
        yield f"{name}: " + _milliseconds(processor_times(contenders), 1)


def expressions() -> Iterator[str]:
    """Elementwise expressions as one call, in units of XLA's loop."""
    yield "| | a call / XLA's loop |"
    yield "|---|---|"
    for name, function, arguments in _elementwise():
        ways = {"call": kernels.XlaKernels(), "loop": Looped()}
        least = measure(name, compiled(function, arguments, ways), rounds=ROUNDS * 5).bests
        yield f"| {name} | {least['call'] / least['loop']:.2f} |"


def _elementwise() -> Iterator[tuple[str, Function, Sequence[torch.Tensor]]]:
    def bias(x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return x + side

    def gelu(x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x + side)

    def gated(x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return functional.silu(x) * (x + side)

    def heads(x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return (x + side).view(8, -1, 4, side.shape[0] // 4).transpose(1, 2).contiguous()

    def rotated(x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * side + torch.cat([-right, left], -1) * side

    for function in (bias, gelu, gated, heads, rotated):
        for kind, rows, columns in (
            ("f32", 512, 256),
            ("bf16", 512, 256),
            ("f32", 2048, 1024),
        ):
            arguments = _drawn(kind, rows, columns), _drawn(kind, columns)
            yield f"{function.__name__}, {rows} x {columns}, {kind}", function, arguments


def processor_times(contenders: Contenders) -> dict[str, float]:
    """The least processor time of a call of each, over all threads, in seconds."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, call in contenders.items():
                started = time.process_time()
                call()
                samples[name].append(time.process_time() - started)
    return {name: min(found) for name, found in samples.items()}


def compiled(
    function: Function, arguments: Sequence[torch.Tensor], ways: Mapping[str, Kernels]
) -> dict[str, Callable[[], object]]:
    """Calls of a function that is compiled with each of the kernels."""
    torch.compiler.reset()
    assert isinstance(function, FunctionType)
    return {name: _compiled(function, arguments, chosen) for name, chosen in ways.items()}


def _compiled(
    function: FunctionType, arguments: Sequence[torch.Tensor], chosen: Kernels
) -> Callable[[], object]:
    # Dynamo keeps compilations by code object.
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        argdefs=function.__defaults__,
        closure=function.__closure__,
    )
    found = torch.compile(own, backend="pjrt", options={"placement": "device"})

    def call() -> object:
        with torch.no_grad():
            return found(*arguments)

    with mock.patch.object(aten_kernels, "kernels", return_value=chosen):
        call()
    return call


def _milliseconds(times: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{name} {value * 1e3:.{digits}f} ms" for name, value in times.items())


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "reductions": reductions,
    "depthwise": depthwise,
    "stored": stored,
    "combined": combined,
    "expressions": expressions,
}

if __name__ == "__main__":
    os.environ[VARIABLE] = "off"
    for part in sys.argv[1:] or PARTS:
        for line in PARTS[part]():
            print(line, flush=True)
