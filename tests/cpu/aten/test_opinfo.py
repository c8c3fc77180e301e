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
    "argmax": "argmax.out",
    "argmin": "argmin.out",
    "cumsum": "cumsum.out",
    "cumprod": "cumprod.out",
    "logcumsumexp": "logcumsumexp.out",
    "topk": "topk.values",
    "sort": "sort.values_stable",
}
"""By entry of the database, an operator that some of its samples call."""

TYPES = ("float32", "bfloat16", "float64", "int64", "int32")
CALLED = ("float32", "bfloat16")
"""Types of which every entry has a call."""

UNCALLED = {
    *((name, "float32") for name in ("mm", "bmm", "matmul")),
    *(("addmm", dtype) for dtype in CALLED),
}
"""Products in float32 are calls where the right side is transposed, which it is in no sample; with
a sum where its terms are not multiplied and one of them is a row, which holds of no sample."""

pytestmark = [pytest.mark.usefixtures("always", "fresh")]


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


@pytest.mark.slow
@pytest.mark.parametrize("case", list(chosen()))
def test_samples_of_torch(case: Case, written: Counter[str]) -> None:
    cases.prepare()
    operator = ENTRIES[case.entry]
    verdict = run_case(case, cases.entries()[case.entry], 60)
    assert not verdict.problems
    if case.dtype in CALLED and case.direction == "forward":
        called = (case.entry, case.dtype) not in UNCALLED
        assert bool(written[operator]) == called, (operator, written)
