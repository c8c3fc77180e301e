"""Compiled functions whose arguments have tangents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian

from pjrt_bridge.torch_interop import explain

pytestmark = [
    # PyTorch compiles its own rules for tangents with it.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    # Dynamo asks each argument for its gradient.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

Function = Callable[[Tensor], Tensor]


def function(x: Tensor) -> Tensor:
    return (x.sin() * x).sum(0)


def tangent(called: Function, x: Tensor) -> Tensor:
    with forward_ad.dual_level():  # type: ignore[no-untyped-call]
        dual = forward_ad.make_dual(x, x * 2)  # type: ignore[no-untyped-call]
        found = forward_ad.unpack_dual(called(dual)).tangent  # type: ignore[no-untyped-call]
        assert isinstance(found, Tensor)
        return found.clone()


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_tangents(called_before: bool, requires_grad: bool) -> None:
    compiled = torch.compile(function, backend="pjrt")
    x = torch.randn(3, 4, requires_grad=requires_grad)
    for _ in range(2 if called_before else 0):
        compiled(x)
    for size in (3, 5, 2):
        values = torch.randn(size, 4, requires_grad=requires_grad)
        torch.testing.assert_close(tangent(compiled, values), tangent(function, values))
        torch.testing.assert_close(compiled(values), function(values))


def test_tangents_of_a_module() -> None:
    module = nn.Linear(4, 2)
    compiled = torch.compile(module, backend="pjrt")
    x = torch.randn(3, 4)
    torch.testing.assert_close(tangent(compiled, x), tangent(module, x))


def test_a_level_that_is_entered_between_two_graphs() -> None:
    def divided(x: Tensor) -> Tensor:
        y = x.exp()
        with forward_ad.dual_level():  # type: ignore[no-untyped-call]
            dual = forward_ad.make_dual(y, x)  # type: ignore[no-untyped-call]
            torch._dynamo.graph_break()
            found = forward_ad.unpack_dual(dual.sin() * x).tangent  # type: ignore[no-untyped-call]
            return found.clone()

    x = torch.randn(3)
    compiled = torch.compile(divided, backend="pjrt")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), divided(x))


def test_jacobian_in_forward_mode() -> None:
    compiled = torch.compile(function, backend="pjrt")
    x = torch.randn(3, 4)
    forward = partial(jacobian, inputs=x, strategy="forward-mode", vectorize=True)
    torch.testing.assert_close(forward(compiled), forward(function))


def test_calls_without_tangents_stay_on_the_device() -> None:
    compiled = torch.compile(function, backend="pjrt")
    x = torch.randn(3, 4)
    tangent(compiled, x)
    torch.testing.assert_close(compiled(x), function(x))
    report = explain(compiled, x)
    assert report.segments
    assert all(segment.placement == "device" for segment in report.segments)
