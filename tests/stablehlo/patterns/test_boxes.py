"""Boxes of arrays, behind operations that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.stablehlo.kernel_attributes import AssemblyBox
from pjrt_bridge.stablehlo.patterns import boxes
from tests.extent import examples

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


def copied(found: Sequence[AssemblyBox], sources: Sequence[Any], shape: Sequence[int]) -> Any:
    """The array of boxes; each of its elements is in one of them."""
    result = np.full(shape, -1)
    for box in found:
        place = tuple(slice(at, at + size) for at, size in zip(box.begin, box.sizes, strict=True))
        assert (result[place] == -1).all()
        at = box.first + sum(
            np.arange(size).reshape([-1, *(1 for _ in box.sizes[dim + 1 :])]) * box.steps[dim]
            for dim, size in enumerate(box.sizes)
        )
        result[place] = sources[box.source].reshape(-1)[at]
    assert (result >= 0).all()
    return result


def moved(
    data: st.DataObject, found: list[AssemblyBox], array: Any, sources: list[Any]
) -> tuple[list[AssemblyBox], Any]:
    """Boxes and their array behind one operation, which may write another source."""
    shape = array.shape
    kind = data.draw(st.sampled_from(["transpose", "reshape", "repeat", "slice", "flip", "write"]))
    if kind == "transpose":
        order = data.draw(st.permutations(range(array.ndim)))
        return [boxes.transposed(box, order) for box in found], array.transpose(order)
    if kind == "reshape":
        parts = [part for part in range(1, array.size + 1) if array.size % part == 0]
        first = data.draw(st.sampled_from(parts))
        second = data.draw(st.sampled_from([p for p in parts if array.size // first % p == 0]))
        other = array.reshape(first, second, -1)
        made = boxes.reshaped(found, shape, other.shape)
        return (found, array) if made is None else (made, other)
    if kind == "repeat":
        at, count = data.draw(st.integers(0, array.ndim)), data.draw(st.integers(1, 3))
        result = (*shape[:at], count, *shape[at:])
        dims = [dim for dim in range(len(result)) if dim != at]
        other = np.broadcast_to(np.expand_dims(array, at), result)
        return [boxes.repeated(box, shape, result, dims) for box in found], other
    if kind == "flip":
        dims = data.draw(st.lists(st.integers(0, array.ndim - 1), unique=True))
        return [boxes.reversed_along(box, shape, dims) for box in found], np.flip(array, dims)
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    if kind == "slice":
        strides = [data.draw(st.integers(1, 3)) for _ in shape]
        cuts = (slice(start, None, step) for start, step in zip(starts, strides, strict=True))
        other = array[tuple(cuts)]
        inside = [boxes.sliced(box, starts, other.shape, strides) for box in found]
        return [box for box in inside if box is not None], other
    sizes = [data.draw(st.integers(1, size - at)) for at, size in zip(starts, shape, strict=True)]
    outside = [part for box in found for part in boxes.without(box, starts, sizes)]
    other = array.copy()
    region = tuple(slice(at, at + size) for at, size in zip(starts, sizes, strict=True))
    other[region] = 1000 * len(sources) + np.arange(math.prod(sizes)).reshape(sizes)
    part = boxes.moved(boxes.whole(len(sources), sizes), starts)
    sources.append(other[region].copy())
    return [*outside, part], other


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_boxes_have_the_elements_of_the_array(data: st.DataObject) -> None:
    shape = data.draw(SIZES)
    array = np.arange(math.prod(shape)).reshape(shape)
    sources, found = [array], [boxes.whole(0, shape)]
    for _ in range(data.draw(st.integers(1, 5))):
        made, other = moved(data, found, array, sources)
        if other.size > 500 or len(made) > 60:
            break
        found, array = made, other
    np.testing.assert_array_equal(copied(found, sources, array.shape), array)


def test_an_array_of_one_number() -> None:
    found = boxes.filled(0, (2, 3))
    np.testing.assert_array_equal(copied([found], [np.array([5])], (2, 3)), np.full((2, 3), 5))


@pytest.mark.parametrize(
    ("shape", "result"), [((6, 4), (4, 6)), ((2, 3), (3, 2))], ids=["other parts", "turned"]
)
def test_shapes_without_common_parts(shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    whole = boxes.whole(0, shape)
    assert boxes.reshaped([whole], shape, result) == [boxes.whole(0, result)]
    assert boxes.reshaped([boxes.reversed_along(whole, shape, [0])], shape, result) is None


def test_too_many_boxes() -> None:
    turned = boxes.transposed(boxes.whole(0, (64, 2048)), [1, 0])
    with pytest.raises(boxes.TooManyBoxes):
        boxes.reshaped([turned], (2048, 64), (2048 * 64,))
