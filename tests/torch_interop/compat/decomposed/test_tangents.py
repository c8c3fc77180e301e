"""Gradients of operators, also under transforms; those without a rule for tangents refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compat

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

_NAME = "pjrt_bridge_tests::doubled"
torch.library.define(_NAME, "(Tensor x, *, int times=2) -> Tensor")
torch.library.impl(_NAME, "cpu", lambda x, times=2: x * times)
torch.library.register_fake(_NAME, lambda x, times=2: torch.empty_like(x))
doubled: Any = compat.operator("pjrt_bridge_tests.doubled.default")
compat.register_gradients(doubled, lambda ctx, gradient: gradient * 2)

_CUBED = "pjrt_bridge_tests::cubed"
torch.library.define(_CUBED, "(Tensor x) -> Tensor")
torch.library.impl(_CUBED, "cpu", lambda x: x**3)
torch.library.register_fake(_CUBED, torch.empty_like)
cubed: Any = compat.operator("pjrt_bridge_tests.cubed.default")


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _slope(ctx: Any, given: torch.Tensor) -> Any:
    return given * 3 * ctx.saved_tensors[0] ** 2


compat.register_gradients(cubed, _slope, _keep)


def test_gradients_are_computed() -> None:
    x = torch.ones(2, requires_grad=True)
    doubled(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("backend", [None, "aot_eager", "pjrt"])
def test_tangents_are_refused(backend: str | None, requires_grad: bool) -> None:
    def function(x: torch.Tensor, tangent: torch.Tensor) -> Any:
        return torch.func.jvp(lambda y: doubled(y * 3) + y, (x,), (tangent,))

    run = function if backend is None else torch.compile(function, backend=backend)
    with pytest.raises(Exception, match="an argument with a tangent"):
        run(torch.ones(2, requires_grad=requires_grad), torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        assert doubled(torch.ones(2)).tolist() == [2, 2]


TRANSFORMS: dict[str, Callable[[Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "grad": lambda function: torch.func.grad(lambda x: function(x).sum()),
    "grad of grad": lambda function: torch.func.vmap(torch.func.grad(torch.func.grad(function))),
    "vmap of grad": lambda function: torch.func.vmap(torch.func.grad(function)),
    "jacrev": torch.func.jacrev,
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms(backend: str | None, name: str, requires_grad: bool) -> None:
    run = TRANSFORMS[name](lambda x: cubed(x.sin()))
    expected = TRANSFORMS[name](lambda x: x.sin() ** 3)
    x = torch.tensor([1.0, -2.0, 0.5], requires_grad=requires_grad)
    found = run if backend is None else torch.compile(run, backend=backend)
    torch.testing.assert_close(found(x), expected(x))


def test_gradients_of_gradients() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    (first,) = torch.autograd.grad(cubed(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, -12]


def test_without_a_rule_for_gradients() -> None:
    name = "pjrt_bridge_tests::without"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cpu", torch.clone)
    without: Any = compat.operator("pjrt_bridge_tests.without.default")
    compat.register_gradients(without)
    result = without(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"without.*has no rule for gradients"):
        result.sum().backward()
