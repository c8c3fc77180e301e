"""Maximum pooling in two and three dimensions, and its derivatives.

ATen semantics kept: padding is never a maximum; the position of a maximum is the first one in its
window, row-major in the whole plane, or the last NaN.

A maximum with its position is one comparison per place of the window over strided slices: simple,
fusible operations that every plugin has, and the derivative needs no scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, lowest
from pjrt_bridge.torch_interop.lowering.nn.pooling_blocks import PoolingBlocks, WindowStep
from pjrt_bridge.torch_interop.lowering.nn.pooling_windows import (
    Windows,
    in_memory,
    over_windows,
    per_dimension,
    windows,
)
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_LARGEST_WINDOW = 256
"""Places of a max-pooling window beyond which the unrolled comparisons cost too much to compile."""


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
        w = windows(x, c.output.shape, kernel_size, stride, padding, dilation, count=count)
        turned = in_memory(w, x)
        w, shape = turned.windows, turned.shape(c.output.shape)
        # Maxima are exact in any type; compilers without bfloat16 would round each of them.
        x = c.widen(turned.into(c, x))
        kernel = c.kernels.max_pool(b, x, w.pooling)
        if kernel is not None:
            return c.promised(*(turned.back(c, found) for found in kernel))
        places = _unrolled(w)
        padded = b.pad(
            x,
            c.full((), lowest(x.dtype), x.dtype),
            per_dimension(x, w, w.padding, 0),
            per_dimension(x, w, [max(n, 0) for n in w.padding_after], 0),
        )
        best = c.full(shape, lowest(x.dtype), x.dtype)
        position = over_windows(c, w, b.constant(_first_inside(w), INT32), shape)
        corner = b.constant(_corners(w), INT32)
        for place in places:
            value = _strided(c, padded, w, place)
            here = c.full(corner.shape, _flat(place, w.data), INT32)
            flat = over_windows(c, w, b.add(corner, here), shape)
            wins = b.compare(value, best, "GT")
            if x.dtype.is_float:
                wins = b.or_(wins, b.compare(value, value, "NE"))
            best, position = b.select(wins, value, best), b.select(wins, flat, position)
        return c.promised(turned.back(c, best), turned.back(c, position))


_max_pool("max_pool2d_with_indices", 2)
_max_pool("max_pool3d_with_indices", 3)


def _unrolled(w: Windows) -> list[tuple[int, ...]]:
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


def _grid(w: Windows, starts: Callable[[int], np.ndarray]) -> np.ndarray:
    """Row-major plane positions of one start per window and dimension, in the output's shape."""
    flat: np.ndarray = np.zeros((), np.int32)
    for d in range(w.count):
        flat = flat[..., None] * w.data[d] + starts(d)
    return np.asarray(flat, np.int32)


def _corners(w: Windows) -> np.ndarray:
    """Plane position of each window's start, which may lie in the padding."""
    return _grid(w, lambda d: np.arange(w.output[d]) * w.stride[d] - w.padding[d])


def _first_inside(w: Windows) -> np.ndarray:
    """Plane position of the first place of each window that holds data."""

    def first(d: int) -> np.ndarray:
        start: np.ndarray = np.arange(w.output[d]) * w.stride[d] - w.padding[d]
        return np.where(start < 0, start % w.dilation[d], start)

    return _grid(w, first)


def _strided(c: Context, padded: Value, w: Windows, place: Sequence[int]) -> Value:
    """The element at one place of every window."""
    limit = list(padded.shape)
    for axis, p, o, stride in zip(w.axes, place, w.output, w.stride, strict=True):
        limit[axis] = p + (o - 1) * stride + 1
    start, steps = per_dimension(padded, w, place, 0), per_dimension(padded, w, w.stride, 1)
    return c.b.slice(padded, start, limit, steps)


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
        w = windows(x, grad.shape, kernel_size, stride, padding, dilation, count=count)
        turned = in_memory(w, grad, indices, x)
        incoming, shape = c.widen(turned.into(c, grad)), turned.shape(x.shape)
        found = c.kernels.max_pool_gradient(
            b, incoming, turned.into(c, indices), shape, turned.windows.pooling
        )
        if found is not None:
            return c.result(turned.back(c, found))
        _unrolled(w)
        blocks = PoolingBlocks(c, turned.windows, shape)
        # No element is at position -1.
        places = c.cast(turned.into(c, indices), INT32)
        chosen = blocks.padded(places, c.full((), -1, INT32))
        given = blocks.padded(incoming, c.full((), 0, incoming.dtype))
        positions = blocks.spread(b.constant(blocks.positions(), INT32))
        zero = c.full(blocks.shape, 0, incoming.dtype)

        def of_step(step: WindowStep) -> Value:
            hit = b.compare(blocks.at(chosen, step), positions, "EQ")
            return b.select(hit, blocks.at(given, step), zero)

        return c.result(turned.back(c, blocks.total(of_step)))


_max_pool_backward("max_pool2d_with_indices_backward", 2)
_max_pool_backward("max_pool3d_with_indices_backward", 3)
