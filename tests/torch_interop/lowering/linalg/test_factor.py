import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

torch.manual_seed(0)
TYPES = [torch.float32, torch.complex128]
SHAPES = [(5, 5), (2, 3, 4, 4), (3, 6, 4), (3, 4, 6), (0, 3, 3), (2, 0, 4), (4, 0), (1, 1)]
WIDE = [(130, 130), (2, 70, 100), (2, 100, 70)]
"""More than a panel of columns."""


def definite(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_reads_one_triangle(dtype, upper):
    for shape in [(5, 5), (2, 3, 4, 4), (0, 3, 3), (2, 0, 0), (1, 1)]:
        a = definite(*shape, dtype=dtype)
        a = a.triu() if upper else a.tril()
        check("aten.linalg_cholesky_ex.default", a, upper=upper)


def test_cholesky_in_panels():
    a = definite(2, 150, 150, dtype=torch.float64)
    check("aten.linalg_cholesky_ex.default", a, engines=[run_on_cpu])


def test_cholesky_names_the_first_minor_that_fails():
    good, early, late = (definite(4, 4, dtype=torch.float64) for _ in range(3))
    early[0, 0], late[2, 2] = 0, -1
    unknown = good.clone()
    unknown[1, 0] = math.nan
    a = torch.stack([good, early, late, unknown])
    factor, info = lower("aten.linalg_cholesky_ex.default", a, engine=run_on_cpu)
    expected, minors = torch.linalg.cholesky_ex(a)
    assert info.tolist() == minors.tolist() == [0, 1, 3, 2]
    torch.testing.assert_close(factor[0], expected[0])
    torch.testing.assert_close(factor[2, :, :2], expected[2, :, :2])


def test_cholesky_names_a_minor_of_a_later_panel():
    a = definite(100, 100, dtype=torch.float64)
    a[80, 80] = -1
    _, info = lower("aten.linalg_cholesky_ex.default", a, engine=run_on_cpu)
    assert info.item() == torch.linalg.cholesky_ex(a).info.item() == 81


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lu(dtype, shape):
    a = torch.randn(shape, dtype=dtype)
    # The interpreter ends the process at triangular systems with leading dimensions.
    check("aten.linalg_lu_factor_ex.default", a, engines=[run_on_cpu])
    check("aten.linalg_lu.default", a, engines=[run_on_cpu])
    check("aten.lu_unpack.default", *torch.linalg.lu_factor_ex(a)[:2])


@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_lu_in_panels(shape):
    a = torch.randn(shape, dtype=torch.float64)
    check("aten.linalg_lu_factor_ex.default", a, engines=[run_on_cpu])
    check("aten.linalg_lu.default", a, engines=[run_on_cpu])


def test_the_first_of_equal_pivots_is_taken():
    a = torch.tensor([[1.0, 2, 3], [-2, 1, 1], [2, 5, -7]])
    check("aten.linalg_lu_factor_ex.default", a)
    check("aten.linalg_lu_factor_ex.default", torch.ones(4, 4))


def test_complex_pivots_are_compared_by_the_sum_of_their_parts():
    # By their magnitudes the order would be the other one.
    a = torch.tensor([[5.0, 1], [3 + 3j, 2]])
    check("aten.linalg_lu_factor_ex.default", a)


@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0.0, 1, 2], [0, 0, 3], [0, 0, 5]],
        [[1.0, 2, 3], [2, 4, 6], [1, 2, 3]],
        [[math.nan, 2, 3], [2, 1, 7], [3, 7, 5]],
        [[1.0, 2, 3], [math.nan, 1, 7], [3, 7, 5]],
    ],
    ids=["zero", "zero column", "dependent", "NaN first", "NaN later"],
)
def test_lu_of_singular_matrices_and_nan(rows):
    check("aten.linalg_lu_factor_ex.default", torch.tensor(rows))


def test_lu_is_unpacked_in_parts():
    factors, pivots = torch.linalg.lu_factor(torch.randn(2, 4, 3))
    check("aten.lu_unpack.default", factors, pivots, False, True)
    check("aten.lu_unpack.default", factors, pivots, True, False)
    # Exchanges in sequence: the later ones move what the earlier ones moved.
    moves = torch.tensor([4, 4, 4, 4], dtype=torch.int32)
    check("aten.lu_unpack.default", torch.randn(4, 4), moves)


def test_what_raises_or_does_not_exist_is_refused():
    with pytest.raises(NotLowerable, match="check_errors"):
        lower("aten.linalg_cholesky_ex.default", torch.eye(2), check_errors=True)
    with pytest.raises(NotLowerable, match="check_errors"):
        lower("aten.linalg_lu_factor_ex.default", torch.eye(2), check_errors=True)
    with pytest.raises(NotLowerable, match="without pivoting"):
        lower("aten.linalg_lu.default", torch.eye(2), pivot=False)
