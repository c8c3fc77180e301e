"""Reductions, the positions of extremes, and running (cumulative) forms.

ATen semantics kept: None or no dimensions mean all; half precision is accumulated in float32 and
rounded once; the input is converted to an explicit `dtype` first; NaN is the largest and the
smallest value; an extreme's position is its first one; a mean over nothing is NaN; a variance
divides by `max(0, n - correction)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Scan
from pjrt_bridge.torch_interop.lowering.context import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Context,
    Scalar,
    highest,
    normalize_dim,
    normalize_dims,
)
from pjrt_bridge.torch_interop.lowering.indexing.reading import gather_along
from pjrt_bridge.torch_interop.lowering.math.complex_numbers import true_quotient
from pjrt_bridge.torch_interop.lowering.math.ordering import ranks
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.numbers import FLOAT64, Number, minus
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

ReducedDims = int | Sequence[int] | None
UINT64 = dtypes.of("uint64")


@lowering("aten.sum.default", "aten.sum.dim_IntList")
def sum_(
    c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False, *, dtype: object = None
) -> Value:
    """Sum; integers and bools sum in int64."""
    return finish(c, c.reduce("sum", _accumulated(c, x), normalize_dims(dim, x.rank)))


@lowering("aten.mean.default", "aten.mean.dim")
def mean(
    c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False, *, dtype: object = None
) -> Value:
    """Sum over count."""
    return finish(c, mean_over(c, _accumulated(c, x), normalize_dims(dim, x.rank)))


@lowering("aten.prod.default", "aten.prod.dim_int")
def prod(
    c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False, *, dtype: object = None
) -> Value:
    """Product; integers and bools multiply in int64."""
    return finish(c, c.reduce("prod", _accumulated(c, x), normalize_dims(dim, x.rank)))


def _accumulated(c: Context, x: Value) -> Value:
    return c.widen(c.cast(x, c.output.dtype))


def finish(c: Context, x: Value) -> Value:
    """A reduced value in the type and shape of the output, which may keep dimensions."""
    return c.reshape(c.result(x), c.output.shape)


def mean_over(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """The mean over `dims`, which are dropped, in the type of `x`."""
    total = c.reduce("sum", x, dims)
    count = math.prod(x.shape[d] for d in dims)
    return true_quotient(c.b, total, c.full(total.shape, count, total.dtype))


@lowering("aten.any.default", "aten.any.dim", "aten.any.dims", "aten._is_any_true.default")
def any_(c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False) -> Value:
    """True where some element is not 0; NaN is not 0; an empty list of dimensions means none."""
    return finish(
        c, c.reduce("or", c.cast(x, BOOL), () if dim == [] else normalize_dims(dim, x.rank))
    )


@lowering("aten.all.default", "aten.all.dim", "aten.all.dims", "aten._is_all_true.default")
def all_(c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False) -> Value:
    """True where no element is 0; an empty list of dimensions means none."""
    return finish(
        c, c.reduce("and", c.cast(x, BOOL), () if dim == [] else normalize_dims(dim, x.rank))
    )


def largest_over(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """The maximum over `dims`, which are dropped; NaN if there is one."""
    return c.reduce("or", x, dims) if x.dtype.is_bool else c.reduce("max", x, dims)


def smallest_over(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """The minimum over `dims`, which are dropped; NaN if there is one."""
    return c.reduce("and", x, dims) if x.dtype.is_bool else c.reduce("min", x, dims)


@lowering("aten.amax.default", "aten.max.default")
def amax(c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False) -> Value:
    """The largest element."""
    return finish(c, largest_over(c, x, normalize_dims(dim, x.rank)))


@lowering("aten.amin.default", "aten.min.default")
def amin(c: Context, x: Value, dim: ReducedDims = None, keepdim: bool = False) -> Value:
    """The smallest element."""
    return finish(c, smallest_over(c, x, normalize_dims(dim, x.rank)))


@lowering("aten.max.dim")
def max_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value | None, ...]:
    """The largest elements along `dim` and their first positions."""
    return _extreme(c, x, dim, largest_over)


@lowering("aten.min.dim")
def min_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value | None, ...]:
    """The smallest elements along `dim` and their first positions."""
    return _extreme(c, x, dim, smallest_over)


Reducer = Callable[[Context, Value, Sequence[int]], Value]


def _extreme(c: Context, x: Value, dim: int, reducer: Reducer) -> tuple[Value | None, ...]:
    at = normalize_dim(dim, x.rank)
    line = x if x.rank else c.reshape(x, (1,))
    place = _first_position(c, line, at, reducer)
    if not place.size:
        return c.promised(reducer(c, line, (at,)), place)
    kept = c.reshape(place, tuple(1 if d == at else size for d, size in enumerate(line.shape)))
    found = gather_along(c, line, at, kept)
    return c.promised(c.reshape(found, place.shape), place)


def _first_position(c: Context, x: Value, dim: int, reducer: Reducer) -> Value:
    if x.shape[dim]:
        found = c.kernels.first_extremes(
            c.b, x, dim, largest=reducer is largest_over, positions=INT64
        )
        if found is not None:
            return found
    # Floats by their bits: processors may take a subnormal number for 0.
    key = x
    if x.dtype.is_float:
        key = ranks(c, x, nan_first=reducer is smallest_over)
    best = c.spread(reducer(c, key, (dim,)), x.shape, (dim,))
    counter = c.b.iota(x.shape, dim, INT32)
    beyond = c.full(x.shape, highest(INT32), INT32)
    return c.reduce("min", c.b.select(c.b.compare(key, best, "EQ"), counter, beyond), (dim,))


@lowering("aten.argmax.default")
def argmax(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first position of the largest element, row-major when `dim` is None."""
    return _position(c, x, dim, largest_over)


