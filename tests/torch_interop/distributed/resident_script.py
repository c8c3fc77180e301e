"""One process of a test: tensors of the device are exchanged as those of the host are.

Usage: python -m tests.torch_interop.distributed.resident_script NAME RANK WORLD FILE, where FILE is
the meeting point. Prints that all went well.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.torch_interop.helpers import assert_same


def collectives(rank: int, world: int, device: str) -> list[Tensor]:
    x = (torch.arange(4.0).reshape(2, 2) + 10 * rank).to(device)
    found = [x.clone() for _ in range(3)]
    dist.all_reduce(found[0])
    dist.broadcast(found[1], src=1)
    dist.reduce(found[2], dst=0, op=dist.ReduceOp.MAX)
    if rank:
        found.pop()
    pieces = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(pieces, x)
    whole = torch.empty(2 * world, 2, device=device)
    dist.all_gather_into_tensor(whole, x)
    part = torch.empty(2, 2, device=device)
    dist.reduce_scatter_tensor(part, whole)
    turned = torch.empty_like(x)
    dist.all_to_all_single(turned, x)
    gathered = [torch.empty_like(x) for _ in range(world)] if rank == 0 else None
    dist.gather(x, gathered, dst=0)
    mine = torch.empty_like(x)
    dist.scatter(mine, [x + each for each in range(world)] if rank == 0 else None, src=0)
    work = dist.all_reduce(part, async_op=True)
    work.wait()
    dist.barrier()
    return [*found, *pieces, whole, part, turned, *(gathered or []), mine, x]


def messages(rank: int, world: int, device: str) -> list[Tensor]:
    """All receive before they send."""
    x = torch.full((3,), float(rank)).to(device)
    one = torch.empty_like(x)
    works = [
        dist.irecv(one, src=(rank - 1) % world),
        dist.isend(x, dst=(rank + 1) % world),
    ]
    for work in works:
        assert work is not None
        work.wait()
    together = torch.empty_like(x)
    batch = [
        dist.P2POp(dist.irecv, together, (rank - 1) % world),
        dist.P2POp(dist.isend, x + 1, (rank + 1) % world),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    found = [one, together]
    found.append(_from_anyone(rank, x))
    if device == "pjrt":
        _limited_wait(rank, x)
    return found


def _from_anyone(rank: int, x: Tensor) -> Tensor:
    """What the second process sent to the first, which learns who it was."""
    received = torch.empty_like(x)
    if rank == 1:
        dist.send(x * 3, dst=0)
        return x
    assert dist.recv(received) == 1
    return received


def _limited_wait(rank: int, x: Tensor) -> None:
    """A wait that ends before the tensor comes, which is received all the same."""
    if rank == 1:
        dist.barrier()
        dist.send(x * 5, dst=0)
        return
    received = torch.empty_like(x)
    work = dist.irecv(received, src=1)
    assert work is not None
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match=r"no tensor was received within 0\.05 seconds"):
        work.wait(timedelta(milliseconds=50))
    dist.barrier()
    assert work.wait()
    assert work.is_completed()
    assert work.get_future().done()
    assert received.tolist() == [5.0, 5.0, 5.0]


def pipeline(rank: int, world: int, device: str) -> list[Tensor]:
    torch.manual_seed(rank)
    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
    stage = PipelineStage(part, rank, world, torch.device(device))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    x, target = torch.ones(8, 4).to(device), torch.zeros(8, 4).to(device)
    losses: list[Tensor] = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=target, losses=losses)
    gradients = [one.grad for one in part.parameters() if one.grad is not None]
    return [*(loss.detach() for loss in losses), *gradients]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(6, 16, bias=False)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(16), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _data_parallel(rank: int, device: str, *, compiled: bool) -> list[Tensor]:
    torch.manual_seed(0)
    net = DistributedDataParallel(Net().to(device))
    run: Any = torch.compile(net, backend="pjrt") if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=generator).to(device)
        if step % 2:
            with net.no_sync():
                run(x).square().mean().backward()
        loss = run(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(tensor.detach().clone() for tensor in net.state_dict().values())]


def data_parallel(rank: int, world: int, device: str) -> list[Tensor]:
    return _data_parallel(rank, device, compiled=False)


def data_parallel_compiled(rank: int, world: int, device: str) -> list[Tensor]:
    return _data_parallel(rank, device, compiled=device == "pjrt")


class Branches(nn.Module):
    """Each call uses one of two layers, and none the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, which: int) -> Tensor:
        return self.layers[which](x)


def unused_parameters(rank: int, world: int, device: str) -> list[Tensor]:
    """Layers that all processes use, that one uses, and that none does."""
    found = []
    for options, calls in (
        ({"find_unused_parameters": True}, [rank, 0, 1 - rank]),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, [0, rank]),
        ({"static_graph": True}, [1, 1, 1]),
    ):
        torch.manual_seed(0)
        net = DistributedDataParallel(Branches().to(device), **options)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for which in calls:
            optimizer.zero_grad()
            # Torch's reducer asserts that a static graph begins with a call that exchanges.
            if "static_graph" not in options:
                with net.no_sync():
                    net(torch.ones(2, 4).to(device) * rank, which).sum().backward()
            loss = net(torch.ones(2, 4).to(device) * (rank + 1), which).square().mean()
            loss.backward()
            optimizer.step()
            gradients = [each.grad for each in net.parameters()]
            assert [each is None for each in gradients][4:] == [True, True]
            found += [loss.detach(), *(each.clone() for each in gradients if each is not None)]
        found += [tensor.detach().clone() for tensor in net.state_dict().values()]
        assert len(list(net.parameters())) == 6
    return found


