"""Host memory that is described: parts of it, and copies."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.runtime.transfers.host import ALIGNMENT, HostArray, describe
from tests.runtime.arrays import aligned, placed


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


def test_what_a_plugin_can_use_in_place() -> None:
    array = aligned(np.ones((4, 6), np.float32))
    whole = describe(array)
    assert whole.shareable
    assert not describe(array.T).shareable
    assert not describe(array[:, :3]).shareable
    assert not describe(aligned(np.ones((0, 6), np.float32))).shareable
    packed = HostArray(whole.address, dtypes.of("int4"), (4, 6), None, array)
    assert not packed.shareable


@pytest.mark.parametrize("offset", [1, 4, 16, 32, ALIGNMENT - 4])
def test_what_is_not_aligned_cannot_be_used_in_place(offset: int) -> None:
    assert not describe(placed(np.ones(24, np.uint8), offset)).shareable
    assert describe(placed(np.ones(24, np.uint8), ALIGNMENT)).shareable
