import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

torch.manual_seed(0)
TYPES = [torch.float32, torch.complex128]
SHAPES = [(5, 5), (2, 3, 4, 4), (3, 6, 4), (3, 4, 6), (0, 3, 3), (2, 0, 4), (2, 4, 0), (1, 1)]
MODES = ["reduced", "complete", "r"]
WIDE = {(2, 70, 100): "reduced", (2, 130, 70): "complete"}
"""More than a panel of columns, each with the mode of `make test`."""

# The interpreter ends the process at triangular systems with leading dimensions.
CPU = {"engines": [run_on_cpu]}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reflectors(dtype, shape):
    check("aten.geqrf.default", torch.randn(shape, dtype=dtype), **CPU)


@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        pytest.param(
            shape,
            mode,
            id=f"{shape}-{mode}",
            marks=[] if WIDE.get(shape, mode) == mode else [pytest.mark.slow],
        )
        for shape in (*SHAPES, *WIDE)
        for mode in MODES
    ],
)
def test_qr(shape, mode):
    check("aten.linalg_qr.default", torch.randn(shape, dtype=torch.float64), mode, **CPU)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_qr_in_every_type(dtype):
    check("aten.linalg_qr.default", torch.randn(2, 5, 3, dtype=dtype), "complete", **CPU)


def test_columns_that_need_no_reflection():
    # LAPACK keeps the sign of what is the only one in its column.
    check("aten.geqrf.default", torch.tensor([[-2.0, 1, 3], [0, -5, 2], [0, 0, -1]]))
    check("aten.geqrf.default", torch.zeros(3, 2))
    check("aten.geqrf.default", torch.tensor([[2 + 1j, 1], [0, -3]]))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_norms_neither_vanish_nor_overflow(scale):
    a = torch.randn(6, 4)
    compact, factors = lower("aten.geqrf.default", a * scale, engine=run_on_cpu)
    expected, taus = torch.geqrf(a)
    torch.testing.assert_close(compact.triu() / scale, expected.triu(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(factors, taus, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_with_the_orthogonal_factor(dtype):
    compact, taus = torch.geqrf(torch.randn(3, 6, 4, dtype=dtype))
    check("aten.linalg_householder_product.default", compact, taus, **CPU)
    check("aten.linalg_householder_product.default", compact, taus[:, :2], **CPU)
    check("aten.linalg_householder_product.default", compact, taus[:, :0], **CPU)
    for transpose in (False, True):
        columns, rows = torch.randn(3, 6, 5, dtype=dtype), torch.randn(3, 5, 6, dtype=dtype)
        check("aten.ormqr.default", compact, taus, columns, True, transpose, **CPU)
        check("aten.ormqr.default", compact, taus, rows, False, transpose, **CPU)


def test_products_in_panels():
    compact, taus = torch.geqrf(torch.randn(150, 140, dtype=torch.float64))
    other = torch.randn(150, 3, dtype=torch.float64)
    for transpose in (False, True):
        check("aten.ormqr.default", compact, taus, other, True, transpose, **CPU)
