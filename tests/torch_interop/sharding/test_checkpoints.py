"""Distributed checkpoints of divided models, loaded where they are divided otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from pjrt_bridge.torch_interop.sharding import (
    Mesh,
    full,
    fully_shard,
    mark_sharding,
    parallelize,
    sharding_of,
)

Divide = Callable[[nn.Module], Any]


@pytest.fixture(autouse=True)
def _one_process() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to", UserWarning)
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))


PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
DIVISIONS: dict[str, Divide] = {
    "fsdp": lambda model: fully_shard(model, Mesh(fsdp=4)),
    "tp": lambda model: parallelize(model, Mesh(tp=4), PLAN),
    "whole": lambda model: parallelize(model, Mesh(dp=4)),
    "one device": lambda model: model.to("pjrt"),
    "host": lambda model: model,
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(8, 16, generator=numbers).to(next(model.parameters()).device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def trained(divide: Divide) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    divide(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(2):
        step(model, optimizer)
    return model, optimizer


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, kept = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": kept}


@pytest.mark.parametrize("division", DIVISIONS)
def test_what_was_saved_is_divided_as_where_it_is_loaded(tmp_path: Path, division: str) -> None:
    mesh = Mesh(dp=2, tp=2)
    model, optimizer = trained(lambda model: parallelize(model, mesh, PLAN))
    dcp.save(state(model, optimizer), checkpoint_id=tmp_path, no_dist=True)

    other = network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(7)
    DIVISIONS[division](other)
    before = [_sharding(parameter) for parameter in other.parameters()]
    fresh = torch.optim.AdamW(other.parameters(), lr=0.05)
    loaded = state(other, fresh)
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(
        other,
        fresh,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    assert [_sharding(parameter) for parameter in other.parameters()] == before
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.detach().cpu(), theirs.detach().cpu())
        for key, value in optimizer.state[mine].items():
            assert torch.equal(value.cpu(), fresh.state[theirs][key].cpu()), key
            if key != "step":
                assert _sharding(fresh.state[theirs][key]) == _sharding(theirs), key
    # Training goes on as it would have.
    assert step(other, fresh) == pytest.approx(step(model, optimizer), rel=1e-5)
    assert step(other, fresh) == pytest.approx(step(model, optimizer), rel=1e-5)


def _sharding(tensor: torch.Tensor) -> Any:
    return None if tensor.device.type == "cpu" else sharding_of(tensor.detach())


def test_a_checkpoint_of_the_host(tmp_path: Path) -> None:
    model, optimizer = trained(lambda model: model)
    dcp.save(state(model, optimizer), checkpoint_id=tmp_path, no_dist=True)
    other = network()
    mesh = Mesh(fsdp=2, tp=2)
    parallelize(other, mesh, PLAN)
    fully_shard(other, mesh)
    loaded = {"model": other.state_dict()}
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, full(theirs))
        assert str(sharding_of(theirs.detach())).count("fsdp") == 2


def test_no_device_gets_all_of_what_is_loaded() -> None:
    """Each device is sent its part of a tensor, and nothing in between."""
    mesh = Mesh(fsdp=4)
    target = mark_sharding(torch.zeros(64, 16), mesh, ("fsdp",))
    puts: list[tuple[int, ...]] = []
    client: Any = mesh.client
    put_host = client.put_host

    def counted(host: Any, *args: Any) -> Any:
        puts.append(tuple(host.shape))
        return put_host(host, *args)

    client.put_host = counted
    try:
        target.copy_(torch.arange(1024.0).reshape(64, 16))
    finally:
        del client.put_host
    assert puts == [(16, 16)] * 4
    assert torch.equal(full(target), torch.arange(1024.0).reshape(64, 16))


def test_what_is_like_a_divided_tensor_is_divided_likewise() -> None:
    mesh = Mesh(dp=2, tp=2)
    tensor = mark_sharding(torch.randn(8, 4), mesh, ("tp", "dp"))
    expected = sharding_of(tensor)
    for made, values in (
        (torch.zeros_like(tensor), torch.zeros(8, 4)),
        (torch.ones_like(tensor), torch.ones(8, 4)),
        (torch.full_like(tensor, 3), torch.full((8, 4), 3.0)),
        (torch.zeros_like(tensor, dtype=torch.int64), torch.zeros(8, 4, dtype=torch.int64)),
        (torch.zeros_like(tensor).mul_(2).add_(tensor), full(tensor)),
    ):
        assert sharding_of(made) == expected
        assert torch.equal(full(made), values)
    assert sharding_of(torch.empty_like(tensor)) == expected
    assert sharding_of(torch.rand_like(tensor)) == expected
    # Of another shape or order in memory nothing is said.
    assert sharding_of(torch.zeros_like(tensor[:4])) is None
    assert torch.equal(torch.zeros_like(tensor.t()).cpu(), torch.zeros(4, 8))
