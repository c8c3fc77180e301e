import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower

INF, NAN = math.inf, math.nan
torch.manual_seed(0)
X = torch.randn(2, 3, 5)
H = (torch.randn(4, 50) * 3).bfloat16()
N = torch.tensor([[1.0, NAN, 3.0, NAN], [-INF, -INF, -INF, -INF], [2.0, 5.0, 5.0, INF]])
INT = torch.tensor([[3, -1, 3], [7, 7, -9]])
P = torch.tensor([[True, False], [False, False]])
S = torch.tensor(2.5)
E = torch.empty(0, 3)

CASES = [
    ("aten.sum.default", (X,), {}),
    ("aten.sum.default", (H,), {}),
    ("aten.sum.default", (INT.to(torch.int32),), {}),
    ("aten.sum.default", (P,), {}),
    ("aten.sum.default", (S,), {}),
    ("aten.sum.default", (E,), {}),
    ("aten.sum.dim_IntList", (X, [0, -1]), {}),
    ("aten.sum.dim_IntList", (X, [1], True), {}),
    ("aten.sum.dim_IntList", (X, []), {}),
    ("aten.sum.dim_IntList", (X, None, True), {}),
    ("aten.sum.dim_IntList", (H, [1]), {}),
    ("aten.sum.dim_IntList", (H, [1]), {"dtype": torch.float32}),
    ("aten.sum.dim_IntList", (INT, [0]), {"dtype": torch.float16}),
    ("aten.sum.dim_IntList", (S, [-1]), {}),
    ("aten.sum.dim_IntList", (E, [0]), {}),
    ("aten.mean.default", (X,), {}),
    ("aten.mean.default", (E,), {}),
    ("aten.mean.dim", (H, [1], True), {}),
    ("aten.mean.dim", (X, [-1, 0]), {}),
    ("aten.mean.dim", (INT, [0]), {"dtype": torch.float32}),
    ("aten.prod.default", (X,), {}),
    ("aten.prod.default", (INT,), {}),
    ("aten.prod.dim_int", (X, -1, True), {}),
    ("aten.prod.dim_int", (INT.to(torch.int8), 0), {}),
    ("aten.any.default", (N,), {}),
    ("aten.any.default", (torch.tensor([0, 2], dtype=torch.uint8),), {}),
    ("aten.any.dim", (N, 0), {}),
    ("aten.any.dim", (P, -1, True), {}),
    ("aten.any.dims", (X, [0, 2]), {}),
    ("aten.any.dims", (P, []), {}),
    ("aten.any.dims", (P, None), {}),
    ("aten.any.dim", (E, 0), {}),
    ("aten.all.default", (P,), {}),
    ("aten.all.dim", (N, 1), {}),
    ("aten.all.dims", (INT, [0, 1], True), {}),
    ("aten.all.dim", (E, 0), {}),
    ("aten.amax.default", (N, [1]), {}),
    ("aten.amax.default", (X,), {}),
    ("aten.amax.default", (INT, [-1], True), {}),
    ("aten.amax.default", (P, [0]), {}),
    ("aten.amin.default", (N, [1]), {}),
    ("aten.amin.default", (H, [0, 1]), {}),
    ("aten.amin.default", (P, [0]), {}),
    ("aten.amin.default", (S, []), {}),
    ("aten.max.default", (INT,), {}),
    ("aten.min.default", (N,), {}),
    ("aten.max.dim", (N, 1), {}),
    ("aten.max.dim", (INT, 0, True), {}),
    ("aten.max.dim", (P, -1), {}),
    ("aten.max.dim", (S, 0), {}),
    ("aten.min.dim", (N, -1), {}),
    ("aten.min.dim", (INT.to(torch.uint8), 1), {}),
    ("aten.min.dim", (H, 1), {}),
    ("aten.argmax.default", (N,), {}),
    ("aten.argmax.default", (N, 1), {}),
    ("aten.argmax.default", (INT, 0, True), {}),
    ("aten.argmax.default", (S,), {}),
    ("aten.argmax.default", (N, None, True), {}),
    ("aten.argmin.default", (N, -1), {}),
    ("aten.argmin.default", (INT,), {}),
    ("aten.aminmax.default", (X,), {"dim": 1}),
    ("aten.aminmax.default", (N,), {}),
    ("aten.var.correction", (X, [0, 2]), {}),
    ("aten.var.correction", (X,), {"correction": 0}),
    ("aten.var.correction", (X, [1]), {"correction": 3, "keepdim": True}),
    ("aten.var.correction", (X[:, :1], [1]), {}),
    ("aten.var.correction", (H, [1]), {"correction": 0.5}),
    ("aten.var.dim", (X, [1], False), {}),
    ("aten.std.correction", (X, [1]), {}),
    ("aten.var_mean.correction", (H, [1]), {"correction": 0, "keepdim": True}),
    ("aten.linalg_vector_norm.default", (X,), {}),
    ("aten.linalg_vector_norm.default", (X, 1, [0, -1], True), {}),
    ("aten.linalg_vector_norm.default", (X, INF, [1]), {}),
    ("aten.linalg_vector_norm.default", (X, -INF, [1]), {}),
    ("aten.linalg_vector_norm.default", (N, 0, [1]), {}),
    ("aten.linalg_vector_norm.default", (X, 3.5), {}),
    ("aten.linalg_vector_norm.default", (H, 2, [1]), {}),
    ("aten.linalg_vector_norm.default", (H, 2, [1]), {"dtype": torch.float32}),
    ("aten.linalg_vector_norm.default", (torch.tensor([3 + 4j, 1j]),), {}),
    ("aten.cumsum.default", (X, -1), {}),
    ("aten.cumsum.default", (H, 1), {}),
    ("aten.cumsum.default", (P, 0), {}),
    ("aten.cumsum.default", (INT, 1), {"dtype": torch.float32}),
    ("aten.cumsum.default", (torch.ones(37, dtype=torch.int32), 0), {}),
    ("aten.cumsum.default", (N, 1), {}),
    ("aten.cumsum.default", (S, 0), {}),
    ("aten.cumsum.default", (E, 0), {}),
    ("aten.cumprod.default", (X, 2), {}),
    ("aten.cumprod.default", (INT, 1), {}),
    ("aten.histc.default", (torch.tensor([0.0, 1, 2, 2, 3, 4, 5, NAN]), 4, 0, 4), {}),
    ("aten.histc.default", (torch.tensor([0.5, 1, 2, 2, 3, 4.5]), 5), {}),
    ("aten.histc.default", (torch.tensor([2.0, 2.0]), 3), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_reduction(name, args, kwargs):
    check(name, *args, **kwargs)


def test_half_precision_accumulates_in_float32():
    ones = torch.ones(4096, dtype=torch.bfloat16)
    (total,) = lower("aten.sum.default", ones)
    assert total.item() == 4096


def test_variance_of_complex_numbers():
    x = torch.tensor([[1j, 2 - 1j, 3.5], [-4 + 2j, 0, 1e3j]])
    for name in ("aten.var.correction", "aten.var_mean.correction"):
        check(name, x)
        check(name, x, [0], correction=0, keepdim=True)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool]
)
def test_hash(dtype):
    x = (torch.randn(2, 3) * 3).to(dtype)
    check("aten.hash_tensor.default", x)
    check("aten.hash_tensor.default", x, [-1], keepdim=True)


@pytest.mark.parametrize("columns", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.bfloat16, torch.float32]
)
def test_few_rows_of_as_many_columns_as_addresses_scale_by(dtype, columns):
    """An element and its place packed into one word are not read well there by LLVM for x86."""
    x = (torch.arange(4 * columns) * 7 % 5).reshape(4, columns).to(dtype)
    for name in ("min", "max"):
        check(f"aten.{name}.dim", x, 0, exact=True)
        check(f"aten.arg{name}.default", x, 0, exact=True)
