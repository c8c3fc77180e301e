"""Results that `detach` and `data` keep apart are no views of each other for autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.aliases.detached import remove_detached

Function = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

RELATED: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "detached": lambda y: (y, y.detach()),
    "row of detached": lambda y: (y, y.detach()[0]),
    "detached row": lambda y: (y, y[0].detach()),
    "row of data": lambda y: (y, y.data[0]),
    "rows, each detached": lambda y: (y.detach()[0], y.detach()[1]),
    "rows of one detached": lambda y: (lambda z: (z[0], z[1]))(y.detach()),
    "a row, and one of data": lambda y: (y[0], y.data[1]),
    "detached twice": lambda y: (y.detach(), y.detach().t().detach()),
    "a view": lambda y: (y, y[...]),
    "rows": lambda y: (y[0], y[1]),
}


def seen(function: Function, requires_grad: bool, records: bool) -> list[Any]:
    x = torch.arange(4.0).reshape(2, 2).requires_grad_(requires_grad)
    with torch.set_grad_enabled(records):
        results = function(x)
    found: list[Any] = [(item.requires_grad, item._is_view()) for item in results]
    weight = torch.ones(2, requires_grad=True)
    try:
        results[0].mul_(weight)
        found += [(item.requires_grad, item.detach().tolist()) for item in results]
        torch.stack(
            [(item * item).sum() for item in results if item.requires_grad]
        ).sum().backward()
    except RuntimeError as error:
        # Views that were made where no gradients are recorded.
        return [*found, type(error)]
    assert weight.grad is not None
    return [*found, weight.grad.tolist(), None if x.grad is None else x.grad.tolist()]


@pytest.mark.parametrize("name", RELATED)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("records", [False, True])
def test_what_is_written_into_one_result_reaches_the_gradients_of_eager(
    name: str, requires_grad: bool, records: bool
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return RELATED[name](x + 1)

    expected = seen(function, requires_grad, records)
    found = seen(torch.compile(function, backend="pjrt"), requires_grad, records)
    assert found == expected


def test_what_no_result_is_a_view_of_is_removed() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.ops.aten.sin.default(x)
        detached = torch.ops.aten.detach.default(y)
        inner = torch.ops.aten.detach.default(y)
        return y, torch.ops.aten.t.default(detached), torch.ops.aten.mul.Tensor(inner, 2)

    module = make_fx(function, tracing_mode="fake")(torch.ones(2, 2))
    remove_detached(module.graph)
    names = [compat.operator_name(node.target) for node in module.graph.nodes]
    assert names.count("aten.detach.default") == 1
    module.recompile()
    for here, there in zip(module(torch.ones(2, 2)), function(torch.ones(2, 2)), strict=True):
        assert torch.equal(here, there)
