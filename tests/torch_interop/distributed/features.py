"""One process of a scenario: features of torch.distributed beyond those of `scenarios`.

Usage: python -m tests.torch_interop.distributed.features NAME RANK WORLD FILE, as `scenarios` has
it. Each is compiled training compared with eager training.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.torch_interop.distributed.model import Model, batch, loss_of
from tests.torch_interop.distributed.scenarios import (
    BACKEND,
    Scenario,
    compare,
    compile_whole,
    model,
    run_one,
    train,
    whole,
)
from tests.torch_interop.helpers import assert_same

Prepared = Callable[[Any], Any]
_scenarios: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    _scenarios[function.__name__] = function
    return function


def _compiled(function: Any) -> Any:
    return torch.compile(function, backend=BACKEND)


def _same(run: Callable[[Prepared], list[Tensor]]) -> None:
    """With what is compiled and without."""
    expected = run(lambda function: function)
    torch.compiler.reset()
    assert_same(run(_compiled), expected, rtol=2e-4)


def _parameters(net: nn.Module) -> list[Tensor]:
    return [whole(parameter.detach()) for parameter in net.parameters()]


# -- data parallelism ------------------------------------------------------------------------------


@scenario
def half_precision_hook(rank: int, world: int) -> None:
    """Gradients are exchanged in half precision."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def prepared(net: Model) -> nn.Module:
        parallel = DistributedDataParallel(net)
        parallel.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
        return parallel

    # Values that differ in their last bit round to neighbours of half precision.
    compare(prepared, compile_whole, rank, rtol=1e-2)


@scenario
def accumulated(rank: int, world: int) -> None:
    """Steps without exchange, then one with it, and a limit to the gradients' norm."""

    def run(prepared: Prepared) -> list[Tensor]:
        net = DistributedDataParallel(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        function, found = prepared(net), []
        for step in range(4):
            with nullcontext() if step % 2 else net.no_sync():
                tokens = batch(step, rank)
                loss = loss_of(function(tokens), tokens)
                loss.backward()
            found.append(loss.detach())
            if step % 2:
                found.append(nn.utils.clip_grad_norm_(net.parameters(), 0.5))
                optimizer.step()
                optimizer.zero_grad()
        return found

    _same(run)


@scenario
def uneven_inputs(rank: int, world: int) -> None:
    """A process has more batches than the other; optimizer states are divided."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(prepared: Prepared) -> list[Tensor]:
        net = DistributedDataParallel(model())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        function = prepared(net)
        with net.join():
            for step in range(2 + rank):
                tokens = batch(step, rank)
                optimizer.zero_grad()
                loss_of(function(tokens), tokens).backward()
                optimizer.step()
        divided = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-3)
        tokens = batch(9, rank)
        divided.zero_grad()
        loss_of(function(tokens), tokens).backward()
        divided.step()
        with torch.no_grad():
            return [function(tokens)]

    _same(run)


# -- parameters that are divided -------------------------------------------------------------------


def _divided(**options: Any) -> Callable[[Model], nn.Module]:
    from torch.distributed.fsdp import fully_shard

    def prepared(net: Model) -> nn.Module:
        for block in net.blocks:
            fully_shard(block, **options)
        fully_shard(net, **options)
        return net

    return prepared


@scenario
def mixed_precision(rank: int, world: int) -> None:
    """Over two dimensions of a mesh (HSDP); products in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "parts"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    compare(_divided(mesh=mesh), compile_whole, rank)
    torch.compiler.reset()
    prepared = _divided(mesh=mesh, mp_policy=policy)
    expected_net, net = prepared(model()), prepared(model())
    expected = train(expected_net, expected_net, rank)
    found = train(compile_whole(net), net, rank)
    # Parameters that begin as zeros are as large as the rounding of gradients to bfloat16.
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


@scenario
def compiled_optimizer(rank: int, world: int) -> None:
    """Weights that stay gathered, a limit to the norm of divided gradients, a compiled step."""
    mesh = init_device_mesh("cpu", (world,))

    def run(prepared: Prepared) -> list[Tensor]:
        net = _divided(mesh=mesh, reshard_after_forward=False)(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

        def update() -> Tensor:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            return norm

        function, found = prepared(net), []
        step = prepared(update)
        for number in range(3):
            tokens = batch(number, rank)
            optimizer.zero_grad()
            loss = loss_of(function(tokens), tokens)
            loss.backward()
            found += [loss.detach(), whole(step())]
        return found

    _same(run)


# -- others ----------------------------------------------------------------------------------------


@scenario
def placements(rank: int, world: int) -> None:
    """Distributed tensors in and out of functions, in parts that differ, and their gradients."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    whole_, rows, columns = Replicate(), Shard(0), Shard(1)
    torch.manual_seed(0)
    left, right = torch.randn(5, 7), torch.randn(7, 3)
    functions: list[tuple[Callable[[Any, Any], Any], Any, Any]] = [
        (lambda x, y: x @ y, rows, whole_),
        (lambda x, y: (x @ y).redistribute(mesh, [whole_]).relu(), columns, rows),
        (lambda x, y: (x @ y).redistribute(mesh, [columns]).sum(), columns, rows),
        (lambda x, y: x.softmax(1) @ y, columns, columns),
        (lambda x, y: x.std() + y.norm(), rows, columns),
    ]
    for function, *divided in functions:
        torch.compiler.reset()
        results = []
        for one in (function, _compiled(function)):
            leaves = [
                distribute_tensor(tensor, mesh, [placement]).requires_grad_()
                for tensor, placement in zip((left, right), divided, strict=True)
            ]
            y = one(*leaves)
            y.sum().backward()
            results.append((y.placements, [whole(each) for each in (y, *(x.grad for x in leaves))]))
        (expected_placements, expected), (found_placements, found) = results
        assert found_placements == expected_placements
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@scenario
def divided_losses(rank: int, world: int) -> None:
    """The head's columns are divided, and the loss outside of the compiled model is, too."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world,))
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)

    def run(prepared: Prepared) -> list[Tensor]:
        net = parallelize_module(model(), mesh, {"head": head})
        function, found = prepared(net), []
        for step in range(2):
            tokens = batch(step, 0)
            with loss_parallel():
                scores = function(tokens)[:, :-1].flatten(0, 1)
                loss = cross_entropy(scores, tokens[:, 1:].flatten())
                net.zero_grad()
                loss.backward()
            found += [whole(loss.detach()), whole(net.head.weight.grad)]
        return found

    _same(run)


@scenario
def schedules(rank: int, world: int) -> None:
    """Each process has one stage of two blocks, or two stages of one."""
    from torch.distributed import pipelining

    def run(prepared: Prepared, kind: Any, stages: int) -> list[Tensor]:
        torch.manual_seed(0)
        blocks = list(Model(2 * world).blocks)
        if stages == 1:
            parts = [nn.Sequential(*blocks[2 * rank : 2 * rank + 2])]
        else:
            parts = [nn.Sequential(blocks[rank + world * at]) for at in range(2)]
        made = [
            pipelining.PipelineStage(
                prepared(part), rank + world * at, stages * world, torch.device("cpu")
            )
            for at, part in enumerate(parts)
        ]
        schedule = kind(
            made if stages > 1 else made[0],
            4,
            loss_fn=lambda out, target: (out - target).square().mean(),
        )
        torch.manual_seed(5)
        x, target = torch.randn(8, 4, 32), torch.randn(8, 4, 32)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        gradients = [each.grad for part in parts for each in part.parameters()]
        return [
            *(loss.detach() for loss in losses),
            *(each for each in gradients if each is not None),
        ]

    for kind, stages in (
        (pipelining.Schedule1F1B, 1),
        (pipelining.ScheduleInterleaved1F1B, 2),
        (pipelining.ScheduleLoopedBFS, 2),
    ):
        torch.compiler.reset()
        expected = run(lambda part: part, kind, stages)
        found = run(_compiled, kind, stages)
        # The gradient of a key's bias is zero but for rounding.
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-7)


