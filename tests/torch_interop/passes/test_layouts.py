"""The option `layouts`: results and parameters in an order that the user chose."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.passes.layouts import order_of
from tests.torch_interop.helpers import assert_same

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]
RULES: list[Any] = ["row-major", "column-major", "channels-last", {2: (1, 0), 4: (1, 0, 3, 2)}]


def order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from slowest to fastest varying of a dense tensor."""
    found = tuple(sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim)))
    assert tensor.permute(found).is_contiguous()
    return found


def compiled(function: Callable[..., Any], layouts: Any, **more: Any) -> Any:
    return torch.compile(function, backend="pjrt", options={"layouts": layouts}, **more)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 2), nn.Flatten(1, 2))


@pytest.mark.parametrize(
    ("rule", "rank", "expected"),
    [
        ("row-major", 3, (0, 1, 2)),
        ("column-major", 3, (2, 1, 0)),
        ("channels-last", 2, None),
        ("channels-last", 3, (0, 2, 1)),
        ("channels-last", 4, (0, 2, 3, 1)),
        ("channels-last", 5, (0, 2, 3, 4, 1)),
        ({2: (1, 0)}, 2, (1, 0)),
        ({2: (1, 0)}, 3, None),
        ("column-major", 1, None),
        (None, 4, None),
    ],
)
def test_orders(rule: Any, rank: int, expected: tuple[int, ...] | None) -> None:
    assert order_of(rule, rank) == expected


def test_channels_last_is_the_memory_format_of_pytorch() -> None:
    x = torch.randn(2, 3, 4, 5)
    found = compiled(torch.sin, {"results": "channels-last"})(x)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_results(way: str, rule: Any) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin() * 2
        return y, y.sum(0), y.sum((0, 1)).t(), y.sum()

    x = torch.randn(2, 3, 4, 5)
    run = compiled(function, {"results": rule})
    for _ in range(2):
        results, expected = run(x), function(x)
        for found, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(found, wanted, check_stride=False)
            if (chosen := order_of(rule, found.dim())) is not None:
                assert order(found) == chosen
            else:
                assert found.stride() == wanted.stride()
    (record,) = compiled_graphs()
    assert [segment.placement for segment in record.segments] == ["device"]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_results_of_a_graph_in_parts(rule: Any) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin() @ x.mT
        return y, y.logit(eps=0.25).cos()

    x = torch.rand(3, 3, 4, 5)
    run = torch.compile(
        function,
        backend="pjrt",
        options={"layouts": {"results": rule}, "host_ops": ["aten.logit"]},
    )
    for found, expected in zip(run(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, check_stride=False)
        if (chosen := order_of(rule, 4)) is not None:
            assert order(found) == chosen


def test_results_that_share_memory_are_right() -> None:
    """Views are made of their bases by strides, so these stay as they are."""
    buffer = torch.arange(12.0).reshape(3, 4)

    def function(x: Tensor, into: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        into.add_(1)
        return y, y.t(), y[1:], x.t(), into.t(), x, y.exp()

    x = torch.randn(3, 4)
    run = compiled(function, {"results": "column-major"})
    expected = function(x, buffer.clone())
    found = run(x, buffer)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, check_stride=False)
    assert order(found[-1]) == (1, 0)
    assert found[1].data_ptr() == found[0].data_ptr()


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("host_ops", [(), ("aten.cat",)])
def test_results_with_a_view_of_another_result_stay(
    host_ops: tuple[str, ...], differentiable: bool
) -> None:
    def function(x: Tensor) -> list[Tensor]:
        y = torch.cat([x, x], 1)
        return [y, y[0:, 1], x.exp()]

    x = torch.randn(2, 3, requires_grad=differentiable)
    options = {"layouts": {"results": "column-major"}, "host_ops": host_ops}
    found = torch.compile(function, backend="pjrt", options=options)(x)
    for one, other in zip(found, function(x), strict=True):
        torch.testing.assert_close(one, other, check_stride=False)
    assert [item.stride() for item in found] == [(6, 1), (6,), (1, 2)]
    assert found[1].data_ptr() - found[0].data_ptr() == 4


@pytest.mark.parametrize("differentiable", [False, True])
def test_results_of_a_graph_that_pytorch_runs(differentiable: bool) -> None:
    """It writes through a view whose elements lie in one place, which no functional graph does."""
    weight = torch.arange(6.0).reshape(2, 3).requires_grad_(differentiable)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        x.expand(2)[-1].mul_(2)
        y, shared = weight * x, torch.ones(2, 3)
        return y, shared, shared[1:], weight, weight.mT, x, y.sum(0)

    found = compiled(function, {"results": "column-major"})(torch.tensor(1.0))
    for one, other in zip(found, function(torch.tensor(1.0)), strict=True):
        torch.testing.assert_close(one, other, check_stride=False)
    assert found[3] is weight
    strides = [item.stride() for item in found]
    assert strides == [(1, 2), (3, 1), (3, 1), (3, 1), (1, 3), (), (1,)]
    if differentiable:
        found[0].sum().backward()
        assert weight.grad is not None
        assert_same(weight.grad, torch.full((2, 3), 2.0))


LONE_VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: (x * 2)[:, ::2],
    lambda x: torch.cat([x, x], 1).select(1, 3),
    lambda x: (x * 2).chunk(2, 1)[0],
    lambda x: (x * 2)[:, :1].expand(-1, 6, -1),
]


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("view", LONE_VIEWS)
def test_a_lone_view_is_laid_out(view: Callable[[Tensor], Tensor], differentiable: bool) -> None:
    x = torch.randn(2, 4, 6, requires_grad=differentiable)
    found = compiled(view, {"results": "column-major"})(x)
    torch.testing.assert_close(found, view(x), check_stride=False)
    assert order(found) == tuple(reversed(range(found.dim())))


