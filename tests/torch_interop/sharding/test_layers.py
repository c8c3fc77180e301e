"""Kinds of layers over a mesh, whose gradients are those of PyTorch on the host."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.sharding import (
    Mesh,
    full,
    fully_shard,
    mark_sharding,
    parallelize,
    sharding_of,
)

pytestmark = pytest.mark.usefixtures("fresh")


def check_gradients(
    model: nn.Module,
    mesh: Mesh,
    divide: Callable[[nn.Module, Mesh], object],
    x: torch.Tensor,
    *,
    whole: bool = True,
) -> None:
    """Compare a step over the mesh with PyTorch; gradients of a graph lie as their parameters.

    Args:
        model: on the host.
        mesh: the devices.
        divide: divides it.
        x: a batch.
        whole: all of the model is one graph.
    """
    expected = copy.deepcopy(model)
    divide(model, mesh)
    options = {"mesh": mesh, "fallback": "error"}
    compiled = torch.compile(model, backend="pjrt", fullgraph=whole, options=options)
    compiled(x.to("pjrt")).square().mean().backward()
    expected(x).square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        if whole:
            assert sharding_of(one.grad) == sharding_of(one), name
        torch.testing.assert_close(full(one.grad), other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("divide", [parallelize, fully_shard])
@pytest.mark.parametrize("groups", [2, 8])
def test_convolutions_with_groups(mesh: Mesh, groups: int, divide: Callable[..., object]) -> None:
    model = nn.Conv2d(8, 8, 3, stride=2, groups=groups)
    check_gradients(model, mesh, divide, torch.randn(8, 8, 8, 8))


class Experts(nn.Module):
    """Four layers, each over all rows; the gradient of the weight is computed transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 16) to (rows, 4, 32)."""
        return torch.einsum("nd,edf->nef", x, self.weight).relu()


@pytest.mark.parametrize("spec", [("tp",), (None, "tp"), (None, None, "tp")])
def test_gradients_that_lie_otherwise(mesh: Mesh, spec: tuple[str | None, ...]) -> None:
    def divide(model: nn.Module, mesh: Mesh) -> None:
        mark_sharding(model.weight, mesh, spec)

    check_gradients(Experts(), mesh, divide, torch.randn(8, 16))


def test_views_in_another_order_stay_divided(mesh: Mesh) -> None:
    x = torch.randn(4, 6, 8)
    given = mark_sharding(x, mesh, ("dp", None, "tp"))
    moved = given.permute(1, 2, 0).contiguous()
    torch.testing.assert_close(full(moved), x.permute(1, 2, 0))
    assert sharding_of(moved) == sharding_of(given.permute(1, 2, 0))
    assert not sharding_of(moved).is_replicated
    before = sharding_of(given)
    given.permute(2, 0, 1).copy_(moved.permute(1, 2, 0) + 1)
    assert sharding_of(given) == before
    torch.testing.assert_close(full(given), x + 1)


@pytest.mark.parametrize(("kind", "whole"), [(nn.LSTM, False), (nn.LSTM, True), (nn.GRU, False)])
def test_recurrent_layers(mesh: Mesh, kind: type[nn.RNNBase], whole: bool) -> None:
    """They have weak references to their parameters, and Dynamo does not trace them by default."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = kind(8, 8, num_layers=2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layers(x)[0]
            return found

    with torch._dynamo.config.patch(allow_rnn=whole):
        check_gradients(Network(), mesh, fully_shard, torch.randn(4, 5, 8), whole=whole)


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (lambda: nn.LSTM(8, 8, num_layers=2), (None, "dp")),
        (lambda: nn.GRU(8, 8, batch_first=True, bidirectional=True), ("dp",)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (None, "dp")),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), ("dp",)),
    ],
    ids=["time first", "batch first", "sequence first", "attention batch first"],
)
def test_batches_that_are_not_first_stay_divided(
    mesh: Mesh, make: Callable[[], nn.Module], spec: tuple[str | None, ...]
) -> None:
    """Products of (time, batch, width): devices exchange nothing but gradients of parameters."""
    model = parallelize(make(), mesh)
    x = mark_sharding(torch.randn(4, 4, 8), mesh, spec)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="pjrt", fullgraph=True, options={"mesh": mesh})
        found = compiled(x)
        y = found[0] if isinstance(found, tuple) else found
        y.square().mean().backward()
    assert sharding_of(y) == sharding_of(x)
    exchanges = {
        graph.kind: [one.operation for segment in graph.segments for one in segment.exchanges]
        for graph in compiled_graphs()
        if graph.kind in ("forward", "backward")
    }
    assert exchanges == {"forward": [], "backward": ["all-reduce"]}


def test_a_parameter_stays_the_object_that_it_was(mesh: Mesh) -> None:
    parameter = nn.Parameter(torch.randn(4, 4))
    parameter.user = "named"  # type: ignore[attr-defined]
    reference = weakref.ref(parameter)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    expected = parameter.detach().clone()
    assert mark_sharding(parameter, mesh, ("dp",)) is parameter
    assert reference() is parameter
    assert parameter.user == "named"  # type: ignore[attr-defined]
    parameter.square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(full(parameter), expected * 0.8)


@pytest.mark.parametrize("rows", [8, 256], ids=["copied", "in place"])
def test_what_is_filled_for_the_first_time_is_divided_as_its_values(mesh: Mesh, rows: int) -> None:
    x = torch.randn(rows, 128)
    given = mark_sharding(x, mesh, ("dp", "tp"))
    for dtype in (torch.float32, torch.bfloat16):
        filled = torch.empty(x.shape, dtype=dtype, device="pjrt").copy_(given)
        assert sharding_of(filled) == sharding_of(given.to(dtype)) == sharding_of(given)
        torch.testing.assert_close(full(filled), x.to(dtype))


def test_modules_of_another_type_stay_divided(mesh: Mesh) -> None:
    model = nn.Linear(8, 8)
    mark_sharding(model.weight, mesh, ("tp",))
    before = sharding_of(model.weight)
    assert sharding_of(model.to(torch.bfloat16).weight) == before
    assert sharding_of(model.float().weight) == before


def test_states_from_the_host_are_divided_as_gradients(mesh: Mesh) -> None:
    """As they are when training is resumed."""
    model = nn.Linear(8, 8)
    mark_sharding(model.weight, mesh, ("tp",))
    first = torch.optim.AdamW([model.weight], foreach=False)
    model.weight.square().sum().backward()
    first.step()
    saved = first.state_dict()
    for values in saved["state"].values():
        values.update({name: full(one) for name, one in values.items() if one.dim()})
    second = torch.optim.AdamW([model.weight], foreach=False)
    second.load_state_dict(saved)
    second.step()
    assert sharding_of(second.state[model.weight]["exp_avg"]) == sharding_of(model.weight)


def test_scatters_at_positions_that_do_not_divide(mesh: Mesh) -> None:
    def count(lengths: torch.Tensor) -> torch.Tensor:
        offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
        zeros = torch.zeros(6, dtype=torch.int64, device=lengths.device)
        return zeros.scatter_add(0, offsets, torch.ones_like(offsets))

    lengths = torch.tensor([2, 0, 3, 0])
    given = mark_sharding(lengths, mesh, ("dp",))
    found = torch.compile(count, backend="pjrt", fullgraph=True)(given)
    torch.testing.assert_close(full(found), count(lengths))
