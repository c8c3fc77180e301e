"""What oneDNN's kernels gain in the CPU plugin: by kind, and through torch.compile.

`python -m benchmarks.kernels_onednn` prints the figures. A kind may be slower than XLA where the
probe has ruled it out; the operators below are what a user gets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch

from benchmarks.figure import Figure
from benchmarks.interleave import measure
from pjrt_bridge import registry
from pjrt_bridge_cpu.onednn import VARIABLE
from pjrt_bridge_cpu.onednn.kinds import kinds
from pjrt_bridge_cpu.onednn.probe import finding


def figures(rounds: int) -> Iterator[Figure]:
    """Time with oneDNN in units of the time without, of kinds and then of operators."""
    yield from kind_figures()
    yield from operator_figures(rounds)


def kind_figures() -> Iterator[Figure]:
    """What the probe knows of each kind, at its largest size."""
    library = registry.load("cpu").library
    assert library is not None
    for name in kinds():
        found = finding(library, name)
        ratio = found.ratios[-1][1] if found.ratios else float("nan")
        used = "never used" if found.size is None else f"used from {found.size} on"
        rungs = ", ".join(f"{size}: {value:.2f}" for size, value in found.ratios)
        yield Figure(name, ratio, 1.0, "x", f"{used}; {found.reason or rungs}")


def operator_figures(rounds: int) -> Iterator[Figure]:
    """Compiled operators, each contender with its own compilation."""
    for name, (module, argument) in _operators().items():
        contenders: dict[str, Callable[[], object]] = {"eager": lambda m=module, x=argument: m(x)}
        before = os.environ.get(VARIABLE)
        torch.compiler.reset()
        try:
            for way in ("on", "off"):
                os.environ[VARIABLE] = way
                contenders[way] = _compiled(module, argument, way)
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
        with torch.no_grad():
            found = measure(name, contenders, rounds=rounds)
        times = ", ".join(f"{way} {value * 1e3:.2f} ms" for way, value in found.medians.items())
        yield Figure(name, found.ratio("on", "off"), 1.0, "x", times)


def _compiled(module: torch.nn.Module, argument: torch.Tensor, way: str) -> Callable[[], object]:
    # An operator that does not occur tells the two compilations of one module apart.
    options = {"host_ops": ["aten.sort" if way == "on" else "aten.cumsum"]}
    compiled = torch.compile(module, backend="pjrt", options=options, dynamic=False)
    with torch.no_grad():
        compiled(argument)
    return lambda: compiled(argument)


def _operators() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    nn, half = torch.nn, torch.bfloat16
    image = torch.randn(4, 64, 56, 56)
    return {
        "linear 512x768x3072, bf16": (
            nn.Linear(768, 3072).to(half),
            torch.randn(512, 768).to(half),
        ),
        "linear 512x768x3072, f32": (nn.Linear(768, 3072), torch.randn(512, 768)),
        "conv 3x3, 64 channels of 56x56, bf16": (
            nn.Conv2d(64, 64, 3, padding=1).to(half),
            image.to(half),
        ),
        "conv 3x3, 64 channels of 56x56, f32": (nn.Conv2d(64, 64, 3, padding=1), image),
        "conv 1x1 to 256 channels, no bias, bf16": (
            nn.Conv2d(64, 256, 1, bias=False).to(half),
            image.to(half),
        ),
        "conv 1x1 to 256 channels, no bias, f32": (nn.Conv2d(64, 256, 1, bias=False), image),
        "conv 7x7, stride 2, 224x224, f32": (
            nn.Conv2d(3, 64, 7, stride=2, padding=3),
            torch.randn(4, 3, 224, 224),
        ),
    }


if __name__ == "__main__":
    for figure in figures(15):
        print(f"{figure.what:46} {figure.found:5.2f} {figure.unit}  {figure.sides}", flush=True)
