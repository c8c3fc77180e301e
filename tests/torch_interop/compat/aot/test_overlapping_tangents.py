"""Gradients of results whose elements share memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("fresh")

FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: (x * 2).unfold(1, 3, 1),
    lambda x: (x * 2).unfold(0, 2, 1).unfold(1, 3, 2),
    lambda x: (x * 2).as_strided((4, 3), (2, 1)),
    lambda x: (x * 2).unfold(1, 3, 3),
    lambda x: (x * 2).t().unfold(0, 4, 2).transpose(0, 2),
    lambda x: (x * 2)[:, :1].expand(-1, 5),
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, None])
def test_each_element_has_its_gradient(
    function: Callable[[Tensor], Tensor], dynamic: bool | None
) -> None:
    on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (4, 5):
        gradients = []
        for run in (on_device, function):
            x = torch.arange(rows * 7.0).view(rows, 7).requires_grad_()
            result = run(x)
            (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)
