"""Maximum, average and adaptive average pooling in one to three dimensions, and derivatives.

Inputs are (batch, channels, *spatial) or (channels, *spatial). ATen semantics kept: padding is
never a maximum; the position of a maximum is the first one in its window, row-major in the whole
plane, or the last NaN; an average counts padding or not, but never what `ceil_mode` adds beyond it.

A maximum with its position is one comparison per place of the window over strided slices: simple,
fusible operations that every plugin has, and the derivative needs no scatter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import (
    INT32,
    Context,
    lowest,
    per_axis,
)
from pjrt_bridge.torch_interop.lowering.math.reduction import mean_over
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_LARGEST_WINDOW = 256
"""Places of a max-pooling window beyond which the unrolled comparisons cost too much to compile."""


@dataclass(frozen=True)
class _Windows:
    """Pooling windows per spatial dimension: sizes of the data and of the output, parameters."""

    data: tuple[int, ...]
    output: tuple[int, ...]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @property
    def count(self) -> int:
        """Number of spatial dimensions."""
        return len(self.kernel)

    @property
    def padding_after(self) -> list[int]:
        """Padding behind the data up to the end of the last window; negative if it ends before."""
        return [
            (o - 1) * s + (k - 1) * d + 1 - n - p
            for o, s, k, d, n, p in zip(
                self.output,
                self.stride,
                self.kernel,
                self.dilation,
                self.data,
                self.padding,
                strict=True,
            )
        ]

    def places(self) -> list[tuple[int, ...]]:
        """Offset of each place of the window from its start, row-major."""
        steps = (range(0, k * d, d) for k, d in zip(self.kernel, self.dilation, strict=True))
        return list(itertools.product(*steps))


def _windows(
    x: Value,
    output: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
    *,
    count: int,
) -> _Windows:
    sizes = per_axis(kernel, count)
    return _Windows(
        x.shape[-count:],
        tuple(output[-count:]),
        sizes,
        per_axis(stride, count) if stride else sizes,
        per_axis(padding, count),
        per_axis(dilation, count),
    )


def _per_dimension(x: Value, spatial: Sequence[int], other: int) -> list[int]:
    return [other] * (x.rank - len(spatial)) + list(spatial)


def _max_pool(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Value | None, ...]:
        """The maxima and their positions in the plane."""
        b = c.b
        shape = c.output.shape
        w = _windows(x, shape, kernel_size, stride, padding, dilation, count=count)
        places = _unrolled(w)
        after = [max(n, 0) for n in w.padding_after]
        padded = b.pad(
            x,
            c.full((), lowest(x.dtype), x.dtype),
            _per_dimension(x, w.padding, 0),
            _per_dimension(x, after, 0),
        )
        best = c.full(shape, lowest(x.dtype), x.dtype)
        position = c.broadcast(b.constant(_first_inside(w), INT32), shape)
        corner = b.constant(_corners(w), INT32)
        for place in places:
            value = _strided(c, padded, w, place)
            here = c.full(corner.shape, _flat(place, w.data), INT32)
            flat = c.broadcast(b.add(corner, here), shape)
            wins = b.compare(value, best, "GT")
            if x.dtype.is_float:
                wins = b.or_(wins, b.compare(value, value, "NE"))
            best, position = b.select(wins, value, best), b.select(wins, flat, position)
        return c.promised(best, position)


_max_pool("max_pool2d_with_indices", 2)
_max_pool("max_pool3d_with_indices", 3)


def _unrolled(w: _Windows) -> list[tuple[int, ...]]:
    places = w.places()
    if len(places) > _LARGEST_WINDOW:
        raise NotLowerable(f"max pooling with a window of {len(places)} places")
    return places


def _flat(index: Sequence[int], sizes: Sequence[int]) -> int:
    """Row-major position of an index, which may lie outside."""
    position = 0
    for i, n in zip(index, sizes, strict=True):
        position = position * n + i
    return position


def _grid(w: _Windows, starts: Callable[[int], np.ndarray]) -> np.ndarray:
    """Row-major plane positions of one start per window and dimension, in the output's shape."""
    flat: np.ndarray = np.zeros((), np.int32)
    for d in range(w.count):
        flat = flat[..., None] * w.data[d] + starts(d)
    return np.asarray(flat, np.int32)


