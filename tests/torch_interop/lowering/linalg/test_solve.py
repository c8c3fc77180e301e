import pytest
import torch

from pjrt_bridge.torch_interop.lowering.context import MemoryOrder
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, compare, lower, run_on_cpu

torch.manual_seed(0)
TYPES = [torch.float32, torch.complex128]

# The interpreter ends the process at triangular systems with leading dimensions.
CPU = {"engines": [run_on_cpu]}


def regular(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype) + 3 * torch.eye(shape[-1])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("a", "rhs"),
    [
        ((4, 4), (4,)),
        ((4, 4), (4, 3)),
        ((2, 1, 4, 4), (3, 4, 2)),
        ((3, 4, 4), (3, 4)),
        ((0, 4, 4), (0, 4, 2)),
        ((2, 0, 0), (2, 0, 3)),
        ((4, 4), (4, 0)),
    ],
    ids=str,
)
def test_systems(dtype, a, rhs):
    check(
        "aten._linalg_solve_ex.default",
        regular(*a, dtype=dtype),
        torch.randn(rhs, dtype=dtype),
        **CPU,
    )


def test_systems_from_the_right_and_in_panels():
    a, rhs = regular(2, 4, 4), torch.randn(2, 3, 4, dtype=torch.float64)
    check("aten._linalg_solve_ex.default", a, rhs, left=False, **CPU)
    rhs = torch.randn(130, 2, dtype=torch.float64)
    check("aten._linalg_solve_ex.default", 10 * regular(130, 130), rhs, **CPU)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_systems_by_lu_factors(dtype, adjoint, left):
    options = {"left": left, "adjoint": adjoint, **CPU}
    for shape in [(4, 4), (2, 1, 4, 4), (0, 4, 4)]:
        factors = torch.linalg.lu_factor(torch.randn(shape, dtype=dtype))
        rhs = torch.randn(shape[:-2] + ((4, 2) if left else (2, 4)), dtype=dtype)
        check("aten.linalg_lu_solve.default", *factors, rhs, **options)
    factors = torch.linalg.lu_factor(regular(2, 1, 4, 4, dtype=dtype))
    rhs = torch.randn((3, 4, 2) if left else (3, 2, 4), dtype=dtype)
    check("aten.linalg_lu_solve.default", *factors, rhs, **options)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_inverses(dtype):
    for shape in [(4, 4), (2, 3, 4, 4), (0, 4, 4), (0, 0), (1, 1)]:
        check("aten.linalg_inv_ex.default", regular(*shape, dtype=dtype), **CPU)


def test_a_singular_matrix_has_an_info():
    a = torch.stack([torch.eye(3), torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 1, 1]])])
    _, info = lower("aten.linalg_inv_ex.default", a, engine=run_on_cpu)
    assert info.tolist() == torch.linalg.inv_ex(a).info.tolist() == [0, 3]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3, 3), (0, 4, 4), (2, 0, 0), (1, 1)], ids=str)
def test_determinants(dtype, shape):
    a = torch.randn(shape, dtype=dtype)
    check("aten._linalg_det.default", a)
    check("aten._linalg_slogdet.default", a)


def test_determinants_of_0_and_of_many_rows():
    check("aten._linalg_det.default", torch.ones(2, 3, 3))
    check("aten._linalg_slogdet.default", torch.ones(2, 3, 3))
    check("aten._linalg_slogdet.default", torch.randn(130, 130, dtype=torch.float64), **CPU)


@pytest.mark.parametrize("order", MemoryOrder)
def test_factors_of_determinants_depend_on_how_a_matrix_lies_in_memory(order):
    a = torch.randn(2, 3, 3)
    x = {MemoryOrder.WHOLE: a, MemoryOrder.PART: a[1], MemoryOrder.OTHER: a.mT}[order]
    for operator in (torch.ops.aten._linalg_det.default, torch.ops.aten._linalg_slogdet.default):
        compare(lower(str(operator), x, input_order=order), operator(x))


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(upper, transpose, unit):
    for dtype in TYPES:
        a, rhs = regular(4, 4, dtype=dtype), torch.randn(2, 4, 3, dtype=dtype)
        check("aten.triangular_solve.default", rhs, a, upper, transpose, unit, **CPU)
    check("aten.triangular_solve.default", rhs[:0], a, upper, transpose, unit, **CPU)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_systems_by_a_cholesky_factor(dtype, upper):
    a = regular(2, 4, 4, dtype=dtype)
    factor = torch.linalg.cholesky(a @ a.mH, upper=upper)
    # The other triangle is not read.
    factor = factor + (factor.tril(-1).mH if not upper else factor.triu(1).mH)
    check("aten.cholesky_solve.default", torch.randn(3, 1, 4, 2, dtype=dtype), factor, upper, **CPU)
    check("aten.cholesky_inverse.default", factor, upper, **CPU)
    check("aten.cholesky_inverse.default", factor[:0], upper, **CPU)


def test_what_raises_is_refused():
    for name in ("aten._linalg_solve_ex.default", "aten.linalg_inv_ex.default"):
        arguments = [torch.eye(2)] * (2 if "solve" in name else 1)
        with pytest.raises(NotLowerable, match="check_errors"):
            lower(name, *arguments, check_errors=True)
    with pytest.raises(NotLowerable, match="exception"):
        lower("aten.cholesky.default", torch.eye(2))
