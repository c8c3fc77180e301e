"""One rank of a test with two processes: what is compiled gives what eager gives.

Usage: python -m tests.torch_interop.mixed.collectives_script RANK FILE, where FILE is the meeting
point of the processes. Prints the number of executables of each scenario that went well.
"""

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed.support import device_segments, mixed

WORLD = 2


def one_of_each(x: Tensor) -> Tensor:
    whole = functional.all_reduce(x.exp(), "sum", dist.group.WORLD)
    product = (x @ x.t()).tanh()
    gathered = functional.all_gather_tensor(
        functional.wait_tensor(whole).cos(), 0, dist.group.WORLD
    )
    scattered = functional.reduce_scatter_tensor(gathered.sin(), "sum", 0, dist.group.WORLD)
    return product @ (scattered * 2 + whole)


def in_program_order(x: Tensor) -> Tensor:
    """Independent collectives behind a different number of changes between device and host."""
    late = x.exp()
    for _ in range(3):
        late = functional.all_reduce(late.cos(), "sum", dist.group.WORLD).sin()
    early = functional.all_reduce(x + 1, "max", dist.group.WORLD)
    third = functional.all_reduce(x * 2, "min", dist.group.WORLD)
    return late.sum() + early.sum() * 3 + third.sum() * 5


def overlapping(x: Tensor) -> Tensor:
    """Work on the device that needs nothing of the first collective."""
    whole = functional.all_reduce(x.exp(), "sum", dist.group.WORLD)
    product = (x @ x.t()).tanh() @ x
    second = functional.all_reduce(product.cos(), "sum", dist.group.WORLD)
    return (whole.sin() + second) * (x.t() @ x).sum()


def in_place(x: Tensor) -> Tensor:
    y = x.exp()
    dist.all_reduce(y)
    pieces = torch.empty(WORLD * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(pieces, y.cos())
    return pieces.sin() @ y.t()


def collectives(rank: int) -> None:
    """Both processes compiled, then one of them alone: it must meet eager in eager's order."""
    for function in (one_of_each, in_program_order, overlapping, in_place):
        run: Callable[[Tensor], Tensor] = mixed(function, fullgraph=True)
        before = sum(device_segments())
        for seed in range(4):
            torch.manual_seed(10 * seed + rank)
            x = torch.randn(4, 3)
            alone = seed >= 2 and rank == seed - 2
            expected = function(x)
            assert_same(function(x) if alone else run(x), expected)
        assert sum(device_segments()) - before >= 2, (function.__name__, device_segments())
    reasons = [
        str(reason)
        for graph in compiled_graphs()
        for segment in graph.segments
        for reason in segment.fallback_reasons
    ]
    assert any("it exchanges 48 bytes with ranks 0, 1 of group" in text for text in reasons), (
        reasons
    )
    placed = [
        "".join("D" if segment.placement == "device" else "H" for segment in graph.segments)
        for graph in compiled_graphs()
    ]
    # Between a start and its wait the device works.
    assert "DHDHD" in placed, placed


class Net(nn.Module):
    """A module of the user's: containers of torch alone give no graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 16)
        self.down = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def steps(run: Callable[..., Tensor], parameters: list[Tensor], rank: int) -> list[Any]:
    found: list[Any] = []
    for seed in range(3):
        torch.manual_seed(10 * seed + rank)
        loss = run(torch.randn(5, 6)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
        found.append(loss.detach())
    return [*found, *(parameter.detach() for parameter in parameters)]


def data_parallel(rank: int) -> None:
    """Three steps of DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    net = Net()
    eager, device = (DistributedDataParallel(copy.deepcopy(net)) for _ in range(2))
    found = steps(mixed(device), list(device.parameters()), rank)
    assert_same(found, steps(eager, list(eager.parameters()), rank), rtol=1e-3)
    assert sum(device_segments()) >= 2


def tensor_parallel(rank: int) -> None:
    """An MLP of which each process has half the hidden units."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(0)
    net = Net()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    eager, device = (parallelize_module(copy.deepcopy(net), mesh, plan) for _ in range(2))
    torch.manual_seed(1)
    x = torch.randn(5, 6)
    results = []
    for candidate, run in ((device, mixed(device)), (eager, eager)):
        loss = run(x).square().mean()
        loss.backward()
        grads = [p.grad.to_local() for p in candidate.parameters()]  # type: ignore[union-attr]
        results.append([loss, *grads[:3]])
    assert_same(*results, rtol=1e-3)
    with torch.no_grad():
        assert_same(mixed(device)(x), net(x))
    assert sum(device_segments()) >= 2, device_segments()


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    # Communication is no fallback.
    warnings.simplefilter("error", HostFallbackWarning)
    # Torch renames these functions; both names work.
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD)
    for scenario in (collectives, data_parallel, tensor_parallel):
        torch.compiler.reset()
        scenario(rank)
        print("segments", scenario.__name__, sum(device_segments()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
