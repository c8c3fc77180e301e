"""Torch's device `pjrt`: compiled, fused eager and operator by operator, beside host tensors.

`python -m benchmarks.device` prints medians of forward and backward of a block of GPT, and of one
operator on small tensors. The ways take turns in one process, in an order that changes.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from pjrt_bridge.torch_interop.device import use
from pjrt_bridge.torch_interop.resident.calls import shortcuts
from pjrt_bridge.torch_interop.resident.client import chosen

_SIZES = ((64, 32, 4), (256, 64, 8), (512, 128, 8))
"""Width, length, batch."""


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        parts = self.attention(self.norms[0](x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, 4, width // 4).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


def ways(width: int, length: int, batch: int) -> dict[str, Callable[[], None]]:
    """Forward and backward in each way; the loss and one gradient are read."""
    torch.manual_seed(0)
    x = torch.randn(batch, length, width)

    def step(
        run: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, given: torch.Tensor
    ) -> Callable[[], None]:
        def once() -> None:
            for parameter in model.parameters():
                parameter.grad = None
            loss = run(given)
            loss.backward()
            loss.item()
            model.attention.weight.grad.sum().item()

        return once

    home, there = Block(width), Block(width).to("pjrt")
    resident = x.to("pjrt")
    losses = [lambda x, model=model: model(x).square().mean() for model in (home, there)]
    at_home, resident_loss = (torch.compile(loss, backend="pjrt") for loss in losses)

    def forward(run: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> None:
        with torch.no_grad():
            run(given).item()

    found = {
        "forward: host tensors, compiled": partial(forward, at_home, x),
        "forward: resident, compiled": partial(forward, resident_loss, resident),
        "host tensors, compiled": step(at_home, home, x),
        "resident, compiled": step(resident_loss, there, resident),
    }
    found["resident, eager"] = step(losses[1], there, resident)
    # Programs of operators are kept in the mode in which they were made, for each device.
    other = Block(width).to("pjrt:1")
    fused = step(lambda x: other(x).square().mean(), other, x.to("pjrt:1"))

    def fused_eager() -> None:
        # `mock.patch.dict` copies the whole environment twice.
        os.environ[chosen.EAGER_VARIABLE] = "fused"
        fused()
        del os.environ[chosen.EAGER_VARIABLE]

    found["resident, fused eager"] = fused_eager
    return found


def operator_ways() -> dict[str, Callable[[], None]]:
    """1,000 additions of 4x4 tensors each."""
    home = torch.randn(4, 4)
    there = home.to("pjrt")

    def add(x: torch.Tensor) -> None:
        for _ in range(1000):
            x + x

    def through_python() -> None:
        shortcuts.held_off.append("a benchmark")
        try:
            add(there)
        finally:
            shortcuts.held_off.clear()

    return {
        "host": partial(add, home),
        "resident": partial(add, there),
        "resident, through Python": through_python,
    }


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median of each way, in milliseconds."""
    for step in steps.values():
        for _ in range(4):
            step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        names = list(steps)
        random.shuffle(names)
        for name in names:
            started = time.perf_counter()
            steps[name]()
            taken[name].append(time.perf_counter() - started)
    return {name: 1e3 * statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """Print the table."""
    quick = "--quick" in sys.argv[1:]
    use("cpu", cpu_device_count=2)
    for name, found in measure(operator_ways(), 3 if quick else 25).items():
        # Milliseconds of 1,000 are microseconds of one.
        print(f"4x4 add, {name}: {found:.1f} us")
    rows = {}
    for sizes in _SIZES[: 1 if quick else None]:
        torch._dynamo.reset()
        rows[sizes] = measure(ways(*sizes), 3 if quick else 25)
    names = list(next(iter(rows.values())))
    print("| width, length, batch |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for sizes, times in rows.items():
        cells = []
        for name in names:
            least = times["forward: " * name.startswith("forward") + "resident, compiled"]
            cells.append(f"{times[name]:.2f} ms ({times[name] / least:.2f})")
        print(f"| {', '.join(map(str, sizes))} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
