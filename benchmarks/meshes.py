"""A stack of blocks of GPT-2 over a mesh of two by two devices, beside one device.

    python -m benchmarks.meshes --rounds 15

One process, and four devices of the CPU plugin, which share the cores of one processor. The model,
the batch and AdamW's state are resident. The two ways take turns; times are by the clock, and by
the processor, of which a mesh takes more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from benchmarks.device import Block
from benchmarks.figure import Figure
from pjrt_bridge.torch_interop.device import use
from pjrt_bridge.torch_interop.sharding import Mesh, parallelize

WIDTH, LENGTH, BATCH, LAYERS = 384, 64, 8, 4
ONE, MESH = "one device", "2x2 devices"
ROUNDS = 15
_CHECKED = 3
"""Steps whose losses are compared."""
_TOLERANCE = 1e-6
_PLAN = {
    "*.attention": ColwiseParallel(),
    "*.projection": RowwiseParallel(),
    "*.wide": ColwiseParallel(),
    "*.narrow": RowwiseParallel(),
}


@dataclass
class Times:
    """Seconds of each round of one call.

    Attributes:
        clock: by the clock.
        processor: of all threads of the process together.
    """

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


class _Training:
    """A model with its optimizer, both compiled, on one device or over the mesh."""

    def __init__(self, mesh: Mesh | None) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*[Block(WIDTH) for _ in range(LAYERS)])
        if mesh is None:
            model.to("pjrt")
        else:
            parallelize(model, mesh, _PLAN)
        options = {} if mesh is None else {"mesh": mesh}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self._x = torch.randn(BATCH, LENGTH, WIDTH).to("pjrt")
        self._model = torch.compile(model, backend="pjrt", options=options)
        self._optimizer = optimizer
        self._update = torch.compile(optimizer.step, backend="pjrt", options=options)

    def forward(self) -> None:
        """The forward pass alone; one number is read, so that it has ended."""
        with torch.no_grad():
            self._model(self._x).sum().item()

    def step(self) -> float:
        """Forward, backward and update: the loss."""
        self._optimizer.zero_grad()
        loss = self._model(self._x).square().mean()
        loss.backward()
        self._update()
        return loss.item()


def measure(rounds: int) -> Mapping[str, Mapping[str, Times]]:
    """Times by call ("forward", "step") and by way; the first steps, which compile, are compared.

    Raises:
        ValueError: the losses over the mesh are not those of one device.
    """
    use("cpu", cpu_device_count=4)
    ways = {ONE: _Training(None), MESH: _Training(Mesh(dp=2, tp=2))}
    losses = {name: [way.step() for _ in range(_CHECKED)] for name, way in ways.items()}
    for found, expected in zip(losses[MESH], losses[ONE], strict=True):
        if abs(found - expected) > _TOLERANCE * abs(expected):
            raise ValueError(f"losses over the mesh: found {losses[MESH]}, expected {losses[ONE]}")
    times = {}
    for call in ("forward", "step"):
        calls: dict[str, Callable[[], object]] = {
            name: getattr(way, call) for name, way in ways.items()
        }
        times[call] = _in_turns(calls, rounds)
    return times


def _in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> Mapping[str, Times]:
    times = {name: Times() for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % 2 :] + names[: turn % 2]:
            calls[name]()
            clock, processor = time.perf_counter(), time.process_time()
            calls[name]()
            times[name].processor.append(time.process_time() - processor)
            times[name].clock.append(time.perf_counter() - clock)
    return times


_ASKED = {"forward": 0.7, "step": 1.0}


def figures(rounds: int) -> Iterator[Figure]:
    """Forward pass and training step over the mesh, in units of one device's time."""
    for call, times in measure(rounds).items():
        medians = {name: statistics.median(item.clock) for name, item in times.items()}
        sides = ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in medians.items())
        what = f"a {call} pass over a mesh" if call == "forward" else "a training step over a mesh"
        yield Figure(
            f"{what}, beside one device", medians[MESH] / medians[ONE], _ASKED[call], "x", sides
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    print(f"{'':12}{'':14}{'clock':>10}{'ratio':>7}{'processor':>12}{'ratio':>7}")
    for call, times in measure(parser.parse_args().rounds).items():
        clock = {name: statistics.median(item.clock) for name, item in times.items()}
        processor = {name: statistics.median(item.processor) for name, item in times.items()}
        for name in times:
            print(
                f"{call:12}{name:14}{1e3 * clock[name]:7.0f} ms{clock[name] / clock[ONE]:7.2f}"
                f"{1e3 * processor[name]:9.0f} ms{processor[name] / processor[ONE]:7.2f}"
            )


if __name__ == "__main__":
    main()
