"""Fourier transforms: of every kind, along any dimensions, and the ones that are no calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pjrt_bridge.jax_interop import torch_op
from tests.cpu.aten.comparing import compare

pytestmark = pytest.mark.usefixtures("always", "fresh")

DIMS = [(-1,), (0,), (1, 2), (2, 0), (0, 1, 2), (3, 1, 0, 2)]
NORMS = ["backward", "ortho", "forward"]
DTYPES = [torch.float32, torch.float64]


def every_kind(x: torch.Tensor, norm: str) -> list[torch.Tensor]:
    numbers = torch.complex(x, x.flip(0))
    found: list[torch.Tensor] = []
    for dims in DIMS:
        found += [torch.fft.fftn(numbers, dim=dims, norm=norm)]
        found += [torch.fft.ifftn(numbers, dim=dims, norm=norm)]
        found += [torch.fft.fftn(x, dim=dims, norm=norm)]
        half = torch.fft.rfftn(x, dim=dims, norm=norm)
        sizes = [x.shape[dim] for dim in dims]
        found += [half, torch.fft.irfftn(half * 2, s=sizes, dim=dims, norm=norm)]
    return [torch.view_as_real(y) if y.is_complex() else y for y in found]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind(norm: str, dtype: torch.dtype, written: Counter[str]) -> None:
    compare(lambda x: every_kind(x, norm), torch.randn(4, 3, 5, 6, dtype=dtype))
    assert min(written[f"_fft_{kind}.default"] for kind in ("c2c", "r2c", "c2r")) >= len(DIMS)


def test_gradients(written: Counter[str]) -> None:
    compare(lambda x: every_kind(x, "ortho"), torch.randn(4, 3, 5, 6), train=True)
    assert written["_fft_c2r.default"]


def test_a_value_that_lies_otherwise(written: Counter[str]) -> None:
    compare(lambda x: every_kind(x.mT, "backward"), torch.randn(4, 3, 5, 6))
    compare(lambda x: every_kind(x.expand(4, 3, 5, 6), "backward"), torch.randn(1, 3, 1, 6))
    assert written["_fft_c2c.default"]


def test_short_time_transforms(written: Counter[str]) -> None:
    window = torch.hann_window(20)

    def there_and_back(x: torch.Tensor) -> Any:
        found = torch.stft(x, 20, 5, window=window, return_complex=True)
        return torch.view_as_real(found), torch.istft(found * 2, 20, 5, window=window)

    compare(there_and_back, torch.randn(3, 200), train=True)
    assert written["_fft_r2c.default"]
    assert written["_fft_c2r.default"]


def test_those_that_jax_wrote(written: Counter[str]) -> None:
    def there_and_back(x: Any) -> Any:
        found = jnp.fft.fftn(jnp.fft.ifft(jnp.fft.rfft2(x)))
        return jnp.fft.irfft(found, n=6), jnp.abs(found)

    x = np.random.default_rng(0).standard_normal((3, 5, 6)).astype("f")
    operator = torch_op(there_and_back)
    found = torch.compile(lambda x: operator(x), backend="pjrt")(torch.from_numpy(x))
    for one, other in zip(found, there_and_back(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert {"_fft_c2c.default", "_fft_r2c.default", "_fft_c2r.default"} <= set(written)