def _corners(w: _Windows) -> np.ndarray:
    """Plane position of each window's start, which may lie in the padding."""
    return _grid(w, lambda d: np.arange(w.output[d]) * w.stride[d] - w.padding[d])


def _first_inside(w: _Windows) -> np.ndarray:
    """Plane position of the first place of each window that holds data."""

    def first(d: int) -> np.ndarray:
        start: np.ndarray = np.arange(w.output[d]) * w.stride[d] - w.padding[d]
        return np.where(start < 0, start % w.dilation[d], start)

    return _grid(w, first)


def _strided(c: Context, padded: Value, w: _Windows, place: Sequence[int]) -> Value:
    """The element at one place of every window."""
    limit = [p + (o - 1) * s + 1 for p, o, s in zip(place, w.output, w.stride, strict=True)]
    lead = padded.rank - w.count
    return c.b.slice(
        padded,
        _per_dimension(padded, place, 0),
        [*padded.shape[:lead], *limit],
        _per_dimension(padded, w.stride, 1),
    )


def _max_pool_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        grad: Value,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Value,
    ) -> Value:
        """Each gradient at the position of its maximum, summed where windows overlap."""
        b = c.b
        w = _windows(x, grad.shape, kernel_size, stride, padding, dilation, count=count)
        incoming, chosen = c.widen(grad), c.cast(indices, INT32)
        corner = b.constant(_corners(w), INT32)
        zero = c.full(grad.shape, 0, incoming.dtype)
        start, interior = c.full((), 0, incoming.dtype), [s - 1 for s in w.stride]
        total = c.full(x.shape, 0, incoming.dtype)
        for place in _unrolled(w):
            here = b.add(corner, c.full(corner.shape, _flat(place, w.data), INT32))
            hit = b.compare(chosen, c.broadcast(here, grad.shape), "EQ")
            low = [o - p for o, p in zip(place, w.padding, strict=True)]
            high = [
                n - first - (o - 1) * s - 1
                for n, first, o, s in zip(w.data, low, w.output, w.stride, strict=True)
            ]
            landed = b.pad(
                b.select(hit, incoming, zero),
                start,
                _per_dimension(x, low, 0),
                _per_dimension(x, high, 0),
                _per_dimension(x, interior, 0),
            )
            total = b.add(total, landed)
        return c.result(total)


_max_pool_backward("max_pool2d_with_indices_backward", 2)
_max_pool_backward("max_pool3d_with_indices_backward", 3)


def _divisors(w: _Windows, count_include_pad: bool, divisor: int | None) -> np.ndarray:
    """Elements that each window's average divides by, in the output's spatial shape."""
    counts: np.ndarray = np.ones((), np.float64)
    for d in range(w.count):
        n, p = w.data[d], w.padding[d]
        start = np.arange(w.output[d]) * w.stride[d] - p
        end = np.minimum(start + w.kernel[d], n + p)
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        counts = counts[..., None] * (end - start)
    return counts if divisor is None else np.full(counts.shape, float(divisor))


def _add_windows(
    c: Context, x: Value, kernel: list[int], stride: list[int], padding: list[tuple[int, int]]
) -> Value:
    lead = [(0, 0)] * (x.rank - len(kernel))
    (total,) = c.b.reduce_window(
        [x],
        [c.full((), 0, x.dtype)],
        lambda old, new: c.b.add(old[0], new[0]),
        window_dimensions=_per_dimension(x, kernel, 1),
        window_strides=_per_dimension(x, stride, 1),
        padding=[*lead, *padding],
    )
    return total


