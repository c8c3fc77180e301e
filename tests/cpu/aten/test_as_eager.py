"""Operators whose results are PyTorch's own: the order of eigenvalues, half precision."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.cpu.aten.comparing import compare

pytestmark = pytest.mark.usefixtures("always", "fresh")


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_eigenvalues_have_eager_order_and_vectors_eager_phases(dtype):
    a = torch.randn(2, 3, 5, 5, dtype=dtype)
    compiled = torch.compile(torch.linalg.eig, backend="pjrt", options={"fallback": "error"})
    torch.testing.assert_close(tuple(compiled(a)), tuple(torch.linalg.eig(a)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_where_eager_rounds(dtype):
    image, grid = torch.randn(2, 3, 6, 7).to(dtype), (torch.rand(2, 4, 5, 2) * 2 - 1).to(dtype)

    def sampled(image, grid):
        return [
            F.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=False)
            for mode in ("bilinear", "nearest", "bicubic")
            for padding in ("zeros", "reflection")
        ]

    compare(sampled, image, grid)
    compare(partial(F.grid_sample, align_corners=False), image, grid, train=True)
    compare(torch.linalg.matrix_exp, (torch.randn(3, 4, 4) / 2).to(dtype))
