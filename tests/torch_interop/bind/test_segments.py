"""Results of segments on the host: tensors that a user may write into, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")

FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "a copy": (lambda x: x.expand(3, -1).flatten(), "aten.view"),
    "columns of size 1": (lambda x: x.expand(2, -1).reshape(12, 1), "aten.view"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_no_views(name: str) -> None:
    function, operator = FUNCTIONS[name]
    run = compiled(function, host_ops=[operator])
    x = torch.arange(6.0, requires_grad=True)
    found, expected = run(x), function(x)
    assert found._is_view() == expected._is_view()
    assert found.stride() == expected.stride()
    gradients = []
    for result in (found, expected):
        result.mul_(3.0)
        gradients.append(torch.autograd.grad(result.sum(), x)[0])
    assert torch.equal(*gradients)
