import pytest
import torch

from tests.torch_interop.lowering.harness import check, run_on_cpu

torch.manual_seed(0)
REAL = torch.randn(3, 4, 6, dtype=torch.float64)
COMPLEX = torch.randn(3, 4, 6, dtype=torch.complex128)


@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dims", [[2], [0, 2], [2, 0, 1], [1]])
def test_fourier_transforms(dims, normalization):
    for forward in (True, False):
        check("aten._fft_c2c.default", COMPLEX, dims, normalization, forward)
    for onesided in (True, False):
        check("aten._fft_r2c.default", REAL, dims, normalization, onesided)
    half = torch.ops.aten._fft_r2c(REAL, dims, 0, True)
    size = REAL.shape[dims[-1]]
    check("aten._fft_c2r.default", half, dims, normalization, size)


def test_fourier_transforms_in_single_precision():
    # The interpreter transforms in double precision only.
    for name, x in {"_fft_c2c": COMPLEX.to(torch.complex64), "_fft_r2c": REAL.float()}.items():
        check(f"aten.{name}.default", x, [1, 2], 0, True, engines=[run_on_cpu])


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(upper, left, unit):
    a = torch.randn(3, 3) + 4 * torch.eye(3)
    a = a.triu() if upper else a.tril()
    rhs = torch.randn(2, 3, 4) if left else torch.randn(2, 4, 3)
    options = {"upper": upper, "left": left, "unitriangular": unit}
    # The interpreter ends the process at systems with leading dimensions.
    check("aten.linalg_solve_triangular.default", a, rhs, engines=[run_on_cpu], **options)
