"""PyTorch's own samples of the operators that have rules, with a call wherever a rule takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch.testing._internal import common_methods_invocations as database

from tests.cpu.aten.test_convolution import HALF
from tests.opinfo import cases
from tests.opinfo.case import Case
from tests.opinfo.cases import Sample
from tests.opinfo.running import run_case

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"
ENTRIES = {
    "mm": "mm.out",
    "bmm": "bmm.out",
    "addmm": "linear.out",
    "matmul": "bmm.out",
    "nn.functional.linear": "mm.out",
    "nn.functional.conv1d": "mkldnn_convolution.default",
    "nn.functional.conv2d": "mkldnn_convolution.default",
    "nn.functional.conv3d": "mkldnn_convolution.default",
    "nn.functional.conv_transpose1d": "convolution.default",
    "nn.functional.conv_transpose2d": "convolution.default",
    "nn.functional.conv_transpose3d": "convolution.default",
    "nn.functional.scaled_dot_product_attention": ATTENTION,
    "softmax": "_softmax.out",
    "log_softmax": "_log_softmax.out",
    "cumsum": "cumsum.out",
    "cumprod": "cumprod.out",
    "logcumsumexp": "logcumsumexp.out",
    "topk": "topk.values",
}
"""By entry of the database, an operator that some of its samples call."""

TYPES = ("float32", "bfloat16", "float64", "int64", "int32")
CALLED = ("float32", "bfloat16")
"""Types of which every entry has a call."""

COUNT = 60
"""Samples of a case."""

PRODUCTS = ("mm", "bmm", "matmul")
"""Products, which are calls in float32 where the right side is transposed."""

pytestmark = [pytest.mark.usefixtures("always", "fresh", "convolved_by_onednn")]


def chosen() -> Iterator[object]:
    by_name = {info.full_name: info for info in database.op_db}
    for name in ENTRIES:
        info = by_name[name]
        for dtype in TYPES:
            real = getattr(torch, dtype)
            directions = ["forward"] * (real in info.supported_dtypes("cpu"))
            if info.supports_autograd and real in info.supported_backward_dtypes("cpu"):
                directions.append("backward")
            for direction in directions:
                yield pytest.param(
                    Case(name, dtype, direction),
                    id=f"{name} {dtype} {direction}",
                    marks=[HALF] if "conv" in name and dtype == "bfloat16" else [],
                )


def is_called(case: Case, samples: list[Sample]) -> bool:
    """Whether a rule takes a sample: of sums with products none, since all have factors."""
    if case.entry == "addmm":
        assert all({"alpha", "beta"} & sample.kwargs.keys() for sample in samples)
        return False
    if case.entry in PRODUCTS and case.dtype == "float32":
        return any(is_transposed(*sample.args) for sample in samples)
    return True


def is_transposed(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the right side is, and the product is neither empty nor one with a vector."""
    matrices = min(x.dim(), y.dim()) > 1 and min(x.numel(), y.numel()) > 0
    return matrices and x.shape[-2] > 1 < y.shape[-1] and y.stride(-1) > y.stride(-2)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(chosen()))
def test_samples_of_torch(case: Case, written: Counter[str]) -> None:
    cases.prepare()
    operator = ENTRIES[case.entry]
    info = cases.entries()[case.entry]
    verdict = run_case(case, info, COUNT)
    assert not verdict.problems
    if case.dtype in CALLED and case.direction == "forward":
        called = is_called(case, cases.samples(info, case, COUNT))
        assert bool(written[operator]) == called, (operator, written)
