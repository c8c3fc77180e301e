"""Host memory that is described: parts of it, and copies."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge.runtime.transfers.host import describe


@pytest.mark.parametrize("shape", [(), (1,), (3, 4)])
def test_a_part_is_over_the_same_memory(shape: tuple[int, ...]) -> None:
    """Also of an array without dimensions, of which NumPy would give a number elsewhere."""
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    whole = describe(array)
    part = whole.part(tuple(slice(0, size) for size in shape))
    assert (part.address, part.shape) == (whole.address, shape)
    array.fill(7)
    np.testing.assert_array_equal(part.words().view(np.float32), array)


@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_a_copy_keeps_its_values(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    copy = describe(array).copied()
    array.fill(7)
    assert copy.address != describe(array).address
    np.testing.assert_array_equal(copy.words().view(np.float32), np.ones(shape, np.float32))
