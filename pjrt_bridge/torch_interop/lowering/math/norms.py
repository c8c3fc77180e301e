"""Norms of vectors by their orders, which are numbers or 0-d values of a call.

ATen semantics kept: order 0 counts the elements that are not 0, the orders +-inf are extremes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, Scalar, normalize_dims
from pjrt_bridge.torch_interop.lowering.math.complex_numbers import magnitude
from pjrt_bridge.torch_interop.lowering.math.reduction import (
    ReducedDims,
    finish,
    largest_over,
    smallest_over,
)
from pjrt_bridge.torch_interop.lowering.numbers import FLOAT64, Number, over
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("aten.linalg_vector_norm.default", values=("ord",))
def vector_norm(
    c: Context,
    x: Value,
    ord: Scalar | Value = 2,
    dim: ReducedDims = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Value:
    """The p-norm of the magnitudes."""
    size = c.cast(x, c.output.dtype) if not x.dtype.is_complex else x
    size = c.widen(size if size.dtype.is_bool else magnitude(c.b, size))
    order = ord if isinstance(ord, Value) else float(ord.real)
    return finish(c, norm_over(c, size, normalize_dims(dim, x.rank), order))


def norm_over(c: Context, size: Value, dims: Sequence[int], order: Number) -> Value:
    """The norm over `dims`, which are dropped, of magnitudes; 0 over nothing for order inf."""
    b = c.b
    if isinstance(order, Value):
        return _norm_of_any_order(c, size, dims, c.cast(order, FLOAT64))
    if math.isinf(order):
        return _extreme(c, size, dims, is_largest=order > 0)
    if order == 0:
        return c.reduce("sum", _hits(c, size), dims)
    if order == 1:
        return c.reduce("sum", size, dims)
    if order == 2:
        return b.sqrt(c.reduce("sum", b.multiply(size, size), dims))
    total = c.reduce("sum", b.power(size, c.full(size.shape, order, size.dtype)), dims)
    return b.power(total, c.full(total.shape, 1 / order, total.dtype))


def _norm_of_any_order(c: Context, size: Value, dims: Sequence[int], order: Value) -> Value:
    b = c.b
    one = c.full((), 1, FLOAT64)
    counts = b.compare(order, c.full((), 0, FLOAT64), "EQ")
    infinite = b.compare(b.abs(order), c.full((), math.inf, FLOAT64), "EQ")
    exponent = b.select(b.or_(counts, infinite), one, order)
    powers = b.power(size, c.full(size.shape, exponent, size.dtype))
    powers = b.select(c.broadcast(counts, size.shape), _hits(c, size), powers)
    total = c.reduce("sum", powers, dims)
    found = b.power(total, c.full(total.shape, over(b, 1, exponent), total.dtype))
    largest, smallest = (_extreme(c, size, dims, is_largest=which) for which in (True, False))
    grows = c.broadcast(b.compare(order, one, "GT"), total.shape)
    return b.select(c.broadcast(infinite, total.shape), b.select(grows, largest, smallest), found)


def _extreme(c: Context, size: Value, dims: Sequence[int], *, is_largest: bool) -> Value:
    if not math.prod(size.shape[dim] for dim in dims):
        # ATen refuses that but for distances of rows without columns, which are 0.
        kept = tuple(count for dim, count in enumerate(size.shape) if dim not in dims)
        return c.full(kept, 0, size.dtype)
    return (largest_over if is_largest else smallest_over)(c, size, dims)


def _hits(c: Context, size: Value) -> Value:
    """1 where there is anything."""
    return c.cast(c.b.compare(size, c.full(size.shape, 0, size.dtype), "NE"), size.dtype)