@scenario
def collectives(rank: int, world: int) -> None:
    """Collective operations within a function, in place and functional, and their gradients."""
    group = dist.group.WORLD
    assert group is not None

    def in_place(x: Tensor) -> Tensor:
        gathered = torch.empty(world * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(gathered, x * 2)
        part, turned = torch.empty_like(x), torch.empty_like(x)
        dist.reduce_scatter_tensor(part, gathered.sin())
        dist.all_to_all_single(turned, part.cos())
        dist.all_reduce(turned, op=dist.ReduceOp.MAX)
        return turned + gathered[: x.shape[0]]

    def lists(x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        pieces = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(pieces, total * (rank + 1))
        return torch.stack(pieces).sum(0) * x

    def without_names(x: Tensor) -> Tensor:
        started = [functional.all_reduce(x * factor, "sum", group) for factor in range(3)]
        return torch.stack([each.sin() for each in started]).sum(0)

    def differentiable(x: Tensor) -> Tensor:
        gathered = functional.all_gather_tensor_autograd(x.sin(), 0, group)
        part = functional.reduce_scatter_tensor_autograd(gathered * x.sum(), "sum", 0, group)
        return part.square()

    x = torch.arange(8.0).reshape(4, 2) + rank
    for function in (in_place, lists, without_names):
        torch.compiler.reset()
        assert_same(_compiled(function)(x), function(x), rtol=1e-5)
    gradients = []
    for function in (differentiable, _compiled(differentiable)):
        leaf = x.clone().requires_grad_()
        function(leaf).sum().backward()
        gradients.append(leaf.grad)
    assert_same(gradients[1], gradients[0], rtol=1e-5)


if __name__ == "__main__":
    run_one(_scenarios)
