"""Which of equal values PyTorch selects, programs select, however few there are."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pjrt_bridge_cpu.aten import findings
from tests.cpu.aten.comparing import compare

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors where all uses were found right, calls gaining what they gain."""
    monkeypatch.setattr(findings, "is_usable", lambda library, use: True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 5, 84)], ids=str)
def test_the_same_of_equal_values_are_selected(
    shape: tuple[int, ...], dtype: torch.dtype, written: Counter[str]
) -> None:
    def select(x: torch.Tensor) -> list[torch.Tensor]:
        found = [x.topk(3, -1, largest) for largest in (True, False)]
        return [*found[0], *found[1], x.cumsum(0)]

    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    for found, expected in zip(torch.compile(select, backend="pjrt")(x), select(x), strict=True):
        assert torch.equal(found, expected)
    assert set(written) == {"topk.values"}


def test_routers_choose_the_experts_of_eager(written: Counter[str]) -> None:
    # Scores in half precision are often equal.
    scores = torch.linspace(-1, 1, 64).reshape(4, 16).sin().mul(3).round().to(torch.bfloat16)
    compare(lambda x: x.softmax(-1).topk(4, -1), scores)
    assert written["topk.values"]
