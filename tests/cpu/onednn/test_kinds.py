from __future__ import annotations

import itertools

import pytest

from pjrt_bridge_cpu.onednn.calls import BFLOAT16, FLOAT32
from pjrt_bridge_cpu.onednn.kinds import PRODUCT, Kind, convolution_kind, kinds


@pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.name)
def test_a_kind_has_checks_and_a_ladder_that_rises(kind: Kind) -> None:
    assert kind.checks
    sizes = [case.size for case in kind.ladder]
    assert sizes == sorted(set(sizes))
    assert kind.least == sizes[0]


def test_what_the_rules_ask_for_has_a_kind() -> None:
    names = {
        convolution_kind(dtype, kernel, groups)
        for dtype, kernel, groups in itertools.product(
            (BFLOAT16, FLOAT32), ((1,), (3,), (1, 1), (1, 3), (1, 1, 1), (2, 2, 2)), (1, 4)
        )
    }
    names |= {PRODUCT}
    assert names == set(kinds())