def _avg_pool(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        """The windows' sums over their divisors."""
        w = _windows(x, c.output.shape, kernel_size, stride, padding, count=count)
        sides = list(zip(w.padding, w.padding_after, strict=True))
        total = _add_windows(c, c.widen(x), w.kernel, w.stride, sides)
        divisors = c.b.constant(_divisors(w, count_include_pad, divisor_override), total.dtype)
        return c.result(c.b.divide(total, c.broadcast(divisors, total.shape)))


_avg_pool("avg_pool1d", 1)
_avg_pool("avg_pool2d", 2)
_avg_pool("avg_pool3d", 3)


def _avg_pool_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        grad: Value,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        """Each gradient over its divisor, at every place of its window, summed."""
        b = c.b
        w = _windows(x, grad.shape, kernel_size, stride, padding, count=count)
        incoming = c.widen(grad)
        divisors = b.constant(_divisors(w, count_include_pad, divisor_override), incoming.dtype)
        part = b.divide(incoming, c.broadcast(divisors, grad.shape))
        spaced = b.pad(
            part,
            c.full((), 0, part.dtype),
            [0] * x.rank,
            [0] * x.rank,
            _per_dimension(x, [s - 1 for s in w.stride], 0),
        )
        sides = []
        for d in range(w.count):
            before = w.kernel[d] - 1 - w.padding[d]
            sides.append((before, w.data[d] + w.kernel[d] - 1 - before - spaced.shape[d - w.count]))
        return c.result(_add_windows(c, spaced, w.kernel, [1] * w.count, sides))


_avg_pool_backward("avg_pool2d_backward", 2)
_avg_pool_backward("avg_pool3d_backward", 3)


def _adaptive(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value, output_size: Sequence[int]) -> Value:
        """Averages over a given number of nearly equal windows per dimension."""
        value = c.widen(x)
        for d in range(x.rank - count, x.rank):
            value = _adaptive_mean(c, value, d, c.output.shape[d])
        return c.result(value)


_adaptive("adaptive_avg_pool1d", 1)
_adaptive("_adaptive_avg_pool2d", 2)
_adaptive("_adaptive_avg_pool3d", 3)


def _adaptive_mean(c: Context, x: Value, dim: int, count: int) -> Value:
    size = x.shape[dim]
    if count and size % count == 0:
        split = c.reshape(x, (*x.shape[:dim], count, size // count, *x.shape[dim + 1 :]))
        return mean_over(c, split, (dim + 1,))
    return mix(c, x, dim, _averaging_matrix(size, count))


def _averaging_matrix(size: int, count: int) -> np.ndarray:
    """(size, count): the weight of each element in each adaptive average."""
    matrix = np.zeros((size, count))
    for i in range(count):
        start, end = i * size // count, math.ceil((i + 1) * size / count)
        matrix[start:end, i] = 1 / (end - start)
    return matrix


def mix(c: Context, x: Value, dim: int, matrix: np.ndarray) -> Value:
    """`x` times a constant matrix along one dimension."""
    product = c.b.dot_general(
        x, c.b.constant(matrix, x.dtype), lhs_contract=(dim,), rhs_contract=(0,)
    )
    order = list(range(x.rank - 1))
    order.insert(dim, x.rank - 1)
    return c.b.transpose(product, order)


def _adaptive_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, grad: Value, x: Value) -> Value:
        """Each gradient divided equally among the elements of its window."""
        value = c.widen(grad)
        for d in range(x.rank - count, x.rank):
            value = _adaptive_gradient(c, value, d, x.shape[d])
        return c.result(value)


_adaptive_backward("_adaptive_avg_pool2d_backward", 2)
_adaptive_backward("_adaptive_avg_pool3d_backward", 3)


def _adaptive_gradient(c: Context, grad: Value, dim: int, size: int) -> Value:
    count = grad.shape[dim]
    if size % count:
        return mix(c, grad, dim, _averaging_matrix(size, count).T)
    part = c.b.divide(grad, c.full(grad.shape, size // count, grad.dtype))
    split = (*grad.shape[: dim + 1], size // count, *grad.shape[dim + 1 :])
    joined = (*grad.shape[:dim], size, *grad.shape[dim + 1 :])
    return c.reshape(c.spread(part, split, (dim + 1,)), joined)
