import math

import pytest
import torch

from tests.torch_interop.lowering.harness import lower, run_on_cpu, run_reference

EIG = "aten.linalg_eig.default"


def assert_eigen(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> None:
    """Pairs solve the equation, vectors have norm 1, and values are eager's in any order."""
    size = a.shape[-1]
    bound = 40 * max(size, 4) * torch.finfo(a.dtype).eps * max(float(a.abs().max()), 1e-30)
    assert float((a.to(vectors.dtype) @ vectors - vectors * values.unsqueeze(-2)).abs().max()) < bound
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