@lowering("aten.argmin.default")
def argmin(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first position of the smallest element, row-major when `dim` is None."""
    return _position(c, x, dim, smallest_over)


def _position(c: Context, x: Value, dim: int | None, reducer: Reducer) -> Value:
    line = c.reshape(x, (x.size,)) if dim is None or x.rank == 0 else x
    at = 0 if dim is None else normalize_dim(dim, x.rank)
    return finish(c, _first_position(c, line, at, reducer))


@lowering("aten.aminmax.default")
def aminmax(
    c: Context, x: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value | None, ...]:
    """The smallest and the largest element."""
    dims = normalize_dims(dim, x.rank)
    return c.promised(smallest_over(c, x, dims), largest_over(c, x, dims))


def moments(
    c: Context, x: Value, dims: Sequence[int], correction: Number = 0
) -> tuple[Value, Value]:
    """Variance and mean over `dims`, which are dropped, by two passes; x in its compute type."""
    average = mean_over(c, x, dims)
    centered = c.b.subtract(x, c.spread(average, x.shape, dims))
    total = c.reduce("sum", c.b.multiply(centered, centered), dims)
    freedom = minus(c.b, math.prod(x.shape[d] for d in dims), correction)
    if isinstance(freedom, Value):
        freedom = c.b.maximum(freedom, c.full((), 0, freedom.dtype))
    else:
        freedom = max(0.0, freedom)
    return c.b.divide(total, c.full(total.shape, freedom, total.dtype)), average


def _variance(
    c: Context, x: Value, dim: ReducedDims, correction: Scalar | Value | None
) -> tuple[Value, Value]:
    if isinstance(correction, complex):
        raise NotLowerable("variance with a complex correction")
    dims = normalize_dims(dim, x.rank)
    less = 1 if correction is None else correction
    if isinstance(less, Value):
        less = c.cast(less, FLOAT64)
    if not x.dtype.is_complex:
        return moments(c, c.widen(x), dims, less)
    real, imaginary = (moments(c, part, dims, less) for part in (c.b.real(x), c.b.imag(x)))
    return c.b.add(real[0], imaginary[0]), c.b.complex_(real[1], imaginary[1])


@lowering("aten.var.dim")
def var_dim(
    c: Context, x: Value, dim: ReducedDims, unbiased: bool = True, keepdim: bool = False
) -> Value:
    """Variance with Bessel's correction unless `unbiased` is False."""
    return finish(c, _variance(c, x, dim, int(unbiased))[0])


@lowering("aten.var.correction", "pjrt_bridge.var.correction", values=("correction",))
def var(
    c: Context,
    x: Value,
    dim: ReducedDims = None,
    *,
    correction: Scalar | Value | None = None,
    keepdim: bool = False,
) -> Value:
    """The mean squared distance from the mean."""
    return finish(c, _variance(c, x, dim, correction)[0])


@lowering("aten.std.correction", "pjrt_bridge.std.correction", values=("correction",))
def std(
    c: Context,
    x: Value,
    dim: ReducedDims = None,
    *,
    correction: Scalar | Value | None = None,
    keepdim: bool = False,
) -> Value:
    """The root of the variance."""
    return finish(c, c.b.sqrt(_variance(c, x, dim, correction)[0]))


@lowering("aten.var_mean.correction", "pjrt_bridge.var_mean.correction", values=("correction",))
def var_mean(
    c: Context,
    x: Value,
    dim: ReducedDims = None,
    *,
    correction: Scalar | Value | None = None,
    keepdim: bool = False,
) -> tuple[Value | None, ...]:
    """Variance and mean."""
    return c.promised(*_variance(c, x, dim, correction))


def _running(
    c: Context,
    how: Scan,
    x: Value,
    dim: int,
    start: Scalar,
    combine: Callable[[Value, Value], Value],
) -> Value:
    value, at = c.cast(x, c.output.dtype), normalize_dim(dim, x.rank)
    if not x.rank:
        return value
    found = c.kernels.scan(c.b, how, value, at)
    return c.result(scan(c, c.widen(value), at, start, combine)) if found is None else found


@lowering("aten.cumsum.default")
def cumsum(c: Context, x: Value, dim: int, *, dtype: object = None) -> Value:
    """Running sum; integers and bools sum in int64."""
    return _running(c, "sum", x, dim, 0, c.b.add)


@lowering("aten.cumprod.default")
def cumprod(c: Context, x: Value, dim: int, *, dtype: object = None) -> Value:
    """Running product; integers and bools multiply in int64."""
    return _running(c, "prod", x, dim, 1, c.b.multiply)


@lowering("aten.hash_tensor.default")
def hash_tensor(
    c: Context, x: Value, dim: ReducedDims = None, *, keepdim: bool = False, mode: int = 0
) -> Value:
    """The exclusive or of all elements as 64 bits: floats as doubles, integers sign-extended."""
    if mode != 0 or x.dtype.is_complex:
        raise NotLowerable(f"hash_tensor of {x.dtype} with mode {mode}")
    wide = c.cast(x, FLOAT64 if x.dtype.is_float else UINT64)
    bits = c.b.bitcast_convert(wide, UINT64) if x.dtype.is_float else wide
    start = c.full((), 0, UINT64)
    (total,) = c.b.reduce(
        (bits,), (start,), normalize_dims(dim, x.rank), lambda old, new: c.b.xor(old[0], new[0])
    )
    return finish(c, total)


@lowering("aten.histc.default")
def histc(c: Context, x: Value, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Value:
    """Counts of values in equal bins; the last holds its upper end; outside and NaN count nowhere.

    With `min == max` the range is that of the data, widened by 1 each way if it is one value.
    """
    b = c.b
    # No wider type: which bin a value on an edge falls into depends on ATen's roundings.
    value = c.reshape(x, (x.size,))
    kind = value.dtype
    if min == max:
        if x.size == 0:
            return c.zeros(0)
        low, high = smallest_over(c, value, (0,)), largest_over(c, value, (0,))
        flat, one = b.compare(low, high, "EQ"), c.full((), 1, kind)
        low, high = (
            b.select(flat, b.subtract(low, one), low),
            b.select(flat, b.add(high, one), high),
        )
    else:
        low, high = c.full((), min, kind), c.full((), max, kind)
    low, high = (c.broadcast(v, value.shape) for v in (low, high))
    inside = b.and_(b.compare(value, low, "GE"), b.compare(value, high, "LE"))
    shifted = b.multiply(b.subtract(value, low), c.full(value.shape, bins, kind))
    place = b.divide(shifted, b.subtract(high, low))
    place = c.cast(b.select(inside, place, c.full(value.shape, 0, kind)), INT32)
    place = b.minimum(place, c.full(value.shape, bins - 1, INT32))
    place = b.select(inside, place, c.full(value.shape, -1, INT32))
    grid = (x.size, bins)
    hits = b.compare(b.broadcast_in_dim(place, grid, (0,)), b.iota(grid, 1, INT32), "EQ")
    return finish(c, c.reduce("sum", c.cast(hits, FLOAT32), (0,)))
