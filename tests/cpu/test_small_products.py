"""Products of many small matrices: their numbers, which ones are sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge_cpu.small_products import LEAST, SmallProducts
from tests.cpu.helpers import emitted

FLOAT32 = dtypes.of("float32")

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 8, 8, 8), (4, 8, 3, 5, 2), (100, 16, 16, 16)])
@pytest.mark.parametrize("transposed", ["", "left", "right"])
def test_results_and_gradients_are_eagers(
    dtype: torch.dtype, shape: tuple[int, ...], transposed: str
) -> None:
    *batch, rows, inner, columns = shape
    generator = torch.Generator().manual_seed(0)
    sides = [
        torch.randn(*batch, *size, generator=generator).to(dtype)
        for size in ((rows, inner), (inner, columns))
    ]
    if transposed:
        at = transposed == "right"
        sides[at] = sides[at].mT.contiguous().mT
    found, expected = ([side.detach().requires_grad_() for side in sides] for _ in range(2))
    results = torch.compile(torch.matmul, backend="pjrt")(*found), torch.matmul(*expected)
    for result in results:
        result.float().square().sum().backward()
    torch.testing.assert_close(*results, rtol=1e-4 if dtype == torch.float32 else 2e-2, atol=1e-2)
    for one, other in zip(found, expected, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)


def test_numbers_that_are_not_finite_stay_so() -> None:
    x, y = torch.ones(64, 4, 4), torch.ones(64, 4, 4)
    x[0, 0, 0], x[1, 0, 0], y[2, 0, 0], x[3, 0, 0], y[3, 0, 0] = (
        *(float("inf"), float("nan"), float("-inf"), float("inf"), 0.0),
    )
    found = torch.compile(torch.bmm, backend="pjrt")(x, y)
    torch.testing.assert_close(found, torch.bmm(x, y), equal_nan=True)


@pytest.mark.parametrize(
    ("batch", "size", "is_sum"), [(LEAST, 8, True), (LEAST - 1, 8, False), (LEAST, 32, False)]
)
def test_many_small_ones_are_sums(batch: int, size: int, is_sum: bool) -> None:
    x = torch.ones(batch, size, size)
    assert ("stablehlo.reduce" in emitted(torch.bmm, x, x)) == is_sum


@pytest.mark.parametrize("inner", [4, 32])
def test_many_with_vectors_are_sums_where_the_matrices_lie_between_each_other(inner: int) -> None:
    def weighed(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.einsum("end,ne->nd", x, weights)

    x, weights = torch.randn(inner, 64, 96), torch.randn(64, inner)
    text = emitted(weighed, x, weights)
    assert ("stablehlo.reduce(" in text) == (inner == 4)
    found = torch.compile(weighed, backend="pjrt")(x, weights)
    torch.testing.assert_close(found, weighed(x, weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "inner"), [(512, 8), (512, 9), (100, 8)])
def test_very_many_with_short_vectors_are_sums(batch: int, inner: int) -> None:
    x, y = torch.randn(batch, 16, inner), torch.randn(batch, inner, 1)
    text = emitted(torch.bmm, x, y)
    assert ("stablehlo.reduce(" in text) == (batch == 512 and inner == 8)
    found = torch.compile(torch.bmm, backend="pjrt")(x, y)
    torch.testing.assert_close(found, torch.bmm(x, y), rtol=1e-4, atol=1e-4)


def program(size: int) -> Program:
    builder = Builder([TensorType((2000, size, size), FLOAT32)] * 2)
    x, y = builder.parameters
    found = builder.dot_general(
        x, y, lhs_batch=[0], rhs_batch=[0], lhs_contract=[2], rhs_contract=[1]
    )
    return builder.finish([found])


def test_programs_that_others_wrote_have_them(client: Client) -> None:
    written = program(8)
    rewritten = for_target(written, SmallProducts())
    assert "dot_general" not in rewritten.text
    sides = np.random.default_rng(0).standard_normal((2, 2000, 8, 8)).astype(np.float32)
    found, expected = (client.compile(made)(*sides) for made in (rewritten, written))
    np.testing.assert_allclose(*map(np.asarray, (*found, *expected)), rtol=1e-4, atol=1e-5)
