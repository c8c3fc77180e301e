import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torch_interop.lowering.harness import check, lower, run_on_cpu


@settings(max_examples=10)
@given(before=st.integers(1, 3), size=st.integers(1, 140), after=st.integers(1, 3))
def test_sums_of_integers_are_exact_at_every_length(before, size, after):
    x = torch.randint(-(1 << 40), 1 << 40, (before, size, after))
    assert torch.equal(lower("aten.cumsum.default", x, 1, engine=run_on_cpu)[0], x.cumsum(1))


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 63, 64, 65, 513, 4097])
@pytest.mark.parametrize("name", ["aten.cumsum.default", "aten.cumprod.default"])
def test_lengths_around_those_of_blocks(name, size):
    check(name, 1 + torch.rand(size) / 64, 0, engines=[run_on_cpu])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 7, 8, 50])
def test_what_is_not_finite_leaves_what_came_before_alone(value, place):
    x = torch.rand(100)
    x[place] = value
    check("aten.cumsum.default", x, 0, engines=[run_on_cpu])


@pytest.mark.parametrize("size", [5, 8, 70])
def test_the_last_of_equal_extremes_counts(size):
    x = torch.randint(0, 4, (30, size)).float()
    for name in ("aten.cummax.default", "aten.cummin.default"):
        check(name, x, 1, exact=True, engines=[run_on_cpu])


def test_long_sums_are_more_exact_than_steps_one_by_one():
    torch.manual_seed(0)
    x = torch.rand(100_000)
    exact = x.double().cumsum(0)
    (found,) = lower("aten.cumsum.default", x, 0, engine=run_on_cpu)
    assert found is not None
    # A sum of 100,000 numbers one by one in float32 may be wrong by 100,000 roundings.
    assert ((found - exact).abs() / exact).max() < 20 * torch.finfo(torch.float32).eps
