"""Two processes of torch.distributed on one machine: training steps beside Inductor, and overlap.

    python -m benchmarks.distributed --rounds 15

torchrun starts the processes, which meet by gloo. In each of them the ways of a case take turns,
and both processes begin a step together. Times are by the clock, of the first process.

- DistributedDataParallel and FSDP2: a small transformer, a step of forward, backward and SGD.
- overlap: two all-reduces of 8 MB, each beside products on the device that do not depend on it;
  without overlap the same graph, in which the device waits for the communication.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.device import Block
from benchmarks.figure import Figure
from benchmarks.processes import ROOT
from pjrt_bridge.mixed import partition

WIDTH, LENGTH, BATCH, LAYERS = 64, 32, 8, 2
PROCESSES = 2
ROUNDS = 15
_ALL_REDUCED = 2 << 20
"""Numbers of four bytes."""
_PRODUCTS = 6
_SQUARE = 384

PJRT, INDUCTOR, EAGER = "pjrt", "inductor", "eager"
OVERLAPPING, ONE_BY_ONE = "overlapping", "one by one"
ASKED: Mapping[str, tuple[str, str, float]] = {
    "DistributedDataParallel": (PJRT, INDUCTOR, 1.2),
    "FSDP2": (PJRT, INDUCTOR, 1.2),
    "two all-reduces of 8 MB": (OVERLAPPING, ONE_BY_ONE, 0.85),
}
"""For each case the way that is asked for, the one beside it, and the ratio of their times."""


class _Model(nn.Module):
    """Blocks of a transformer. For a bare container under a wrapper Dynamo makes no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the last block gives."""
        for block in self.blocks:
            x = block(x)
        return x


def _divided(model: _Model) -> nn.Module:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _step(wrap: Callable[[_Model], nn.Module], backend: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = wrap(_Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run = model if backend == EAGER else torch.compile(model, backend=backend)
    x = torch.randn(BATCH, LENGTH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        run(x).square().mean().backward()
        optimizer.step()

    return step


def _reduced(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first = functional.all_reduce(x, "sum", dist.group.WORLD)
    a = w
    for _ in range(_PRODUCTS):
        a = torch.tanh(a @ w)
    second = functional.all_reduce(y, "sum", dist.group.WORLD)
    b = w.t()
    for _ in range(_PRODUCTS):
        b = torch.tanh(b @ w)
    total = functional.wait_tensor(first).sum() + functional.wait_tensor(second).sum()
    return total + (a @ b).sum()


def _exchange(overlaps: bool) -> Callable[[], object]:
    x, y = torch.ones(_ALL_REDUCED), torch.ones(_ALL_REDUCED)
    w = torch.randn(_SQUARE, _SQUARE) / _SQUARE
    run = torch.compile(lambda *given: _reduced(*given), backend=PJRT)

    def step() -> None:
        with torch.no_grad():
            run(x, y, w).item()

    if overlaps:
        step()
    else:
        with patch.object(partition, "overlapped", lambda graph, before, levels, *_, **__: levels):
            step()
    return step


def _cases() -> Iterator[tuple[str, Mapping[str, Callable[[], object]]]]:
    for name, wrap in (("DistributedDataParallel", DistributedDataParallel), ("FSDP2", _divided)):
        yield name, {backend: _step(wrap, backend) for backend in (PJRT, INDUCTOR, EAGER)}
    ways = {OVERLAPPING: _exchange(overlaps=True), ONE_BY_ONE: _exchange(overlaps=False)}
    yield "two all-reduces of 8 MB", ways


def _work(rounds: int) -> None:
    """One process: prints the seconds of each case and way, if it is the first."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, ways in _cases():
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(-1, rounds):
            order = list(ways)
            shift = turn % len(order)
            for way in order[shift:] + order[:shift]:
                ways[way]()
                dist.barrier()
                started = time.perf_counter()
                ways[way]()
                if turn >= 0:
                    seconds[way].append(time.perf_counter() - started)
        torch.compiler.reset()
        if dist.get_rank() == 0:
            print(json.dumps([name, seconds]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(rounds: int) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Seconds of each round by case and by way.

    Raises:
        RuntimeError: a process failed.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(PROCESSES), "-m", "benchmarks.distributed"]
    done = subprocess.run(
        [*launcher, "--work", "--rounds", str(rounds)], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def figures(rounds: int) -> Iterator[Figure]:
    """Steps of two processes, in units of another way's time."""
    for case, seconds in measure(rounds).items():
        medians = {way: statistics.median(found) for way, found in seconds.items()}
        way, other, asked = ASKED[case]
        sides = ", ".join(f"{name} {1e3 * each:.1f} ms" for name, each in medians.items())
        what = f"{case} in two processes, {way} beside {other}"
        yield Figure(what, medians[way] / medians[other], asked, "x", sides)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        _work(given.rounds)
        return
    for figure in figures(given.rounds):
        print(f"{figure.what}: {figure.found:.2f}x, asked {figure.asked}x ({figure.sides})")


if __name__ == "__main__":
    main()
