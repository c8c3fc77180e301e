"""Which elements are read of an array, behind operations that move elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.stablehlo.kernel_attributes import ExpressionRead
from pjrt_bridge.stablehlo.patterns import accesses
from pjrt_bridge.stablehlo.patterns.accesses import Access, NoAccess
from tests.extent import examples
from tests.stablehlo.patterns.computed import positions

Follow = Callable[[Access], Access]


def read(access: Access, array: Any) -> Any:
    return array.reshape(-1)[positions(ExpressionRead(access.first, access.dims))]


def factors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def moved(data: st.DataObject, array: Any) -> tuple[Any, Follow]:
    """An array with its elements moved, and how an access is followed to the array."""
    shape = array.shape
    kind = data.draw(st.sampled_from(["transpose", "reshape", "repeat", "slice"]))
    if kind == "transpose":
        order = data.draw(st.permutations(range(array.ndim)))
        return array.transpose(order), lambda way: accesses.transposed(way, shape, order)
    if kind == "reshape":
        first = data.draw(st.sampled_from(factors(array.size)))
        second = data.draw(st.sampled_from(factors(array.size // first)))
        return array.reshape(first, second, -1), lambda way: way
    if kind == "repeat":
        at, count = data.draw(st.integers(0, array.ndim)), data.draw(st.integers(1, 3))
        result = (*shape[:at], count, *shape[at:])
        dims = [dim for dim in range(len(result)) if dim != at]
        repeated = np.broadcast_to(np.expand_dims(array, at), result)
        return repeated, lambda way: accesses.repeated(way, shape, result, dims)
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    strides = [data.draw(st.integers(1, 2)) for _ in shape]
    cut = array[
        tuple(slice(start, None, step) for start, step in zip(starts, strides, strict=True))
    ]
    return cut, lambda way: accesses.sliced(way, shape, cut.shape, starts, strides)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_the_same_elements_are_read(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    array = np.arange(math.prod(shape)).reshape(shape)
    value, steps = array, []
    for _ in range(data.draw(st.integers(1, 4))):
        value, follow = moved(data, value)
        if value.ndim > 6 or value.size > 2000:
            return
        steps.append(follow)
    order = data.draw(st.permutations(range(value.ndim)))
    way = Access.whole(value.shape, order)
    expected = value.transpose(order).reshape(-1)
    with suppress(NoAccess):
        for follow in reversed(steps):
            way = follow(way)
        np.testing.assert_array_equal(read(way, array), expected)
        np.testing.assert_array_equal(read(way.joined, array), expected)
        sizes = [math.prod(size for size, _ in item.dims) for item in (way, way.joined)]
        assert sizes == [expected.size] * 2


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4), st.data())
def test_of_parts_that_are_joined(shape: Sequence[int], data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    sides = [np.arange(math.prod(shape)).reshape(shape) + number for number in (0, 1000)]
    joined = np.concatenate(sides, dim)
    way = Access.whole(joined.shape, order)
    found = [read(way.of_part(joined.shape, dim, 2), side) for side in sides]
    is_second = joined.transpose(order).reshape(-1) >= 1000
    np.testing.assert_array_equal(
        np.where(is_second, found[1], found[0]), joined.transpose(order).reshape(-1)
    )


@pytest.mark.parametrize(
    ("shape", "order"), [((8, 65, 4, 64), (0, 2, 1, 3)), ((6, 5), (1, 0)), ((2, 3, 4), (2, 0, 1))]
)
def test_a_transposition_is_followed(shape: Sequence[int], order: Sequence[int]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    way = accesses.transposed(Access.whole([shape[dim] for dim in order]), shape, order)
    np.testing.assert_array_equal(read(way, array), array.transpose(order).reshape(-1))


def test_heads_are_parted_from_channels() -> None:
    # (tokens, heads * size) as (heads, tokens, size), which is read as (tokens, heads * size).
    whole = Access.whole((4, 10, 8), (1, 0, 2))
    assert accesses.transposed(whole, (10, 4, 8), (1, 0, 2)).joined == Access(0, ((320, 1),))
    flat = Access(0, ((320, 1),))
    assert accesses.transposed(flat, (10, 4, 8), (1, 0, 2)).joined == Access(
        0, ((4, 8), (10, 32), (8, 1))
    )