@pytest.mark.parametrize("count", [1, 2])
def test_views_of_an_argument_stay_views(count: int) -> None:
    def function(x: Tensor) -> list[Tensor]:
        return list(x.unbind(0))[:count]

    given = torch.randn(2, 3, 4, requires_grad=True)
    for found, expected in zip(
        compiled(function, {"results": "column-major"})(given), function(given), strict=True
    ):
        assert found.stride() == expected.stride()
        assert found.data_ptr() == expected.data_ptr()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_gradients(rule: Any) -> None:
    plain = model()
    laid = model()
    laid.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 8, 8)
    run = compiled(laid, {"results": rule, "parameters": rule})
    for _ in range(2):
        expected, found = plain(x), run(x)
        torch.testing.assert_close(found, expected, check_stride=False)
        expected.square().sum().backward()
        found.square().sum().backward()
        for ours, theirs in zip(laid.parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert_same(ours.grad, theirs.grad)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_parameters_follow_their_updates(way: str, rule: Any) -> None:
    torch.manual_seed(3)
    layer = nn.Linear(6, 5)
    x = torch.randn(4, 6)
    run = compiled(layer, {"parameters": rule})
    for step in range(3):
        assert_same(run(x), layer(x))
        with torch.no_grad():
            layer.weight.add_(step + 1)
    with torch.no_grad():
        layer.weight.data = layer.weight.data.t().contiguous().t()
    assert_same(run(x), layer(x))


def test_updates_in_a_graph(way: str) -> None:
    weight = nn.Parameter(torch.randn(256, 128))
    expected = weight.detach() * 0.5

    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5)
            return self.weight.sum(0)

    layouts = {"parameters": "column-major", "results": "column-major"}
    torch.testing.assert_close(compiled(Decay(), layouts)(), expected.sum(0))
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("buckets", [(), (4, 8)])
def test_sizes_that_a_call_brings(buckets: tuple[int, ...]) -> None:
    def function(x: Tensor) -> Tensor:
        return x.exp() + 1

    options = {"layouts": {"results": "column-major"}, "buckets": buckets}
    run = torch.compile(function, backend="pjrt", options=options, dynamic=True)
    for rows in (2, 3, 7):
        x = torch.randn(rows, 4)
        found = run(x)
        torch.testing.assert_close(found, function(x), check_stride=False)
        assert order(found) == (1, 0)


@pytest.mark.parametrize(
    "layouts",
    [
        "column-major",
        {"arguments": "row-major"},
        {"results": "diagonal"},
        {"results": 3},
        {"results": {2: (0, 0)}},
        {"results": {2: "10"}},
        {"parameters": {"2": (0, 1)}},
        {"parameters": [1, 0]},
    ],
)
def test_options_that_are_none(layouts: Any) -> None:
    with pytest.raises(OptionError, match="option layouts: "):
        BackendOptions(layouts=layouts)
