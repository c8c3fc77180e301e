"""Sampling of images and volumes at given points (`grid_sample`), and its derivatives.

Inputs are (batch, channels, *spatial), grids (batch, *points, dimensions) with the last spatial
dimension first, from -1 to 1. ATen semantics kept: -1 and 1 are the centers of the outermost
elements with `align_corners`, else their outer edges; points outside see zeros, the border or a
reflection; "nearest" rounds half to even and has no gradient for the grid; bicubic (a = -3/4)
pads each element that it reads, the others the point. A point at no number (NaN, or the reflection
of an infinity) is at the first element of images and at the last one of volumes, whose gradients it
does not reach. With zeros outside it reads zeros, which are NaN by its weights in images alone.

In half precision the places of points are rounded at every step, as ATen's CPU kernels for images
do: they decide which elements are read. What is read is added up in float32 and rounded once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, rounded_to
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    equals,
    less,
    like,
    minus,
    plus,
    polynomial,
    times,
)
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
_A = -0.75
_OUTSIDE = -2
"""A place whose neighbours are outside, too."""


@dataclass(frozen=True)
class _ReadElement:
    """One element that a point reads along one dimension, all (batch, points).

    Attributes:
        place: a whole number, which may be out of range.
        weight: with which it is multiplied.
        slope: derivative of the weight with the coordinate; None where it is not defined.
    """

    place: Value
    weight: Value
    slope: Value | None


def _padded(
    b: Builder, at: Value, size: int, padding: int, align_corners: bool, unknown: int
) -> tuple[Value, Value]:
    """A coordinate mapped into the data by the padding mode, and the derivative of that.

    Args:
        b: builder of the program.
        at: the coordinate.
        size: of the dimension.
        padding: how what is outside is mapped.
        align_corners: see the module.
        unknown: the place of a coordinate that is no number.
    """
    one, zero = like(b, at, 1), like(b, at, 0)
    if padding == _ZEROS:
        return at, one
    slope = one
    if padding == _REFLECTION:
        low = 0.0 if align_corners else -0.5
        span = size - 1.0 if align_corners else float(size)
        if span == 0:
            at, slope = zero, zero
        else:
            shifted = plus(b, at, -low)
            slope = b.select(less(b, shifted, 0), b.negate(one), one)
            shifted = b.abs(shifted)
            extra = b.remainder(shifted, like(b, at, span))
            flips = b.floor(b.divide(shifted, like(b, at, span)))
            odd = equals(b, b.remainder(flips, like(b, at, 2)), 1)
            slope = b.select(odd, b.negate(slope), slope)
            at = plus(b, b.select(odd, minus(b, span, extra), extra), low)
    known = b.compare(at, at, "EQ")
    outside = b.or_(b.compare(at, zero, "LE"), b.compare(at, like(b, at, size - 1), "GE"))
    inside = b.clamp(zero, at, like(b, at, size - 1))
    inside = b.select(known, inside, like(b, at, unknown))
    return inside, b.select(b.and_(known, b.not_(outside)), slope, zero)


def _cubic_weights(b: Builder, t: Value) -> tuple[list[Value], list[Value]]:
    """Weights of the four elements around a fraction and their derivatives."""
    far = (_A, -5 * _A, 8 * _A, -4 * _A)
    near = (_A + 2, -(_A + 3), 0.0, 1.0)
    weights, slopes = [], []
    for distance, powers, sign in (
        (plus(b, t, 1), far, 1),
        (t, near, 1),
        (minus(b, 1, t), near, -1),
        (minus(b, 2, t), far, -1),
    ):
        derived = tuple(c * (3 - i) for i, c in enumerate(powers[:3]))
        weights.append(polynomial(b, distance, powers))
        slopes.append(times(b, polynomial(b, distance, derived), sign))
    return weights, slopes


@dataclass(frozen=True)
class _SampledDimension:
    """The positions and weights with which points read along one dimension.

    Attributes:
        taps: the elements.
        size: of the dimension.
        slope: derivative of the coordinate, in elements, with that of the grid.
    """

    taps: list[_ReadElement]
    size: int
    slope: Value


def _located(
    b: Builder, grid: Value, size: int, corners: bool, rounded: Callable[[Value], Value]
) -> Value:
    """Coordinates in elements, rounded at every step as ATen's kernels for images do."""
    shifted = rounded(plus(b, grid, 1))
    if corners:
        return rounded(times(b, shifted, (size - 1) / 2))
    return rounded(plus(b, rounded(times(b, shifted, size / 2)), -0.5))


