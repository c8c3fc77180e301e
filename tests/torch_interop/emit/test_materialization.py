"""Which values of a graph are worth computing once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.materialization import recomputed, should_materialize


def shared(function: Callable[..., object], *sizes: int, tracing: str = "fake") -> list[str]:
    """The operators whose results are shared, in a graph of a function of two tensors."""
    x, y = (torch.empty(sizes, device="meta") for _ in range(2))
    graph = make_fx(function, tracing_mode=tracing)(x, y).graph
    return [compat.label(node.target) for node in graph.nodes if should_materialize(node)]


def test_what_a_product_and_something_else_read() -> None:
    assert shared(lambda x, y: (s := x + y) @ s.mT + s, 256, 256) == ["aten.add.Tensor"]


def test_what_a_reduction_reads_in_another_shape() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        return total * total.view(64, 1024).sum(0).sum()

    assert shared(function, 256, 256) == ["aten.add.Tensor"]


def test_a_normalized_value() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        normal, *_ = torch.native_layer_norm(x, (256,), None, None, 1e-5)
        return normal @ y + normal

    assert len(shared(function, 256, 256)) == 1


def of_targets(x: Tensor, y: Tensor) -> Tensor:
    """One number of each row, where its target is, and another use of it."""
    here = torch.arange(x.shape[1], device=x.device) == y[:, :1]
    grad = torch.where(here, x[:, :1], 0.0)
    return grad - x.exp() * grad.sum(1, keepdim=True)


def test_what_is_made_of_far_fewer_elements_is_computed_again() -> None:
    assert shared(of_targets, 256, 256) == []

    def with_powers(x: Tensor, y: Tensor) -> Tensor:
        grad = torch.where(y[:, :1] > y[:1], x[:, :1], 0.0).exp()
        return grad - grad.sum(1, keepdim=True)

    assert shared(with_powers, 256, 256) == ["aten.exp.default"]

    def of_all(x: Tensor, y: Tensor) -> Tensor:
        grad = torch.where(y > y[:1], x[:, :1], 0.0)
        return grad - grad.sum(1, keepdim=True)

    assert shared(of_all, 256, 256) == ["aten.where.self"]


def test_what_torch_does_not_tag_as_elementwise() -> None:
    def fused(x: Tensor, y: Tensor) -> Tensor:
        total = torch.ops.prims.fma.default(x, y, y)
        return total @ y + total

    def copied(x: Tensor, y: Tensor) -> Tensor:
        copy = torch.ops.aten.copy.default(x, y)
        return copy @ y + copy

    assert shared(fused, 256, 256) == ["prims.fma.default"]
    assert shared(copied, 256, 256) == ["aten.copy.default"]


def test_readers_that_torch_does_not_tag_are_of_one_loop() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        return torch.ops.prims.fma.default(total, y, y) + torch.ops.aten.copy.default(y, total)

    assert shared(function, 256, 256) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + y).sin() + (x + y).cos(),
        lambda x, y: (s := x + y).sin() + s.cos(),
        lambda x, y: (x + y) @ y,
        lambda x, y: (s := x @ y).sin() + s @ y,
        lambda x, y: x @ y + x,
    ],
    ids=["none", "one loop", "one reader", "a product", "an argument"],
)
def test_what_is_not_shared(function: Callable[..., object]) -> None:
    assert shared(function, 256, 256) == []


def test_a_conversion_is_a_part_of_what_reads_it() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        return (total.double() @ y.double()) + total

    def elementwise(x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        return total.double() * y + total

    assert shared(product, 256, 256) == ["aten.add.Tensor"]
    assert shared(elementwise, 256, 256) == []


def test_small_values_are_not_shared() -> None:
    assert shared(lambda x, y: (s := x + y) @ s + s, 16, 16) == []


def recurrence(steps: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """States, each made of the one before and read by a sum beside."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        sums = []
        for _ in range(steps):
            x = (x * y + y).tanh()
            sums.append((x * y).sum(-1))
        return sums

    return function


def often(function: Callable[..., object], *sizes: int) -> list[fx.Node]:
    """The values of a graph of a function of two tensors that many loops would compute."""
    x, y = (torch.empty(sizes, device="meta") for _ in range(2))
    return sorted(recomputed(make_fx(function)(x, y).graph))


@pytest.mark.parametrize("steps", [3, 8, 40])
def test_states_of_a_recurrence_are_computed_by_few_loops(steps: int) -> None:
    """However many steps there are, a loop computes no more than three of them."""
    x, y = (torch.empty(64, 64, device="meta") for _ in range(2))
    graph = make_fx(recurrence(steps))(x, y).graph
    kept = recomputed(graph)
    longest: dict[fx.Node, int] = {}
    for node in graph.nodes:
        before = [longest[at] for at in node.all_input_nodes if at in longest and at not in kept]
        longest[node] = max(before, default=0) + (node.target is torch.ops.aten.tanh.default)
    assert max(longest.values()) <= 3


def test_small_or_shallow_values_of_many_loops_are_not_kept() -> None:
    assert often(recurrence(3), 2, 2) == []
    assert often(lambda x, y: [(s := x + y).sum(d) for d in (0, 1)] + [s.amax(0)], 64, 64) == []


def test_one_loop_reads_a_long_chain_several_times() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        deep = (x * y).tanh().sin().exp().cos()
        return deep.sin() + deep.cos() + deep.exp() + deep

    assert often(function, 64, 64) == []


def test_a_value_that_is_a_result_has_a_loop_of_its_own() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        deep = (x * y).tanh().sin().exp().cos()
        return [deep.t(), deep.sin(), deep.exp()]

    (kept,) = often(function, 64, 64)
    assert kept.target is torch.ops.aten.cos.default


def test_values_of_unknown_size_are_left() -> None:
    x = torch.empty(64, 64)
    graph = make_fx(recurrence(8), tracing_mode="symbolic")(x, x).graph
    assert recomputed(graph) == frozenset()


def rotated(x: Tensor, y: Tensor) -> Tensor:
    """Rotary positions, of sizes (positions, features), for 8 sequences of 4 heads."""
    heads = x.expand(8, 4, *x.shape)
    return heads * y.cos() + heads.roll(1, -1) * (y * 1.5).sin()


def test_a_value_that_takes_long_and_is_broadcast_is_kept() -> None:
    assert [node.name for node in often(rotated, 64, 64)] == ["cos", "sin"]


def test_a_value_that_is_broadcast_to_little_is_not_kept() -> None:
    assert often(rotated, 4, 4) == []


def test_a_cheap_value_that_is_broadcast_is_not_kept() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.expand(32, *x.shape) * (y + 1)

    assert often(function, 64, 64) == []


def test_the_last_of_values_that_are_broadcast_is_kept() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.expand(32, *x.shape) * (y.cos() * 2).to(torch.bfloat16)

    (kept,) = often(function, 64, 64)
    assert kept.target is torch.ops.aten._to_copy.default


def test_two_loops_compute_a_value_again_only_where_it_takes_longer_than_to_read_it() -> None:
    def two(function: Callable[[Tensor], Tensor]) -> Callable[..., list[Tensor]]:
        return lambda x, y: [(s := function(x + y)).sum(0), s.amax(1)]

    assert [node.name for node in often(two(torch.exp), 64, 64)] == ["exp"]
    assert often(two(torch.abs), 64, 64) == []
