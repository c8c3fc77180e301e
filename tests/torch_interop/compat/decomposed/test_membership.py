"""`isin` of numbers beside NaN and infinities."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("fresh")

NUMBERS = st.sampled_from((-torch.inf, -1.5, -0.0, 0.0, 1.0, 2.5, torch.inf, torch.nan))

FUNCTIONS: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    torch.isin,
    lambda x, y: torch.isin(x, y, invert=True),
    lambda x, y: torch.isin(torch.inf, y),
    lambda x, y: torch.isin(2.5, y, invert=True),
    lambda x, y: torch.isin(x, 2.5),
    lambda x, y: torch.isin(x.reshape(1, -1), y.reshape(-1, 1).double()),
)


@settings(max_examples=40, deadline=None)
@given(
    elements=st.lists(NUMBERS, max_size=12),
    numbers=st.lists(NUMBERS, min_size=1, max_size=60),
    function=st.sampled_from(FUNCTIONS),
    dynamic=st.booleans(),
)
def test_numbers_are_found_beside_nan(
    elements: list[float],
    numbers: list[float],
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dynamic: bool,
) -> None:
    torch.compiler.reset()
    x, y = torch.tensor(elements), torch.tensor(numbers)
    found = torch.compile(function, backend="pjrt", dynamic=dynamic)(x, y)
    assert torch.equal(found, function(x, y))