def synchronized_norms(rank: int, world: int, device: str) -> list[Tensor]:
    """Statistics of the batches of all processes, one of which may have no elements.

    PyTorch has no kernels of it for the host: there the whole batch is computed in each process.
    """
    found = []
    for sizes, element, shape in (
        ((3, 5), torch.float32, (4, 3, 3)),
        ((3, 0), torch.float32, (4, 3, 3)),
        ((4, 2), torch.bfloat16, (4, 8)),
    ):
        torch.manual_seed(0)
        batches = [torch.randn(size, *shape).to(element) for size in sizes]
        whole = torch.cat(batches)
        factors = torch.randn_like(whole)
        norm: Any = nn.BatchNorm2d(4) if len(shape) == 3 else nn.BatchNorm1d(4)
        with torch.no_grad():
            norm.weight.uniform_(0.5, 2)
        if device == "cpu":
            x = whole.requires_grad_()
            y = norm(x)
            (y * factors).sum().backward()
            mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
            assert x.grad is not None
            found += [y[mine], x.grad[mine]]
        else:
            start = sum(sizes[:rank])
            norm = nn.SyncBatchNorm.convert_sync_batchnorm(norm).to(device)
            x = batches[rank].to(device).requires_grad_()
            y = norm(x)
            (y * factors[start : start + sizes[rank]].to(device)).sum().backward()
            # Of an empty batch there are no gradients.
            for each in (x, *norm.parameters()):
                if each.grad is None:
                    each.grad = torch.zeros_like(each)
            for parameter in norm.parameters():
                dist.all_reduce(parameter.grad)
            found += [y, x.grad]
        found += [each.grad for each in norm.parameters()]
        found += list(norm.buffers())
    return [each.detach().float() for each in found]


def _fully_sharded(rank: int, world: int, device: str, *, compiled: bool) -> list[Tensor]:
    """One part is gathered anew in backward, the other stays as it is."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 4)).to(device)
    mesh = init_device_mesh(device, (world,))
    fully_shard(net[0], mesh=mesh, reshard_after_forward=True)
    fully_shard(net[1], mesh=mesh, reshard_after_forward=False)
    fully_shard(net, mesh=mesh)
    if compiled:
        for layer in net:
            layer.compile(backend="pjrt")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 6, generator=generator).to(device)).square().mean()
        loss.backward()
        norm: Any = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        found += [loss.detach(), norm.full_tensor()]
    states: Any = net.state_dict().values()
    return [*found, *(each.full_tensor().detach() for each in states)]


def fully_sharded(rank: int, world: int, device: str) -> list[Tensor]:
    return _fully_sharded(rank, world, device, compiled=False)


def fully_sharded_compiled(rank: int, world: int, device: str) -> list[Tensor]:
    return _fully_sharded(rank, world, device, compiled=device == "pjrt")


def flat_parameters(rank: int, world: int, device: str) -> list[Tensor]:
    """FSDP of flat parameters, which are gathered where their storage tells that it is freed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4)).to(device)
    where = next(net.parameters()).device
    net = FullyShardedDataParallel(net, device_id=where, use_orig_params=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 6, generator=generator).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    with FullyShardedDataParallel.summon_full_params(net):
        return [*found, *(each.detach().cpu().clone() for each in net.parameters())]


def distributed_tensors(rank: int, world: int, device: str) -> list[Tensor]:
    mesh = init_device_mesh(device, (world,))
    whole = torch.arange(24.0).reshape(4, 6).to(device)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = rows.sin() @ columns.t().cos()
    return [
        columns.to_local(),
        product.full_tensor(),
        (rows * 2).redistribute(mesh, [Replicate()]).to_local(),
        columns.sum().full_tensor(),
    ]


SCENARIOS: tuple[Callable[[int, int, str], list[Tensor]], ...] = (
    collectives,
    messages,
    pipeline,
    distributed_tensors,
    data_parallel,
    data_parallel_compiled,
    unused_parameters,
    synchronized_norms,
    fully_sharded,
    fully_sharded_compiled,
    flat_parameters,
)


def main() -> None:
    name, rank, world, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("error")
    # Torch's own: names that it changes.
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    # As torchrun does; each process has one device, whatever its number.
    os.environ["LOCAL_RANK"] = str(rank)
    meeting = f"file://{Path(file).resolve()}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    scenario = next(each for each in SCENARIOS if each.__name__ == name)
    found = [tensor.cpu() for tensor in scenario(rank, world, "pjrt")]
    assert_same(found, copy.deepcopy(scenario(rank, world, "cpu")), rtol=1e-3)
    print("same", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
