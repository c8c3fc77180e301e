"""Products of complex numbers, as one of real numbers and by PyTorch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType
from pjrt_bridge_cpu import complex_products
from pjrt_bridge_cpu.aten import findings
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.torch_interop.helpers import compiled


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("narrowest", [1, 6])
def test_as_a_product_of_real_numbers(
    client: Client,
    dtype: str,
    batch: tuple[int, ...],
    narrowest: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(complex_products, "NARROWEST", narrowest)
    rng = np.random.default_rng(0)
    kind = dtypes.of(dtype)
    x, y = (
        (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        for shape in ((*batch, 5, 7), (*batch, 7, 6))
    )
    builder = Builder([TensorType(side.shape, kind) for side in (x, y)])
    left, right = builder.parameters
    found = XlaKernels().product(builder, left, right, accumulator=kind, dtype=kind)
    program = builder.finish([found])
    products = [line for line in program.text.splitlines() if "dot_general" in line]
    assert all(("complex" in line) == (narrowest == 6) for line in products)
    (got,) = client.compile(program)(x, y)
    tolerance = 1e-5 if dtype == "complex64" else 1e-13
    np.testing.assert_allclose(got, x @ y, rtol=0, atol=30 * tolerance)


def products(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Of matrices, in batches, and over modes as Fourier neural operators have them."""
    modes = torch.einsum("bixy,ioxy->boxy", x.reshape(2, 8, 10, 10), y.reshape(8, 2, 10, 10))
    found = [x @ y.mH, x.reshape(4, 10, 40) @ y.reshape(4, 10, 40).mT, modes]
    return [torch.view_as_real(item) for item in found]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_by_pytorch_with_gradients(
    dtype: torch.dtype, written: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "is_usable", lambda library, use: True)
    monkeypatch.setattr(findings, "measured", lambda library: {})
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 40, 40, dtype=dtype, generator=generator).unbind()
    sides = [[t.clone().requires_grad_() for t in (x, y)] for _ in range(2)]
    for function, given in zip((products, compiled(products)), sides, strict=True):
        torch.stack([item.square().sum() for item in function(*given)]).sum().backward()
    torch.testing.assert_close(compiled(products)(x, y), products(x, y))
    for expected, found in zip(*sides, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert written["mm.out"] >= 2
    assert written["bmm.out"]
