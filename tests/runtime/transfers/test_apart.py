"""Elements that lie in memory of their own are told from those that share it."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.runtime.transfers.apart import lie_apart

DIMENSIONS = st.lists(st.tuples(st.integers(0, 4), st.integers(-7, 7)), max_size=4)


@given(DIMENSIONS)
def test_it_is_as_listing_all_places_says(dimensions: list[tuple[int, int]]) -> None:
    shape = [size for size, _ in dimensions]
    strides = [step for _, step in dimensions]
    places = [
        sum(at * step for at, step in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    ]
    assert lie_apart(shape, strides) == (len(set(places)) == len(places))


def test_large_arrays() -> None:
    assert lie_apart((10_000, 10_000), (10_000, 1))
    assert lie_apart((10_000, 10_000), (-1, 10_000))
    assert not lie_apart((10_000, 10_000), (0, 1))
    assert not lie_apart((10_000, 10_000), (1, 1))
