"""Gradients of activations whose decompositions are the bridge's own."""

from __future__ import annotations

import math

import pytest
import torch

from tests.torch_interop.helpers import compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("eps", [None, -1.0, 0.0, 0.25, math.nan])
def test_the_gradient_of_the_logit_of_nan_is_nan(eps: float | None, dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, 0.0, 0.25, 0.5, 0.75, 1.0, -0.5, 1.5, math.inf, -math.inf])
    torch.compiler.reset()
    found = []

    def logit(x: torch.Tensor) -> torch.Tensor:
        return torch.logit(x, eps)

    for run in (compiled(logit), logit):
        given = x.to(dtype, copy=True).requires_grad_()
        run(given).sum().backward()
        found.append(given.grad)
    torch.testing.assert_close(*found, equal_nan=True)
