"""Comparing results: what is within a tolerance passes, what is not fails."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge_conformance import Fail
from pjrt_bridge_conformance.expect import same
from pjrt_bridge_conformance.numerics import EXACT, Tolerance, compare, numbers, whole

Array = np.ndarray[Any, Any]
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def agree(found: Any, expected: Any, tolerance: Tolerance = EXACT) -> bool:
    try:
        compare(np.asarray(found), np.asarray(expected), tolerance, "result 0")
    except Fail:
        return False
    return True


def steps(value: Array, count: int) -> Array:
    for _ in range(abs(count)):
        value = np.nextafter(value, np.asarray(np.sign(count) * 400).astype(value.dtype))
    return value


@given(st.sampled_from(FLOATS), st.floats(-100, 100), st.integers(-6, 6), st.integers(0, 6))
def test_ulps_are_steps_between_neighbours(
    kind: Any, number: float, distance: int, ulps: int
) -> None:
    value = np.asarray(number).astype(kind)
    other = steps(value, distance)
    # 0 and -0 are one number, so there is one step less across zero.
    assert agree(other, value, Tolerance(ulps=ulps)) == (abs(distance) <= ulps)


def test_zeros() -> None:
    zero, minus = np.float32(0.0), np.float32(-0.0)
    assert agree(zero, minus)
    assert not agree(zero, minus, Tolerance(signed_zeros=True))
    assert agree(minus, minus, Tolerance(signed_zeros=True))


@pytest.mark.parametrize("tolerance", [EXACT, Tolerance(1000), Tolerance(absolute=1e9)])
def test_what_is_no_number_is_exact(tolerance: Tolerance) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert agree(values, values, tolerance)
    assert agree(-values[:1], values[:1], tolerance)
    for index in range(4):
        for other in range(4):
            if index != other:
                assert not agree(values[index], values[other], EXACT)
    for index in range(3):
        assert not agree(values[index], values[3], tolerance)
        assert not agree(values[3], values[index], tolerance)


@given(st.floats(0, 2), st.floats(-100, 100))
@example(bound=6.3400764774050706e-15, number=16.0)
def test_absolute_bounds(bound: float, number: float) -> None:
    tolerance = Tolerance(absolute=bound)
    near = np.float64(number + 0.9 * bound)
    # Rounding takes it beyond a small bound.
    assert agree(near, np.float64(number), tolerance) == (abs(near - number) <= bound)
    assert not agree(np.float64(number + 1.1 * bound + 1e-9), np.float64(number), tolerance)


def test_complex_numbers() -> None:
    z = np.array([3 + 4j], np.complex64)
    assert agree(z, z)
    assert not agree(z + np.complex64(1e-5j), z)
    assert agree(z + np.complex64(1e-6j), z, Tolerance(ulps=8))
    assert not agree(z + np.complex64(1e-3j), z, Tolerance(ulps=8))
    assert not agree(np.conj(z), z, Tolerance(ulps=8))
    nan = np.array([complex(np.nan, 1)], np.complex64)
    assert agree(nan, nan, Tolerance(ulps=8))
    assert not agree(nan, z, Tolerance(ulps=8))


def test_shapes_and_types() -> None:
    x = np.zeros((2, 3), np.float32)
    assert not agree(x, x.T)
    assert not agree(x, x.astype(np.float64))
    assert agree(x[:0], x[:0])


def test_integers_are_exact() -> None:
    assert agree(np.int64(2**62 + 1), np.int64(2**62 + 1))
    assert not agree(np.int64(2**62 + 1), np.int64(2**62), Tolerance(ulps=9, absolute=9))


def test_the_failure_names_the_element_and_its_arguments() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    wrong = x.copy()
    wrong[1, 2] = 9
    with pytest.raises(Fail, match=r"1 of 6 elements are wrong; at \[1, 2\] of 5\.0 found 9\.0"):
        compare(wrong, x, EXACT, "result 0", [x])


def test_bits() -> None:
    nan = np.array([1, np.nan], np.float32)
    other = nan.view(np.uint32).copy()
    other[1] += 1
    same(nan, nan.copy(), "it")
    with pytest.raises(Fail, match=r"1 of 2 elements differ; at \[1\]"):
        same(nan, other.view(np.float32), "it")
    with pytest.raises(Fail, match="shape and type"):
        same(nan, nan.astype(np.float64), "it")


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_arguments_have_the_type_and_differ(dtype: dtypes.DType) -> None:
    for make in (numbers, whole):
        values = make(dtype, 40)
        assert values.dtype == dtype.numpy
        assert values.shape == (40,)
        assert len({value.tobytes() for value in values}) > 1
        np.testing.assert_array_equal(values, make(dtype, 40))
