"""Functions of other frameworks get the kernels of the plugin's package."""

from __future__ import annotations

from collections import Counter

import jax
import pytest
import torch

from pjrt_bridge.jax_interop import torch_op
from pjrt_bridge_cpu.aten.calls import KernelCall

pytestmark = pytest.mark.usefixtures("fresh")


@torch_op
def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x @ weight.T


@pytest.mark.parametrize(("rows", "called"), [(2, False), (64, True)])
def test_products_that_jax_wrote_are_calls_where_they_pay(
    rows: int, called: bool, written: Counter[str]
) -> None:
    x, weight = torch.randn(2, rows, 64), torch.randn(96, 64)
    found = torch.compile(lambda *given: linear(*given), backend="pjrt")(x, weight)
    torch.testing.assert_close(found, x @ weight.T)
    assert bool(written["mm.out"]) == called


def test_gradients_of_weights_too(emitted: list[KernelCall]) -> None:
    """In bfloat16 each product pays."""
    x = torch.randn(2, 64, 64, dtype=torch.bfloat16)
    weight = torch.randn(96, 64, dtype=torch.bfloat16, requires_grad=True)
    torch.compile(lambda *given: linear(*given), backend="pjrt")(x, weight).sum().backward()
    expected = torch.ones(128, 96).T @ x.float().reshape(128, 64)
    torch.testing.assert_close(weight.grad, expected.bfloat16())
    shapes = {result.shape for call in emitted for result in call.results}
    assert shapes == {(128, 96), (96, 64)}
