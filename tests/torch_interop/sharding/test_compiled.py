"""Models over a mesh, compiled: inference, training, and what stays divided."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pjrt_bridge.torch_interop.sharding import Mesh, full, mark_sharding, sharding_of
from tests.torch_interop.sharding.models import Gpt, Mlp, divide_layers, divide_states
from tests.torch_interop.sharding.test_marking import spec_of

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("stated", [True, False])
def test_inference(mesh: Mesh, stated: bool) -> None:
    """A batch is divided where the options name the mesh; otherwise the values say what is."""
    model = Mlp().to("pjrt")
    expected = copy.deepcopy(model).to("cpu")
    divide_layers(model, mesh)
    options = {"fallback": "error", **({"mesh": mesh} if stated else {})}
    compiled = torch.compile(model, backend="pjrt", fullgraph=True, options=options)
    x = torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(2):
            y = compiled(x.to("pjrt"))
            assert spec_of(y) == ("[dp, -]" if stated else "[-, -]")
            torch.testing.assert_close(full(y), expected(x))


def test_a_graph_follows_the_shardings_that_come(mesh: Mesh) -> None:
    compiled = torch.compile(lambda x, y: x * 2 + y, backend="pjrt", fullgraph=True)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for spec in (None, ("dp",), (None, "tp"), None):
        given = x.to("pjrt") if spec is None else mark_sharding(x, mesh, spec)
        found = compiled(given, y.to("pjrt"))
        assert sharding_of(found) == sharding_of(given)
        torch.testing.assert_close(full(found), x * 2 + y)


def test_a_batch_that_does_not_divide_is_whole(mesh: Mesh) -> None:
    compiled = torch.compile(
        lambda x: x.sum(1), backend="pjrt", fullgraph=True, dynamic=False, options={"mesh": mesh}
    )
    for rows, spec in ((4, "[dp]"), (3, "[-]")):
        x = torch.randn(rows, 4)
        y = compiled(x.to("pjrt"))
        assert spec_of(y) == spec
        torch.testing.assert_close(full(y), x.sum(1))


def test_a_model_of_the_host_over_a_mesh(mesh: Mesh) -> None:
    model = Mlp()
    compiled = torch.compile(model, backend="pjrt", fullgraph=True, options={"mesh": mesh})
    x = torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_buffers_are_written_where_they_are(mesh: Mesh) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to("pjrt")
    expected = copy.deepcopy(model).to("cpu")
    mark_sharding(model[0].weight, mesh, ("tp",))
    mark_sharding(model[1].running_mean, mesh, ("tp",))
    compiled = torch.compile(model, backend="pjrt", fullgraph=True, options={"mesh": mesh})
    x = torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(full(compiled(x.to("pjrt"))), expected(x))
    assert spec_of(model[1].running_mean) == "[tp]"
    torch.testing.assert_close(full(model[1].running_mean), expected[1].running_mean)


def test_gradients_lie_as_their_parameters(mesh: Mesh) -> None:
    model = Mlp().to("pjrt")
    expected = copy.deepcopy(model).to("cpu")
    divide_layers(model, mesh)
    compiled = torch.compile(model, backend="pjrt", fullgraph=True, options={"mesh": mesh})
    x = torch.randn(8, 8)
    compiled(x.to("pjrt")).square().mean().backward()
    expected(x).square().mean().backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert sharding_of(one.grad) == sharding_of(one)
        torch.testing.assert_close(full(one.grad), other.grad)


def _train(
    model: nn.Module, mesh: Mesh, divide: Callable[[nn.Module, Mesh], None], steps: int = 3
) -> list[str]:
    """Train on the mesh beside PyTorch, compare; the shardings of the optimizer's averages."""
    expected = copy.deepcopy(model)
    divide(model, mesh)
    options = {"mesh": mesh, "fallback": "error"}
    compiled = torch.compile(model, backend="pjrt", fullgraph=True, options=options)
    ours, theirs = (torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (model, expected))

    def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())

    for _ in range(steps):
        ids = torch.randint(0, 32, (4, 8))
        ours.zero_grad()
        theirs.zero_grad()
        loss = loss_of(compiled(ids.to("pjrt")), ids.to("pjrt"))
        loss.backward()
        other = loss_of(expected(ids), ids)
        other.backward()
        assert abs(loss.item() - other.item()) < 1e-6 * max(1, abs(other.item()))
        for one, two in zip(model.parameters(), expected.parameters(), strict=True):
            assert one.grad is not None
            assert two.grad is not None
            assert sharding_of(one.grad) == sharding_of(one)
            assert (full(one.grad) - two.grad).abs().max() < 1e-5
        ours.step()
        theirs.step()
    return [str(sharding_of(ours.state[one]["exp_avg"])) for one in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "divide"),
    [
        (
            {"dp": 4},
            lambda model, mesh: [mark_sharding(one, mesh, ()) for one in model.parameters()],
        ),
        ({"dp": 2, "tp": 2}, divide_layers),
        ({"dp": 4}, divide_states),
    ],
    ids=["data parallel", "data and tensor parallel", "divided states"],
)
def test_training(sizes: dict[str, int], divide: Callable[..., None]) -> None:
    """Losses to 1e-6 and gradients to 1e-5 are those of one device; states are divided."""
    model = Gpt()
    averages = _train(model, Mesh(**sizes), divide)
    assert averages == [str(sharding_of(one)) for one in model.parameters()]


@pytest.mark.parametrize("shape", [(4, 0, 8), (0, 8)])
def test_arrays_without_elements(mesh: Mesh, shape: tuple[int, ...]) -> None:
    """The partitioner divides some results without elements, and others not."""
    compiled = torch.compile(
        lambda x: (x.flip(-1).sin(), x.sum(), x.sum(-1)), backend="pjrt", fullgraph=True
    )
    x = torch.ones(shape)
    given = mark_sharding(x, mesh, ("dp", *[None] * (len(shape) - 2), "tp")).requires_grad_()
    outputs = compiled(given)
    for found, expected in zip(outputs, (x, x.sum(), x.sum(-1)), strict=True):
        torch.testing.assert_close(full(found), expected)
    sum(one.sum() for one in outputs).backward()
    assert given.grad is not None
    assert sharding_of(given.grad) == sharding_of(given)
    assert full(given.grad).shape == x.shape
    torch.testing.assert_close(full(given.grad.flip(0) + given), x)
