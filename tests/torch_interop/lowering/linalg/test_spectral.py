import math
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import BOTH, check, lower, run_on_cpu

torch.manual_seed(0)
TYPES = [torch.float32, torch.complex128]
SHAPES = [(1, 1), (2, 2), (2, 3, 5, 5), (0, 3, 3), (2, 0, 0)]
EIGH, SVD = "aten._linalg_eigh.default", "aten._linalg_svd.default"


def longest_slow(option: bool) -> list[Any]:
    """Each type and each choice once in `make test`; complex numbers with `option` take longest."""
    return [
        pytest.param(
            dtype,
            chosen,
            id=f"{chosen}-{dtype}",
            marks=[pytest.mark.slow] if dtype.is_complex == (chosen == option) else [],
        )
        for dtype in TYPES
        for chosen in (False, True)
    ]


def assert_near(found: torch.Tensor, expected: torch.Tensor, norm: float = 1.0) -> None:
    """Within 60 eps of the norm."""
    assert found.shape == expected.shape
    if found.numel():
        eps = torch.finfo(found.dtype).eps
        assert float((found - expected.to(found.dtype)).abs().max()) <= 60 * eps * norm


def norm_of(a: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(a, 2).max()) if a.numel() else 1.0


def assert_eigen(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> None:
    norm = norm_of(a)
    assert_near(values, torch.linalg.eigvalsh(a), norm)
    assert_near(a @ vectors, vectors * values.unsqueeze(-2), norm)
    assert_near(vectors.mH @ vectors, torch.eye(a.shape[-1]).expand(a.shape))


def assert_singular(
    a: torch.Tensor, left: torch.Tensor, values: torch.Tensor, right: torch.Tensor
) -> None:
    norm, count = norm_of(a), values.shape[-1]
    assert_near(values, torch.linalg.svdvals(a), norm)
    product = (left[..., :count] * values.unsqueeze(-2)) @ right[..., :count, :]
    assert_near(product, a, norm)
    for basis in (left.mH @ left, right @ right.mH):
        assert_near(basis, torch.eye(basis.shape[-1]).expand(basis.shape))


def hermitian(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x + x.mH


@pytest.mark.parametrize(("dtype", "upper"), longest_slow(True))
def test_eigenvectors(dtype, upper):
    uplo = "U" if upper else "L"
    for shape in SHAPES:
        a = hermitian(*shape, dtype=dtype)
        triangle = a.triu() if uplo == "U" else a.tril()
        if dtype.is_complex and a.numel():
            # An imaginary part on the diagonal is not read.
            triangle = triangle + 5j * torch.eye(shape[-1])
        values, vectors = lower(EIGH, triangle, uplo, engine=run_on_cpu)
        assert_eigen(a, values, vectors)


def test_eigenvectors_by_the_interpreter():
    a = hermitian(2, 3, 3, dtype=torch.float64)
    for engine in BOTH:
        assert_eigen(a, *lower(EIGH, a, engine=engine))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_eigenvectors_are_as_near_to_the_exact_ones_as_those_of_lapack(dtype):
    a = hermitian(20, 12, 12, dtype=dtype)
    wide = a.to(torch.complex128 if dtype.is_complex else torch.float64)
    exact = torch.linalg.eigh(wide).eigenvectors

    def error(vectors: torch.Tensor) -> float:
        phases = torch.sgn((vectors.to(wide.dtype).conj() * exact).sum(-2, keepdim=True))
        return float((vectors * phases - exact).norm(dim=-2).median())

    found = lower(EIGH, a, engine=run_on_cpu)[1]
    assert error(found) <= error(torch.linalg.eigh(a).eigenvectors)


def test_eigenvalues_alone():
    check(EIGH, hermitian(2, 5, 5, dtype=torch.float64), "U", False)


def spectra(n: int) -> dict[str, torch.Tensor]:
    half = torch.ones(n // 2)
    return {
        "equal": torch.ones(n),
        "opposite": torch.cat([half, -half]),
        "zero": torch.zeros(n),
        "graded": torch.logspace(0, -12, n),
        "rank 1": torch.cat([torch.tensor([1e8]), torch.zeros(n - 1)]),
        "small": torch.full((n,), 1e-30),
        "large": torch.linspace(1, 2, n) * 1e30,
    }


@pytest.mark.parametrize("kind", spectra(2))
def test_spectra_with_clusters_and_scales(kind):
    line = spectra(12)[kind]
    basis = torch.linalg.qr(torch.randn(12, 12)).Q
    a = basis * line @ basis.mT
    a = (a + a.mT) / 2
    assert_eigen(a, *lower(EIGH, a, engine=run_on_cpu))
    assert_singular(a, *lower(SVD, a, True, engine=run_on_cpu))


def test_hundreds_of_rows():
    a = hermitian(160, 160, dtype=torch.float32)
    assert_eigen(a, *lower(EIGH, a, engine=run_on_cpu))
    a = torch.randn(160, 130)
    assert_singular(a, *lower(SVD, a, engine=run_on_cpu))


@pytest.mark.parametrize(("dtype", "full"), longest_slow(True))
def test_singular_vectors(dtype, full):
    for shape in [*SHAPES[1:], (3, 6, 4), (4, 6), (2, 0, 3), (2, 3, 0)]:
        a = torch.randn(shape, dtype=dtype)
        found = lower(SVD, a, full, engine=run_on_cpu)
        expected = torch.linalg.svd(a, full_matrices=full)
        assert [x.shape for x in found] == [x.shape for x in expected]
        assert_singular(a, *found)


# Of a full rank those that are not full are found always.
@pytest.mark.parametrize("full", [pytest.param(False, marks=pytest.mark.slow), True])
def test_singular_vectors_of_few_dimensions(full):
    a = torch.randn(6, 2, dtype=torch.float64) @ torch.randn(2, 4, dtype=torch.float64)
    for matrix in (a, a.mT, torch.zeros(4, 4, dtype=torch.float64)):
        assert_singular(matrix, *lower(SVD, matrix, full, engine=run_on_cpu))


def test_singular_values_alone():
    for a in (torch.randn(2, 5, 3), torch.randn(3, 5), torch.randn(4, 4)):
        check(SVD, a, False, False, engines=[run_on_cpu])


def test_nan_stays_in_its_matrix():
    a = hermitian(2, 3, 3, dtype=torch.float32)
    a[0, 1, 1] = math.nan
    for name in (EIGH, SVD):
        outputs = lower(name, a, engine=run_on_cpu)
        assert all(bool(x[0].isnan().all()) and bool(x[1].isfinite().all()) for x in outputs)


@pytest.mark.parametrize(("dtype", "symmetric"), longest_slow(False))
def test_pseudo_inverse(dtype, symmetric):
    x = torch.linalg.qr(torch.randn(3, 4, 4, dtype=dtype)).Q
    weights = torch.tensor([2.0, 1.0, 0.5, 0.0], dtype=dtype)
    a = x * weights @ x.mH
    if not symmetric:
        a = torch.cat([a, torch.randn(3, 1, 4, dtype=dtype)], 1)
    name, options = "aten.linalg_pinv.atol_rtol_tensor", {"hermitian": symmetric}
    engines = [run_on_cpu]
    if not symmetric:
        check(name, a, engines=engines, **options)
        check(name, a.mH, engines=engines, **options)
    for bounds in (
        {"atol": torch.tensor(0.7)},
        {"rtol": torch.tensor([0.1, 0.3, 0.7])},
        {"atol": torch.tensor([0.1, 0.2, 0.9]), "rtol": torch.tensor(0.3)},
    ):
        check(name, a, engines=engines, **options, **bounds)
    check(name, a[:0], engines=engines, **options)


def test_the_pseudo_inverse_leaves_out_what_is_rounding():
    a = torch.ones(3, 3)
    check("aten.linalg_pinv.atol_rtol_tensor", a, engines=[run_on_cpu])
    check("aten.linalg_pinv.atol_rtol_tensor", a, hermitian=True, engines=[run_on_cpu])


def test_larger_matrices_are_left_to_lapack():
    for name in (EIGH, SVD, "aten.linalg_pinv.atol_rtol_tensor"):
        with pytest.raises(NotLowerable, match=r"257 columns \(more than 256\)"):
            lower(name, torch.eye(257))