def _axis(
    b: Builder, at: Value, size: int, mode: int, padding: int, corners: bool, unknown: int
) -> _SampledDimension:
    scale = (size - 1) / 2 if corners else size / 2
    if mode == _BICUBIC:
        base = b.floor(at)
        weights, slopes = _cubic_weights(b, b.subtract(at, base))
        places = [
            _padded(b, plus(b, base, k - 1), size, padding, corners, unknown)[0] for k in range(4)
        ]
        taps = list(map(_ReadElement, places, weights, slopes))
        return _SampledDimension(taps, size, like(b, at, scale))
    at, slope = _padded(b, at, size, padding, corners, unknown)
    slope = times(b, slope, scale)
    if mode == _NEAREST:
        return _SampledDimension(
            [_ReadElement(b.round_even(at), like(b, at, 1), None)], size, slope
        )
    base = b.floor(at)
    fraction, one = b.subtract(at, base), like(b, at, 1)
    left = _ReadElement(base, minus(b, 1, fraction), b.negate(one))
    return _SampledDimension([left, _ReadElement(plus(b, base, 1), fraction, one)], size, slope)


class _Points:
    """The points of a grid: which elements they read, and with what weights."""

    def __init__(
        self,
        c: Context,
        x: Value,
        grid: Value,
        mode: int,
        padding: int,
        corners: bool,
        *,
        backward: bool = False,
    ) -> None:
        if mode == _BICUBIC and grid.shape[-1] != 2:
            raise NotLowerable("bicubic sampling of volumes")
        self._c = c
        self.spatial = x.shape[2:]
        self.count = len(self.spatial)
        points = math.prod(grid.shape[1:-1])
        self.shape = (grid.shape[0], points)
        flat = c.reshape(c.widen(grid), (*self.shape, self.count))
        self.axes = []
        for d, size in enumerate(self.spatial):
            column = self.count - 1 - d
            one = c.reshape(part(c, flat, 2, column, column + 1), self.shape)
            at = _located(c.b, one, size, corners, partial(rounded_to, c.b, dtype=grid.dtype))
            unknown = 0 if self.count == 2 else _OUTSIDE if backward else size - 1
            self.axes.append(_axis(c.b, at, size, mode, padding, corners, unknown))

    def combinations(self) -> list[tuple[_ReadElement, ...]]:
        """The elements that a point reads, as one tap per dimension."""
        return list(itertools.product(*(axis.taps for axis in self.axes)))

    def position(self, taps: Sequence[_ReadElement]) -> tuple[Value, Value]:
        """Position in the plane, 0 for what is outside, and whether it is inside."""
        c, b = self._c, self._c.b
        index = c.full(self.shape, 0, INT32)
        inside: Value | None = None
        for tap, size in zip(taps, self.spatial, strict=True):
            last = like(b, tap.place, size - 1)
            valid = b.and_(
                b.compare(tap.place, like(b, tap.place, 0), "GE"),
                b.compare(tap.place, last, "LE"),
            )
            inside = valid if inside is None else b.and_(inside, valid)
            place = c.cast(b.select(valid, tap.place, like(b, tap.place, 0)), INT32)
            index = b.add(b.multiply(index, c.full(self.shape, size, INT32)), place)
        assert inside is not None
        return b.select(inside, index, c.full(self.shape, 0, INT32)), inside

    def weight(
        self, taps: Sequence[_ReadElement], inside: Value, derived: int | None = None
    ) -> Value | None:
        """The product of the weights, or its derivative along one dimension; see the module.

        Args:
            taps: an element of each dimension.
            inside: whether there is such an element.
            derived: the dimension.
        """
        total: Value | None = None
        for d, tap in enumerate(taps):
            factor = tap.slope if d == derived else tap.weight
            if factor is None:
                return None
            total = factor if total is None else self._c.b.multiply(total, factor)
        if total is None or self.count == 2:
            return total
        return self._c.b.select(inside, total, like(self._c.b, total, 0))

    def over_channels(self, x: Value, channels: int) -> Value:
        """(batch, points) repeated for (batch, channels, points)."""
        return self._c.b.broadcast_in_dim(x, (self.shape[0], channels, self.shape[1]), (0, 2))


