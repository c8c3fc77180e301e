"""Host arrays with the properties that tests are about."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime.transfers.host import ALIGNMENT


def placed(array: np.ndarray[Any, Any], offset: int) -> np.ndarray[Any, Any]:
    """A copy whose first element lies `offset` bytes behind a 64-byte boundary."""
    room = np.empty(array.nbytes + 2 * ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT + offset
    there = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    there[...] = array
    return there


def aligned(array: Any) -> np.ndarray[Any, Any]:
    """A copy that a plugin can use in place."""
    return placed(np.asarray(array), 0)


def misaligned(array: Any) -> np.ndarray[Any, Any]:
    """A copy that no plugin can use in place, though NumPy calls it aligned."""
    return placed(np.asarray(array), 16)


def every_value(dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array with bit patterns of all kinds: each byte value occurs where there is room."""
    count = math.prod(shape)
    if dtype.bits < 8 or dtype.is_bool:
        patterns = np.arange(count) % 2 ** (1 if dtype.is_bool else dtype.bits)
        return patterns.astype(np.uint8).view(dtype.numpy).reshape(shape)
    raw = (np.arange(count * dtype.itemsize) * 37 % 256).astype(np.uint8)
    return raw.view(dtype.numpy).reshape(shape)
