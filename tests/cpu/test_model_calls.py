"""Models of the zoo that are large enough call PyTorch's kernels, and give what eager gives."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.models.case import Case
from tests.models.running import run_case

pytestmark = pytest.mark.usefixtures("fresh")

CALLED = {
    Case("llama-wide", "training"): {
        "_log_softmax.out",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "mm.out",
    },
    Case("vit", "inference"): {"mkldnn_convolution.default"},
}


@pytest.mark.usefixtures("convolved_by_onednn")
@pytest.mark.parametrize("case", CALLED, ids=str)
def test_a_model_that_makes_calls(case: Case, written: Counter[str]) -> None:
    verdict = run_case(case)
    assert not verdict.problems
    assert verdict.outcomes == {"device"}
    assert set(written) >= CALLED[case]
