"""Operators without a rule for tangents refuse them."""

from __future__ import annotations

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
