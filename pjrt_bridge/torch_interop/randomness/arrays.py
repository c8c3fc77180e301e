"""The elementwise part of the Builder's interface, evaluated eagerly on NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.types import TensorType

Array = np.ndarray[Any, Any]


def value_of(array: Array) -> Value:
    """An array as a `Value`, for lowerings."""
    return Value(_type(array.shape, array.dtype), array, None)


@lru_cache(maxsize=64)
def _type(shape: tuple[int, ...], dtype: np.dtype[Any]) -> TensorType:
    # A lowering makes hundreds of values of a few types.
    return TensorType(shape, dtypes.from_numpy(dtype))


def array_of(value: Value) -> Array:
    """The array of such a value."""
    array: Array = value._handle
    return array


def _function(function: Callable[..., Any]) -> Callable[..., Value]:
    def compute(self: ArrayBuilder, *operands: Value) -> Value:
        return value_of(np.asarray(function(*map(array_of, operands))))

    return compute


class ArrayBuilder:
    """Evaluates what a Builder emits, for a block of elements of larger arrays.

    Args:
        start: the position of the first element; counting starts there.
    """

    def __init__(self, start: int = 0) -> None:
        self._start = start

    def full(self, shape: Sequence[int], value: Any, dtype: DType) -> Value:
        """An array filled with one number."""
        number = np.array(value, dtype.numpy)
        return value_of(np.broadcast_to(number, tuple(shape)))

    def iota(self, shape: Sequence[int], dim: int, dtype: DType) -> Value:
        """Positions of the elements, along the only dimension."""
        (count,) = shape
        return value_of(np.arange(self._start, self._start + count).astype(dtype.numpy))

    def convert(self, x: Value, dtype: DType) -> Value:
        """The values in another element type."""
        return value_of(array_of(x).astype(dtype.numpy, copy=False))

    def bitcast_convert(self, x: Value, dtype: DType) -> Value:
        """The bits read as an element type of the same size."""
        return value_of(array_of(x).view(dtype.numpy))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The elements in another shape."""
        return value_of(array_of(x).reshape(tuple(shape)))

    def broadcast_in_dim(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """The elements repeated; dimension i becomes dimension `dims[i]`."""
        spread = [1] * len(shape)
        for at, size in zip(dims, x.shape, strict=True):
            spread[at] = size
        return value_of(np.broadcast_to(array_of(x).reshape(spread), tuple(shape)))

    def compare(self, lhs: Value, rhs: Value, direction: str) -> Value:
        """Elementwise comparison, as bool."""
        return value_of(np.asarray(_COMPARISONS[direction](array_of(lhs), array_of(rhs))))

    add = _function(np.add)
    and_ = _function(np.bitwise_and)
    ceil = _function(np.ceil)
    cos = _function(np.cos)
    divide = _function(np.divide)
    exp = _function(np.exp)
    log = _function(np.log)
    maximum = _function(np.maximum)
    multiply = _function(np.multiply)
    negate = _function(np.negative)
    or_ = _function(np.bitwise_or)
    select = _function(np.where)
    shift_left = _function(np.left_shift)
    shift_right_logical = _function(np.right_shift)
    sqrt = _function(np.sqrt)
    subtract = _function(np.subtract)
    tan = _function(np.tan)
    xor = _function(np.bitwise_xor)


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}
