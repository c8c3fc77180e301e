import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, run_on_cpu

torch.manual_seed(0)
A, B, V = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4)
X, Y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
N = torch.arange(6).reshape(2, 3)
BIAS = torch.randn(5)

CASES = [
    ("aten.mm.default", (A, B), {}),
    ("aten.mm.default", (A.double(), B.double()), {}),
    ("aten.mm.default", (A.to(torch.complex64) * 1j, B.to(torch.complex64)), {}),
    ("aten.mm.default", (N, N.t().contiguous()), {}),
    ("aten.mm.default", (A[:0], B), {}),
    ("aten.mm.default", (A[:, :0], B[:0]), {}),
    ("aten.bmm.default", (X, Y), {}),
    ("aten.bmm.default", (X[:0], Y[:0]), {}),
    ("aten.mv.default", (A, V), {}),
    ("aten.dot.default", (V, V), {}),
    ("aten.dot.default", (N[0], N[1]), {}),
    ("aten.addmm.default", (BIAS, A, B), {}),
    ("aten.addmm.default", (torch.randn(3, 1), A, B), {"beta": 0.5, "alpha": 2}),
    ("aten.addmm.default", (torch.full((5,), math.nan), A, B), {"beta": 0}),
    ("aten.addmm.default", (N[:, :2].contiguous(), N, N.t().contiguous()), {"alpha": 3}),
    ("aten.baddbmm.default", (torch.randn(2, 1, 5), X, Y), {"alpha": 0.5}),
    ("aten.addmv.default", (torch.randn(3), A, V), {"beta": 2}),
]

HALF = [
    ("aten.mm.default", (A.bfloat16(), B.bfloat16()), {}),
    ("aten.mm.default", (A.half(), B.half()), {}),
    ("aten.bmm.default", (X.bfloat16(), Y.bfloat16()), {}),
    ("aten.addmm.default", (BIAS.bfloat16(), A.bfloat16(), B.bfloat16()), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_product(name, args, kwargs):
    check(name, *args, **kwargs)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), HALF, ids=[f"{i}-{c[0]}" for i, c in enumerate(HALF)]
)
def test_product_of_half_precision(name, args, kwargs):
    # The interpreter cannot contract into another type.
    check(name, *args, engines=[run_on_cpu], **kwargs)
