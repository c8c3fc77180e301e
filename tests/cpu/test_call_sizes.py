"""From which sizes on programs call PyTorch's kernels, and that these are right there.

Here nothing is changed: the sizes are those of the rules, and what may be called is what a trial on
this machine found right. In `aten/` calls are forced, so that small cases show what they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pjrt_bridge import registry
from pjrt_bridge_cpu.aten import findings
from tests.cpu.aten.comparing import compare
from tests.cpu.aten.test_convolution import HALF
from tests.opinfo import cases
from tests.opinfo.large import ENTRIES

pytestmark = pytest.mark.usefixtures("fresh")


def sizes() -> Sequence[Any]:
    return [
        pytest.param(
            name,
            dtype,
            id=f"{name} {str(dtype).removeprefix('torch.')}",
            marks=[HALF] if dtype == torch.bfloat16 and "conv" in name else [],
        )
        for name, entry in ENTRIES.items()
        for dtype in entry.types
    ]


@pytest.mark.parametrize(("name", "dtype"), sizes())
def test_a_call_from_the_size_on_where_it_pays(
    name: str, dtype: torch.dtype, written: Counter[str]
) -> None:
    """So the samples of the sweep (`tests.opinfo.large`) are calls."""
    cases.prepare()
    entry, function = ENTRIES[name], cases.entries()[name].op
    for made, called in ((entry.below, False), (entry.above, True)):
        args, kwargs = made(dtype)
        compare(lambda *given, named=kwargs: function(*given, **named), *args)
        assert bool(written[entry.operator]) == called


def test_every_use_was_found_right_here() -> None:
    library = registry.load("cpu").library
    assert library is not None
    wrong = {use: reason for use, reason in findings.findings(library).items() if reason}
    # PyTorch itself has no such convolution on some processors.
    allowed = set() if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {"convolution"}
    assert not {use for use in wrong if not any(word in use for word in allowed)}, wrong
