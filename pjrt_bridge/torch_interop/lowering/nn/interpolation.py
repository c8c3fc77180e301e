"""Resizing of images with antialiasing.

ATen semantics kept: a filter is as wide as the scale when an image shrinks, its weights add up to
1, and where it begins and ends is rounded in the type that is computed in, float32 for half
precision. Rows and columns are resized one after the other by matrices of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    like,
    minus,
    plus,
    polynomial,
    times,
)
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

Filter = Callable[[Builder, Value], Value]


def _triangle(b: Builder, distance: Value) -> Value:
    return b.maximum(minus(b, 1, distance), like(b, distance, 0))


def _cubic(b: Builder, distance: Value) -> Value:
    """Keys' cubic with a = -1/2 ("Cubic convolution interpolation", 1981)."""
    near = polynomial(b, distance, (1.5, -2.5, 0, 1))
    far = polynomial(b, distance, (-0.5, 2.5, -4, 2))
    outer = b.select(b.compare(distance, like(b, distance, 2), "LT"), far, like(b, far, 0))
    return b.select(b.compare(distance, like(b, distance, 1), "LT"), near, outer)


def _weights(
    c: Context, size: int, count: int, scale: float, kind: Filter, reach: int, dtype: DType
) -> Value:
    """(size, count): the weight of each element in each resized one."""
    b = c.b
    shape = (size, count)
    place, target = (c.cast(b.iota(shape, d, INT32), dtype) for d in (0, 1))
    center = times(b, plus(b, target, 0.5), scale)
    wide = reach * max(scale, 1.0)
    first = b.floor(plus(b, b.subtract(center, c.full(shape, wide, dtype)), 0.5))
    last = b.floor(plus(b, b.add(center, c.full(shape, wide, dtype)), 0.5))
    inside = b.and_(b.compare(place, first, "GE"), b.compare(place, last, "LT"))
    distance = plus(b, b.subtract(place, center), 0.5)
    weight = kind(b, b.abs(times(b, distance, 1 / max(scale, 1.0))))
    weight = b.select(inside, weight, like(b, weight, 0))
    total = c.spread(b.reduce_sum(weight, (0,)), shape, (0,))
    total = b.select(b.compare(total, like(b, total, 0), "EQ"), like(b, total, 1), total)
    return b.divide(weight, total)


def _scale(size: int, count: int, align_corners: bool, given: float | None) -> float:
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / given if given else size / count


def _apply(c: Context, x: Value, dim: int, matrix: Value, contracted: int) -> Value:
    """`x` with one dimension multiplied by a matrix."""
    product = c.b.dot_general(x, matrix, lhs_contract=(dim,), rhs_contract=(contracted,))
    order = list(range(x.rank - 1))
    order.insert(dim, x.rank - 1)
    return c.b.transpose(product, order)


def _resize(name: str, kind: Filter, reach: int) -> None:
    def matrices(
        c: Context,
        sizes: Sequence[int],
        counts: Sequence[int],
        align_corners: bool,
        scales: Sequence[float | None],
        dtype: DType,
    ) -> list[Value]:
        return [
            _weights(c, size, count, _scale(size, count, align_corners, given), kind, reach, dtype)
            for size, count, given in zip(sizes, counts, scales, strict=True)
        ]

    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """(batch, channels, height, width) resized."""
        if not x.dtype.is_float:
            raise NotLowerable(f"antialiased resizing of {x.dtype}")
        value = c.widen(x)
        scales = (scales_h, scales_w)
        given = matrices(c, x.shape[2:], output_size, align_corners, scales, value.dtype)
        for dim in (3, 2):
            value = _apply(c, value, dim, given[dim - 2], 0)
        return c.result(value)

    @lowering(f"aten.{name}_backward.default")
    def _backward(
        c: Context,
        grad: Value,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """The gradients, by the transposed weights."""
        value = c.widen(grad)
        scales = (scales_h, scales_w)
        given = matrices(c, input_size[2:], output_size, align_corners, scales, value.dtype)
        for dim in (2, 3):
            value = _apply(c, value, dim, given[dim - 2], 1)
        return c.result(value)


_resize("_upsample_bilinear2d_aa", _triangle, 1)
_resize("_upsample_bicubic2d_aa", _cubic, 2)
