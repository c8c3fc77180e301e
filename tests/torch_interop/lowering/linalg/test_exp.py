import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

torch.manual_seed(0)
NAME = "aten.linalg_matrix_exp.default"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str
)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_exponentials(dtype, scale):
    for shape in [(5, 5), (2, 3, 4, 4), (1, 1), (0, 3, 3), (2, 0, 0)]:
        check(NAME, scale * torch.randn(shape, dtype=dtype))


def test_every_matrix_has_its_own_scale():
    a = torch.randn(4, 3, 3, dtype=torch.float64) * torch.tensor([0.0, 0.1, 1, 30]).view(4, 1, 1)
    (found,) = lower(NAME, a, engine=run_on_cpu)
    torch.testing.assert_close(found, torch.linalg.matrix_exp(a), rtol=1e-10, atol=1e-10)
    line = torch.tensor([-80.0, -1, 0, 40], dtype=torch.float64)
    (found,) = lower(NAME, torch.diag(line), engine=run_on_cpu)
    torch.testing.assert_close(found.diagonal(), line.exp(), rtol=1e-12, atol=0)


def test_infinities_end():
    a = torch.stack([torch.full((2, 2), math.inf), torch.full((2, 2), math.nan), torch.eye(2)])
    (found,) = lower(NAME, a, engine=run_on_cpu)
    assert not bool(found[:2].isfinite().any())
    torch.testing.assert_close(found[2], math.e * torch.eye(2))


def test_half_precision_is_computed_in_float32():
    for dtype in (torch.bfloat16, torch.float16):
        a = torch.randn(2, 3, 3).to(dtype)
        (found,) = lower(NAME, a, engine=run_on_cpu)
        torch.testing.assert_close(found, torch.linalg.matrix_exp(a.float()).to(dtype))
