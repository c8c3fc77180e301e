"""What PyTorch's kernels gain within programs of the CPU plugin, by operator and size.

`python -m benchmarks.kernels_aten` prints the figures: a compiled operator with its call in units
of one without, whatever was measured on the processor (`PJRT_BRIDGE_ATEN=always`). Where no rule of
`pjrt_bridge_cpu.aten` allows a call, both sides are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.interleave import measure
from pjrt_bridge import environment
from pjrt_bridge_cpu.aten import VARIABLE

Operator = tuple[Callable[..., object], tuple[torch.Tensor, ...]]


def figures(rounds: int) -> Iterator[Figure]:
    """Each contender has its own compilation; eager PyTorch is there to compare with."""
    for name, (function, arguments) in _operators():
        contenders: dict[str, Callable[[], object]] = {
            "eager": lambda f=function, a=arguments: f(*a)
        }
        for way in ("always", "off"):
            contenders[way] = _compiled(function, arguments, way)
        with torch.no_grad():
            found = measure(name, contenders, rounds=rounds)
        times = ", ".join(f"{way} {value * 1e3:.3f} ms" for way, value in found.medians.items())
        yield Figure(name, found.ratio("always", "off"), 1.0, "x", times)


def _compiled(
    function: Callable[..., object], arguments: tuple[torch.Tensor, ...], way: str
) -> Callable[[], object]:
    def call(*given: torch.Tensor) -> object:
        return function(*given)

    # Dynamo keeps what it compiled by code object, and would share it between the ways.
    call.__code__ = call.__code__.replace(co_name=f"call_{way}")
    compiled = torch.compile(call, backend="pjrt", options={"placement": "device"})
    with mock.patch.dict(os.environ, {VARIABLE: way}), torch.no_grad():
        compiled(*arguments)
    return lambda: compiled(*arguments)


def _operators() -> Iterator[tuple[str, Operator]]:
    random = torch.Generator().manual_seed(0)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype)[6:]
        for m, k, n in ((16, 128, 128), (32, 256, 256), (256, 1024, 1024), (1024, 768, 3072)):
            sides = (drawn(m, k, dtype=dtype), drawn(n, k, dtype=dtype))
            yield f"linear {m}x{k}x{n}, {kind}", (functional.linear, sides)
        for channels, size in ((16, 14), (64, 28), (64, 56)):
            sides = (
                drawn(4, channels, size, size, dtype=dtype),
                drawn(channels, channels, 3, 3, dtype=dtype),
            )
            yield (
                f"conv 3x3, {channels} channels of {size}x{size}, {kind}",
                (
                    lambda x, w: functional.conv2d(x, w, padding=1),
                    sides,
                ),
            )
        for length in (32, 128, 512):
            sides = tuple(drawn(2, 8, length, 64, dtype=dtype) for _ in range(3))
            yield (
                f"attention, 16 heads of {length}x64, {kind}",
                (
                    functional.scaled_dot_product_attention,
                    sides,
                ),
            )
    for rows in (4, 64, 1000):
        x = (drawn(rows, 1000),)
        for name, function in (
            ("softmax", lambda x: x.softmax(-1)),
            ("argmax", lambda x: x.argmax(-1)),
            ("sum", lambda x: x.sum(-1)),
            ("cumsum", lambda x: x.cumsum(-1)),
            ("topk of 10", lambda x: x.topk(10)),
            ("sort", lambda x: x.sort()),
        ):
            yield f"{name} of {rows}x1000, float32", (function, x)


if __name__ == "__main__":
    # The first program waits until the kernels have been tried on this processor.
    os.environ[environment.BACKGROUND_VARIABLE] = "off"
    for figure in figures(15):
        print(f"{figure.what:46} {figure.found:5.2f} {figure.unit}  {figure.sides}", flush=True)
