"""The builds of XLA's CPU plugin side by side, with and without PyTorch's kernels in programs.

`python -m benchmarks.cpu_builds [NAME ...]` prints a table; names restrict the programs. Each build
is a process, and they take turns: one sample each a round, in an order that changes. What `make
plugins-of-others` installs is found where it is.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from pjrt_bridge_cpu.builds import BUILDS, FALLBACK, VARIABLE

_OTHERS = Path(__file__).parent.parent / ".plugins-of-others"
_ROUNDS = 15
_SAMPLE = 0.03
"""Seconds that a sample lasts about."""

Step = Callable[[], object]


class _Block(nn.Module):
    """A layer of GPT-2 small."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(768) for _ in range(2)])
        self.attention, self.projection = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
        self.wide, self.narrow = nn.Linear(768, 3072), nn.Linear(3072, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attention(self.norms[0](x)).split(768, dim=2)
        q, k, v = (part.view(batch, length, 12, 64).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, 768))
        hidden = functional.gelu(self.wide(self.norms[1](x)), approximate="tanh")
        return x + self.narrow(hidden)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(hidden)))


def _of(model: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Step:
    compiled = torch.compile(model, backend="pjrt")

    def step() -> object:
        with torch.no_grad():
            return compiled(*inputs)

    return step


def _training() -> Step:
    model, x = _Block(), torch.randn(1, 128, 768)
    compiled = torch.compile(model, backend="pjrt")

    def step() -> object:
        model.zero_grad()
        return compiled(x).square().mean().backward()

    return step


def _rows() -> Step:
    norm = nn.LayerNorm(1024)
    return _of(lambda x: functional.softmax(norm(x), dim=1), torch.randn(512, 1024))


PROGRAMS: Mapping[str, Callable[[], Step]] = {
    "softmax of normalized rows, 512x1024": _rows,
    "GPT-2 block, inference, 256 tokens": lambda: _of(_Block().eval(), torch.randn(1, 256, 768)),
    "GPT-2 block, training, 128 tokens": _training,
    "depthwise convolution, 64x56x56": lambda: _of(
        nn.Conv2d(64, 64, 3, padding=1, groups=64), torch.randn(4, 64, 56, 56)
    ),
    "embedding bag, 256 bags of 20": lambda: _of(
        nn.EmbeddingBag(50_000, 64, mode="mean"), torch.randint(50_000, (256, 20))
    ),
    "ResNet, four blocks of 64x56x56": lambda: _of(
        nn.Sequential(*(_Residual(64) for _ in range(4))).eval(), torch.randn(1, 64, 56, 56)
    ),
}


def _serve() -> None:
    """Answer each name of a program with seconds a call; the first answer takes compiling."""
    steps: dict[str, tuple[Step, int]] = {}
    for line in sys.stdin:
        name = line.rstrip("\n")
        if name not in steps:
            torch.manual_seed(0)
            step = PROGRAMS[name]()
            for _ in range(3):
                step()
            started = time.perf_counter()
            step()
            once = time.perf_counter() - started
            steps[name] = step, max(1, round(_SAMPLE / once))
        step, calls = steps[name]
        step()
        started = time.perf_counter()
        for _ in range(calls):
            step()
        print(json.dumps((time.perf_counter() - started) / calls), flush=True)


class _Process:
    def __init__(self, build: str, aten: str) -> None:
        path = os.pathsep.join(filter(None, [*sys.path, str(_OTHERS)]))
        more = {"PYTHONPATH": path, VARIABLE: build, "PJRT_BRIDGE_ATEN": aten}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
        )

    def time(self, program: str) -> float:
        """Seconds of a call; not a number where the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(program, file=self._process.stdin, flush=True)
            return float(json.loads(self._process.stdout.readline()))
        except (BrokenPipeError, ValueError):
            return float("nan")

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def main(names: list[str]) -> None:
    """Measure, and print a table of medians in milliseconds."""
    chosen = [name for name in PROGRAMS if not names or any(part in name for part in names)]
    kinds = [(build, aten) for build in BUILDS for aten in ("off", "on")]
    processes = {kind: _Process(*kind) for kind in kinds}
    heads = [f"{build}, {'with' if aten == 'on' else 'without'}" for build, aten in kinds]
    print("| ms |", " | ".join(heads), "|")
    print("|---|" + "---|" * len(kinds))
    ratios: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    for name in chosen:
        samples = {kind: [processes[kind].time(name)] for kind in kinds}
        for _ in range(_ROUNDS):
            for kind in random.sample(kinds, len(kinds)):
                samples[kind].append(processes[kind].time(name))
        medians = {kind: statistics.median(samples[kind][1:]) for kind in kinds}
        cells = [f"{1e3 * seconds:.3g}" for seconds in medians.values()]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
        for kind, seconds in medians.items():
            ratios[kind].append(seconds / medians[FALLBACK, "on"])
    means = [f"{statistics.geometric_mean(found):.2f}" for found in ratios.values()]
    print(f"| mean, relative to {FALLBACK} with them |", " | ".join(means), "|")
    for process in processes.values():
        process.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        _serve()
    else:
        main(sys.argv[1:])
