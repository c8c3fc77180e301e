"""Products of few rows beside eager PyTorch, Inductor, and a plain read of the weights.

`python -m benchmarks.thin_products` prints processor time, which other work lengthens least, of
linear layers in bfloat16, with int8 weights, and in float32. "Reading" is a sum of as many bytes by
PyTorch, on one core: what the memory gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional

from benchmarks.interleave import measure

ROUNDS = 9
ROWS = (1, 4, 8, 12)
SIZES = ((768, 3072), (2048, 2048), (4096, 11008))
"""Inner sizes and columns, of small and large models."""


def lines(rounds: int) -> Iterator[str]:
    """A row of a table in Markdown for each case."""
    yield "| rows, inner, columns | weights | of eager and Inductor | of reading | us |"
    yield "|---|---|---|---|---|"
    for inner, columns in SIZES:
        for rows in ROWS:
            x = torch.randn(rows, inner).bfloat16()
            weight = (torch.randn(columns, inner) * 0.1).bfloat16()
            yield _line(f"{rows}, {inner}, {columns} | bfloat16", _linear, (x, weight), rounds)
            whole = torch.randint(-128, 128, (columns, inner), dtype=torch.int8)
            scale = torch.rand(columns).bfloat16()
            yield _line(f"{rows}, {inner}, {columns} | int8", _scaled, (x, whole, scale), rounds)
            exact = x.float(), weight.float()
            yield _line(f"{rows}, {inner}, {columns} | float32", _linear, exact, rounds)


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def _scaled(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight.to(x.dtype)) * scale


def _line(
    name: str,
    function: Callable[..., torch.Tensor],
    arguments: Sequence[torch.Tensor],
    rounds: int,
) -> str:
    weight = arguments[1]
    read = torch.zeros(weight.nbytes // 4)
    compiled = {
        "inductor": torch.compile(function),
        "pjrt": torch.compile(function, backend="pjrt"),
    }
    contenders: dict[str, Callable[[], object]] = {
        "eager": lambda: function(*arguments),
        "reading": lambda: read.sum(),
    }
    for way, call in compiled.items():
        contenders[way] = lambda call=call: call(*arguments)
    with torch.no_grad():
        found = measure(name, contenders, rounds=rounds, clock=time.process_time)
    torch.compiler.reset()
    better = min(("eager", "inductor"), key=found.medians.__getitem__)
    us = ", ".join(f"{way} {value * 1e6:.0f}" for way, value in found.medians.items())
    return (
        f"| {name} | {found.ratio('pjrt', better):.2f} | {found.ratio('pjrt', 'reading'):.2f} "
        f"| {us} |"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for line in lines(ROUNDS):
        print(line, flush=True)
