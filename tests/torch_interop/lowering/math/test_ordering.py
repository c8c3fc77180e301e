import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt_bridge
from tests.torch_interop.lowering.harness import check, emit, to_numpy, to_torch

SIZE = 24
NAN, INF = math.nan, math.inf
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SPECIAL = [0.0, -0.0, NAN, -NAN, INF, -INF, 1.0, -1.0, 1e-40, -1e-40]


def bits(x):
    """What tells -0.0 from 0.0, but not one NaN from another."""
    return torch.where(x.isnan(), 2, x.signbit().long()) if x.is_floating_point() else x


@cache
def compiled(name, dtype, **arguments):
    """An operator on rows of `SIZE` elements, as an executable."""
    program, *_ = emit(name, torch.zeros(SIZE, dtype=dtype), **arguments)
    return pjrt_bridge.client("cpu").compile(program)


def run(executable, x):
    return [to_torch(np.asarray(result)) for result in executable(to_numpy(x))]


def rows(dtype):
    if dtype.is_floating_point:
        items = st.one_of(st.sampled_from(SPECIAL), st.integers(-100, 100))
    else:
        items = st.integers(0, 1 if dtype is torch.bool else 100)
    values = st.lists(items, min_size=SIZE, max_size=SIZE)
    return values.map(lambda row: torch.tensor(row, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
@pytest.mark.parametrize("descending", [False, True])
@settings(max_examples=30)
@given(data=st.data())
def test_sorts_are_stable_whatever_the_values(dtype, descending, data):
    x = data.draw(rows(dtype))
    expected = torch.sort(x, stable=True, descending=descending)
    executable = compiled("aten.sort.stable", dtype, stable=True, descending=descending)
    values, places = run(executable, x)
    assert torch.equal(places, expected.indices)
    assert torch.equal(bits(values), bits(expected.values))


@pytest.mark.parametrize("dtype", WHOLE[:2], ids=str)
def test_all_bits_of_integers_count(dtype):
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.max, limits.min, 0, -1, limits.max - 1, 1, limits.min + 1]).to(dtype)
    for descending in (False, True):
        check("aten.sort.default", x, 0, descending, exact=True)
    for name in ("aten.argmax.default", "aten.argmin.default"):
        check(name, x, exact=True)


def test_doubles_that_are_one_float_are_in_order():
    x = 1 + torch.tensor([3.0, 1.0, 2.0, 0.0, -1.0], dtype=torch.float64) * 2**-50
    check("aten.sort.default", x, exact=True)
    check("aten.argmax.default", x, exact=True)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@settings(max_examples=30)
@given(data=st.data())
def test_extremes_are_the_first_ones_and_nan_wins(name, dtype, data):
    x = data.draw(rows(dtype))
    # No bools in eager.
    expected = getattr(torch, name)(x.byte() if dtype is torch.bool else x)
    assert run(compiled(f"aten.{name}.default", dtype), x) == [expected]
