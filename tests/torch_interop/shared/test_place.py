"""Graphs over tensors in memory that programs use: what goes in, what comes out, what is kept."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop.shared.order import StreamOrder
from pjrt_bridge.torch_interop.shared.views import TensorViews

pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the tensors over which buffers were made, in their order."""
    found: list[tuple[int, ...]] = []
    new = TensorViews.new

    def counted(self: TensorViews, tensor: torch.Tensor, *rest: Any) -> Any:
        found.append(tuple(tensor.shape))
        return new(self, tensor, *rest)

    monkeypatch.setattr(TensorViews, "new", counted)
    return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


def test_a_training_step_gives_what_eager_gives(made: list[tuple[int, ...]]) -> None:
    ours, eager = network(), network()
    compiled = torch.compile(ours, backend="pjrt")
    for _ in range(4):
        x = torch.randn(2, 3, 8, 8)
        for model, call in ((ours, compiled), (eager, eager)):
            call(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    for name, value in eager.state_dict().items():
        assert_close(ours.state_dict()[name], value)
    assert made


def test_buffers_over_weights_are_kept_while_these_stay(made: list[tuple[int, ...]]) -> None:
    model = nn.Linear(6, 5).requires_grad_(False)
    compiled = torch.compile(model, backend="pjrt")
    for _ in range(3):
        compiled(torch.randn(4, 6))
    # The first buffer of a call is always a new one.
    made.clear()
    x = torch.randn(4, 6)
    assert_close(compiled(x), model(x))
    assert len(made) < 3
    weight = torch.randn(5, 6)
    model.weight.data = weight
    assert_close(compiled(x), torch.nn.functional.linear(x, weight, model.bias))
    with torch.no_grad():
        model.weight.mul_(2)
    assert_close(compiled(x), torch.nn.functional.linear(x, weight, model.bias))


def test_a_view_ends_with_its_tensor(client: Client) -> None:
    from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
    from pjrt_bridge.torch_interop.tensors import argument_spec

    device = client.devices[0]
    views = TensorViews(client, device, StreamOrder(client, device))
    tensor = torch.ones(8)
    spec: ValueSpec = argument_spec(tensor)
    for _ in range(2):
        views.new(tensor, tensor, spec, 0)
    assert views.kept(tensor, spec) is not None
    other = torch.ones(8)
    assert views.kept(other, spec) is None
    del tensor
    gc.collect()
    assert not views._kept


@pytest.mark.parametrize(
    "given",
    [
        lambda: torch.randn(6, 4).t(),
        lambda: torch.randn(4, 12)[:, ::2],
        lambda: torch.randn(33)[1:25].view(4, 6),
        lambda: torch.randn(1, 6).expand(4, 6),
        lambda: torch.randn(4, 6, dtype=torch.complex64).conj().real,
    ],
    ids=["transposed", "strided", "offset", "expanded", "of a conjugate"],
)
def test_tensors_that_lie_otherwise(given: Callable[[], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.softmax(-1) @ x.t()), x.t() + 1

    x = given()
    with torch.no_grad():
        for found, wanted in zip(
            torch.compile(function, backend="pjrt")(x), function(x), strict=True
        ):
            assert_close(found, wanted)
            assert found.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,)])
def test_element_types_and_shapes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.float().mul(2).to(dtype)

    x = torch.randint(0, 2, shape).to(dtype)
    found = torch.compile(function, backend="pjrt")(x)
    assert found.dtype is dtype
    assert torch.equal(found.float(), function(x).float())


def test_what_pytorch_computes_between_and_writes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = (x * 2).sin() + 1
        y.add_(z)
        return z + x.sum()

    x, y, again = torch.randn(4), torch.zeros(4), torch.zeros(4)
    options = {"host_ops": ["aten.sin.default", "aten.add.Tensor"]}
    found = torch.compile(function, backend="pjrt", options=options)(x, y)
    assert_close(found, function(x, again))
    assert_close(y, again)


def test_dropout_draws_on_the_device() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
    compiled = torch.compile(model, backend="pjrt")
    x = torch.randn(32, 64, requires_grad=True)
    first, second = compiled(x), compiled(x)
    assert 0.4 < (first == 0).float().mean() < 0.6
    assert not torch.equal(first == 0, second == 0)
    first.sum().backward()
    assert x.grad is not None
    # The gradient has the holes of its own forward call.
    dropped = (first == 0).all(1)
    assert torch.equal(x.grad[dropped], torch.zeros_like(x.grad[dropped]))


def test_sizes_that_change() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6)).requires_grad_(False)
    compiled = torch.compile(model, backend="pjrt", dynamic=True)
    for count in (3, 5, 9, 17, 4):
        x = torch.randn(count, 6)
        assert_close(compiled(x), model(x))
