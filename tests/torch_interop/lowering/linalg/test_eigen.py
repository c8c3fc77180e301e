import math

import pytest
import torch

from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests.torch_interop.lowering.harness import lower, run_on_cpu

EIG = "aten.linalg_eig.default"


def assert_eigen(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> None:
    """Pairs solve the equation, vectors have norm 1, and values are eager's in any order."""
    size = a.shape[-1]
    bound = 40 * max(size, 4) * torch.finfo(a.dtype).eps * max(float(a.abs().max()), 1e-30)
    assert (
        float((a.to(vectors.dtype) @ vectors - vectors * values.unsqueeze(-2)).abs().max()) < bound
    )
    norms = vectors.norm(dim=-2)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    expected = torch.linalg.eigvals(a.to(torch.complex128))
    distance = (values.to(torch.complex128).unsqueeze(-1) - expected.unsqueeze(-2)).abs()
    worst = max(float(distance.amin(-1).max()), float(distance.amin(-2).max()))
    assert worst < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_eigenvectors(dtype):
    torch.manual_seed(0)
    a = torch.randn(2, 3, 6, 6, dtype=dtype)
    assert_eigen(a, *lower(EIG, a, engine=run_on_cpu))


@pytest.mark.parametrize(
    "a",
    [
        torch.roll(torch.eye(5), 1, 0),
        torch.triu(torch.ones(4, 4)),
        torch.tensor([[1.0, 2.0], [-2.0, 1.0]]),
        torch.randn(1, 1),
        torch.zeros(3, 3),
    ],
    ids=["cycle", "defective", "conjugates", "one", "zeros"],
)
def test_matrices_that_stall_or_have_few_vectors(a):
    assert_eigen(a, *lower(EIG, a, engine=run_on_cpu))


def test_real_eigenvalues_have_no_imaginary_part_and_the_ends_of_the_range_hold():
    a = torch.diag(torch.tensor([1e200, 2e200, -3e200], dtype=torch.float64))
    a[0, 2] = 1e200
    values, vectors = lower(EIG, a, engine=run_on_cpu)
    assert not values.imag.any()
    assert sorted(values.real.tolist()) == pytest.approx([-3e200, 1e200, 2e200])
    assert bool(vectors.isfinite().all())


def test_what_is_not_finite_gives_nan():
    values, vectors = lower(EIG, torch.full((2, 2), math.nan), engine=run_on_cpu)
    assert bool(values.isnan().all() and vectors.isnan().all())


def test_the_interpreter_agrees():
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    assert_eigen(a, *lower(EIG, a, engine=evaluate))


def test_no_matrices_and_no_rows():
    for shape in ((0, 3, 3), (2, 0, 0)):
        values, vectors = lower(EIG, torch.zeros(shape), engine=run_on_cpu)
        assert values.shape == shape[:-1]
        assert vectors.shape == shape
