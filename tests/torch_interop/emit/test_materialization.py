"""Which values of a graph are worth computing once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.materialization import should_materialize


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


def test_small_values_are_not_shared() -> None:
    assert shared(lambda x, y: (s := x + y) @ s + s, 16, 16) == []