def _read(c: Context, x: Value, index: Value, inside: Value) -> Value:
    """(batch, channels, points) of `x` (batch, channels, plane); 0 for what is outside."""
    shape = (x.shape[0], x.shape[1], index.shape[1])
    found = c.b.gather(
        x,
        c.reshape(index, (*index.shape, 1)),
        offset_dims=[1],
        collapsed_slice_dims=[2],
        start_index_map=[2],
        operand_batching_dims=[0],
        start_indices_batching_dims=[0],
        index_vector_dim=2,
        slice_sizes=[1, x.shape[1], 1],
    )
    return c.b.select(c.b.broadcast_in_dim(inside, shape, (0, 2)), found, c.full(shape, 0, x.dtype))


@lowering("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    c: Context,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    """(batch, channels, *points)."""
    if c.output.size == 0:
        return c.zeros(0)
    points = _Points(c, x, grid, interpolation_mode, padding_mode, align_corners)
    plane = c.reshape(c.widen(x), (*x.shape[:2], math.prod(points.spatial)))
    total: Value | None = None
    for taps in points.combinations():
        index, inside = points.position(taps)
        value = _read(c, plane, index, inside)
        weight = points.weight(taps, inside)
        assert weight is not None
        term = c.b.multiply(value, points.over_channels(weight, x.shape[1]))
        total = term if total is None else c.b.add(total, term)
    assert total is not None
    return c.reshape(c.result(total), c.output.shape)


@lowering("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default")
def grid_sampler_backward(
    c: Context,
    grad: Value,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """Gradients of the input, if it is wanted, and of the grid."""
    b = c.b
    points = _Points(c, x, grid, interpolation_mode, padding_mode, align_corners, backward=True)
    channels = x.shape[1]
    plane = c.reshape(c.widen(x), (*x.shape[:2], math.prod(points.spatial)))
    incoming = c.reshape(c.widen(grad), (*x.shape[:2], points.shape[1]))
    grad_x = c.full(plane.shape, 0, plane.dtype)
    slopes: list[Value | None] = [None] * points.count
    for taps in points.combinations():
        index, inside = points.position(taps)
        weight = points.weight(taps, inside)
        assert weight is not None
        if output_mask[0]:
            contribution = b.multiply(incoming, points.over_channels(weight, channels))
            zero = c.full(contribution.shape, 0, contribution.dtype)
            contribution = b.select(points.over_channels(inside, channels), contribution, zero)
            grad_x = _add(c, grad_x, index, contribution)
        product = b.multiply(_read(c, plane, index, inside), incoming)
        along = b.reduce_sum(product, (1,))
        for d in range(points.count):
            derived = points.weight(taps, inside, d)
            if derived is not None:
                term, old = b.multiply(along, derived), slopes[d]
                slopes[d] = term if old is None else b.add(old, term)
    columns = []
    for d in reversed(range(points.count)):
        found, scale = slopes[d], points.axes[d].slope
        value = c.full(points.shape, 0, scale.dtype) if found is None else b.multiply(found, scale)
        columns.append(c.reshape(value, (*points.shape, 1)))
    grad_grid = b.concatenate(columns, 2)
    return c.promised(grad_x if output_mask[0] else None, grad_grid)


def _add(c: Context, x: Value, index: Value, updates: Value) -> Value:
    """(batch, channels, points) added to (batch, channels, plane) at (batch, points)."""
    (total,) = c.b.scatter(
        [x],
        c.reshape(index, (*index.shape, 1)),
        [updates],
        lambda old, new: c.b.add(old[0], new[0]),
        update_window_dims=[1],
        inserted_window_dims=[2],
        scatter_dims_to_operand_dims=[2],
        input_batching_dims=[0],
        scatter_indices_batching_dims=[0],
        index_vector_dim=2,
    )
    return total
