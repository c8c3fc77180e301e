"""One process of a scenario of torch.distributed: compiled training compared with eager training.

Usage: python -m tests.torch_interop.distributed.scenarios NAME RANK WORLD FILE, where FILE is the
meeting point. Prints the placements of the graphs' segments. A scenario has processes of its own:
some settings of DistributedDataParallel do not survive others in one process, whatever the backend.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.distributed.model import Model, batch, loss_of
from tests.torch_interop.helpers import assert_same

BACKEND = "pjrt"
STEPS = 3

Scenario = Callable[[int, int], None]
_scenarios: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    _scenarios[function.__name__] = function
    return function


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def train(run: Callable[[Tensor], Tensor], net: nn.Module, rank: int) -> list[Tensor]:
    """Losses of some steps, then all parameters."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        tokens = batch(step, rank)
        optimizer.zero_grad()
        loss = loss_of(whole(run(tokens)), tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(whole(parameter.detach()) for parameter in net.parameters())]


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def compare(
    prepare: Callable[[Model], nn.Module],
    compiled: Callable[[nn.Module], Callable[[Tensor], Tensor]],
    rank: int,
    rtol: float = 2e-4,
) -> None:
    expected_net = prepare(model())
    expected = train(expected_net, expected_net, rank)
    net = prepare(model())
    found = train(compiled(net), net, rank)
    assert_same(found, expected, rtol=rtol)


def compile_whole(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.compile(net, backend=BACKEND)


# -- data parallelism ------------------------------------------------------------------------------


def _ddp(**options: Any) -> Callable[[Model], nn.Module]:
    from torch.nn.parallel import DistributedDataParallel

    return lambda net: DistributedDataParallel(net, **options)


@scenario
def ddp(rank: int, world: int) -> None:
    compare(_ddp(bucket_cap_mb=1), compile_whole, rank)


@scenario
def ddp_without_optimizer(rank: int, world: int) -> None:
    torch._dynamo.config.optimize_ddp = False
    compare(_ddp(), compile_whole, rank)


@scenario
def ddp_python_reducer(rank: int, world: int) -> None:
    torch._dynamo.config.optimize_ddp = "python_reducer"
    compare(_ddp(), compile_whole, rank)


@scenario
def ddp_find_unused(rank: int, world: int) -> None:
    compare(_ddp(find_unused_parameters=True), compile_whole, rank)


@scenario
def ddp_static_graph(rank: int, world: int) -> None:
    compare(_ddp(static_graph=True, gradient_as_bucket_view=True), compile_whole, rank)


@scenario
def fsdp(rank: int, world: int) -> None:
    compare(_fsdp(init_device_mesh("cpu", (world,))), compile_whole, rank)


@scenario
def fsdp_blocks(rank: int, world: int) -> None:
    def compiled(net: nn.Module) -> Callable[[Tensor], Tensor]:
        for block in net.blocks:  # type: ignore[union-attr]
            block.compile(backend=BACKEND)
        return net

    compare(_fsdp(init_device_mesh("cpu", (world,))), compiled, rank)


def _fsdp(mesh: DeviceMesh) -> Callable[[Model], nn.Module]:
    from torch.distributed.fsdp import fully_shard

    def prepare(net: Model) -> nn.Module:
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return net

    return prepare


# -- tensor parallelism ----------------------------------------------------------------------------


def _tensor_parallel(net: Model, mesh: DeviceMesh, *, sequence: bool) -> Model:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {
        "q": ColwiseParallel(),
        "k": ColwiseParallel(),
        "v": ColwiseParallel(),
        "out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    if sequence:
        plan["out"] = plan["down"] = RowwiseParallel(output_layouts=Shard(1))
        plan["norm1"] = plan["norm2"] = SequenceParallel()
        for name in ("q", "k", "v", "up"):
            plan[name] = ColwiseParallel(input_layouts=Shard(1))
    for block in net.blocks:
        block.heads = 4
        parallelize_module(block, mesh, plan)
    if sequence:
        whole_plan = {
            "embedding": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=True
            ),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(net, mesh, whole_plan)
    return net


@scenario
def tensor_parallel(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    compare(lambda net: _tensor_parallel(net, mesh, sequence=False), _full_graph, 0)
    _equals_one_process(lambda net: _tensor_parallel(net, mesh, sequence=False))


@scenario
def sequence_parallel(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    compare(lambda net: _tensor_parallel(net, mesh, sequence=True), _full_graph, 0)
    _equals_one_process(lambda net: _tensor_parallel(net, mesh, sequence=True))


@scenario
def data_and_tensor_parallel(rank: int, world: int) -> None:
    """A grid of processes: parameters are divided over rows by FSDP, over columns by a plan."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))

    def prepare(net: Model) -> nn.Module:
        return _fsdp(mesh["dp"])(_tensor_parallel(net, mesh["tp"], sequence=False))

    compare(prepare, compile_whole, rank // (world // 2))


def _full_graph(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.compile(net, backend=BACKEND, fullgraph=True)


def _equals_one_process(prepare: Callable[[Model], nn.Module]) -> None:
    with torch.no_grad():
        tokens = batch(9, 0)
        found = compile_whole(prepare(model()))(tokens)
        assert_same(whole(found), model()(tokens), rtol=2e-4)


# -- others ----------------------------------------------------------------------------------------


@scenario
def distributed_tensor(rank: int, world: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))

    def function(x: Any) -> Any:
        return (x.sin() @ x.redistribute(mesh, [Replicate()]).t()).redistribute(mesh, [Shard(1)])

    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(4 * world, 6), mesh, [Shard(0)])
    found, expected = torch.compile(function, backend=BACKEND)(x), function(x)
    assert found.placements == expected.placements
    assert_same(found.to_local(), expected.to_local())


@scenario
def pipeline(rank: int, world: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def run(compiled: bool) -> list[Tensor]:
        torch.manual_seed(rank)
        part = nn.Sequential(*model().blocks[:1])
        module: Any = torch.compile(part, backend=BACKEND) if compiled else part
        stage = PipelineStage(module, rank, world, torch.device("cpu"))
        schedule = ScheduleGPipe(
            stage, 4, loss_fn=lambda out, target: (out - target).square().mean()
        )
        torch.manual_seed(5)
        x, target = torch.randn(8, 4, 32), torch.randn(8, 4, 32)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        grads = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
        return [*(loss.detach() for loss in losses), *grads]

    # The gradient of a key's bias is zero but for rounding.
    torch.testing.assert_close(run(compiled=True), run(compiled=False), rtol=2e-4, atol=1e-7)


@scenario
def checkpoint(rank: int, world: int) -> None:
    """A model and its optimizer are saved while they are compiled, and loaded after a change."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    net = _fsdp(init_device_mesh("cpu", (world,)))(model())
    net.compile(backend=BACKEND)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    tokens = batch(0, rank)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(net(tokens), tokens)
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    weights, state = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    expected = [step(), step()]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    weights, state = get_state_dict(net, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=state)
    assert [step(), step()] == expected


def run_one(known: dict[str, Scenario]) -> None:
    """The scenario that the command names."""
    name, rank, world, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("error", HostFallbackWarning)
    torch.set_num_threads(1)
    meeting = f"file://{Path(file).resolve()}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    known[name](rank, world)
    placed = [
        "".join("D" if segment.placement == "device" else "H" for segment in graph.segments)
        for graph in compiled_graphs()
    ]
    assert any("D" in graph for graph in placed), placed
    print("graphs", " ".join(placed), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_one(_scenarios)
