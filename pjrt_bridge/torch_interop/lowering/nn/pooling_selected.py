"""Adaptive and fractional maximum pooling in two and three dimensions, and derivatives.

Inputs are (batch, channels, *spatial) or (channels, *spatial). ATen semantics kept: the position
of a maximum is the first one in its window, row-major in the whole plane, or the last NaN.
Fractional windows start where `(i + sample) * alpha` is, in the input's type, rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import (
    INT32,
    Context,
    compute_type,
    highest,
    rounded_to,
)
from pjrt_bridge.torch_interop.lowering.indexing.reading import along_last
from pjrt_bridge.torch_interop.lowering.indexing.writing import scatter_add
from pjrt_bridge.torch_interop.lowering.math.reduction import largest_over
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


def _adaptive(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value, output_size: Sequence[int]) -> tuple[Value | None, ...]:
        """The maxima of nearly equal windows and their positions in the plane."""
        lead = x.rank - count
        if math.prod(c.output.shape) == 0:
            return c.zeros(0), c.zeros(1)
        windows, place = x, c.full((), 0, INT32)
        for d in range(count):
            size = x.shape[lead + d]
            positions = c.b.constant(_adaptive_positions(size, c.output.shape[lead + d]), INT32)
            windows = take(c, windows, positions, lead + 2 * d)
            place = _row_major(c, place, size, positions)
        return c.promised(*_largest(c, x, windows, c.broadcast(place, windows.shape), count))


_adaptive("adaptive_max_pool2d", 2)
_adaptive("adaptive_max_pool3d", 3)


def _adaptive_positions(size: int, count: int) -> np.ndarray:
    """(count, longest window): the places of each window, its last one repeated."""
    windows = [(i * size // count, math.ceil((i + 1) * size / count)) for i in range(count)]
    longest = max(end - start for start, end in windows)
    return np.array([[min(start + k, end - 1) for k in range(longest)] for start, end in windows])


def _row_major(c: Context, place: Value, size: int, positions: Value) -> Value:
    """Row-major positions extended by one more dimension of this size."""
    shape = (*place.shape, *positions.shape)
    outer = c.b.broadcast_in_dim(place, shape, tuple(range(place.rank)))
    inner = c.b.broadcast_in_dim(positions, shape, (place.rank, place.rank + 1))
    return c.b.add(c.b.multiply(outer, c.full(shape, size, INT32)), inner)


def _largest(c: Context, x: Value, windows: Value, place: Value, count: int) -> tuple[Value, Value]:
    """The maxima over windows, every second of the last dimensions, and their places in `x`.

    They are read there: of two zeros the first one is taken, whatever its sign.
    """
    b = c.b
    dims = [windows.rank - 1 - 2 * d for d in reversed(range(count))]
    best = largest_over(c, windows, dims)
    hit = b.compare(windows, c.spread(best, windows.shape, dims), "EQ")
    beyond = c.full(place.shape, highest(INT32), INT32)
    first = b.reduce_min(b.select(hit, place, beyond), dims)
    if not windows.dtype.is_float:
        return best, first
    none = c.full(place.shape, -1, INT32)
    last = b.reduce_max(b.select(b.compare(windows, windows, "NE"), place, none), dims)
    has_nan = b.compare(last, c.full(last.shape, 0, INT32), "GE")
    index = b.select(has_nan, last, first)
    lead = x.shape[:-count]
    flat = c.reshape(index, (*lead, math.prod(index.shape[len(lead) :])))
    return c.reshape(along_last(c, _plane(c, x, count), flat), index.shape), index


def _plane(c: Context, x: Value, count: int) -> Value:
    """`x` with so many of its last dimensions as one."""
    return c.reshape(x, (*x.shape[:-count], math.prod(x.shape[-count:])))


def _fractional(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        random_samples: Value,
    ) -> tuple[Value | None, ...]:
        """The maxima of windows at random places and their positions in the plane."""
        b = c.b
        lead, spatial = x.shape[:-count], x.shape[-count:]
        place = c.full((*lead, *(1,) * (2 * count)), 0, INT32)
        for d, (size, kernel, number) in enumerate(
            zip(spatial, kernel_size, output_size, strict=True)
        ):
            # Two dimensions have the sample of the last one first, three the other way round.
            column = count - 1 - d if count == 2 else d
            sample = b.slice(
                random_samples,
                (0, 0, column),
                (*random_samples.shape[:2], column + 1),
                (1, 1, 1),
            )
            start = _starts(c, c.reshape(c.cast(sample, x.dtype), lead), size, kernel, number)
            window = (*lead, number, kernel)
            offset = b.iota(window, len(window) - 1, INT32)
            at = b.add(c.spread(start, window, (len(window) - 1,)), offset)
            shape = [*lead, *(1,) * (2 * count)]
            shape[len(lead) + 2 * d : len(lead) + 2 * d + 2] = [number, kernel]
            full = [max(pair) for pair in zip(place.shape, shape, strict=True)]
            scaled = b.multiply(place, c.full(place.shape, size, INT32))
            place = b.add(c.broadcast(scaled, full), c.broadcast(c.reshape(at, shape), full))
        index = c.reshape(place, (*lead, math.prod(place.shape[len(lead) :])))
        windows = c.reshape(along_last(c, _plane(c, x, count), index), place.shape)
        return c.promised(*_largest(c, x, windows, place, count))


_fractional("fractional_max_pool2d", 2)
_fractional("fractional_max_pool3d", 3)


def _starts(c: Context, sample: Value, size: int, kernel: int, number: int) -> Value:
    """Where windows of one dimension start, in a new last dimension; the last one at the end."""
    b, dtype = c.b, sample.dtype
    shape = (*sample.shape, number)
    last = c.full(shape, size - kernel, INT32)
    if number == 1:
        return last
    counter = b.iota(shape, sample.rank, INT32)
    wide = compute_type(dtype)

    def rounded(x: Value) -> Value:
        # A window starts elsewhere where one of the steps is not rounded.
        return rounded_to(b, x, dtype)

    shift = c.cast(c.spread(sample, shape, (sample.rank,)), wide)
    alpha = c.full(shape, _ratio(size - kernel, number - 1, dtype), wide)
    moved = rounded(b.add(rounded(c.cast(counter, wide)), shift))
    begun, reached = (c.cast(rounded(b.multiply(at, alpha)), INT32) for at in (shift, moved))
    is_last = b.compare(counter, c.full(shape, number - 1, INT32), "EQ")
    return b.select(is_last, last, b.subtract(reached, begun))


def _ratio(dividend: int, divisor: int, dtype: DType) -> float:
    """A quotient of numbers that are rounded to a type, and it as well."""
    one, other = (np.array(item).astype(dtype.numpy) for item in (dividend, divisor))
    return float(one / other)


def _to_planes(c: Context, grad: Value, x: Value, indices: Value, count: int) -> Value:
    """Each gradient added where its index in the plane says."""
    lead, spatial = x.shape[:-count], x.shape[-count:]
    if grad.size == 0:
        return c.zeros(0)
    source = c.reshape(c.widen(grad), (*lead, grad.size // math.prod(lead)))
    index = c.reshape(indices, source.shape)
    base = c.full((*lead, math.prod(spatial)), 0, source.dtype)
    return c.reshape(scatter_add(c, base, len(lead), index, source), x.shape)


def _adaptive_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, grad: Value, x: Value, indices: Value) -> Value:
        """Each gradient at the position of its maximum, summed where windows overlap."""
        return _to_planes(c, grad, x, indices, count)


_adaptive_backward("adaptive_max_pool2d_backward", 2)
_adaptive_backward("adaptive_max_pool3d_backward", 3)


def _fractional_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        grad: Value,
        x: Value,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        indices: Value,
    ) -> Value:
        """The same."""
        return _to_planes(c, grad, x, indices, count)


_fractional_backward("fractional_max_pool2d_backward", 2)
_fractional_backward("fractional_max_pool3d_backward", 3)
