"""Parts of a tensor at static positions: slices, splits, diagonals, windows, strided views.

ATen semantics kept: `slice` clamps its bounds as Python does, `select` does not; the `*_scatter`
forms give a new value with one part replaced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import BOOL, INT64, Context, normalize_dim
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part, transpose_to


@lowering("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    c: Context,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """`x[..., start:end:step]` along `dim`, step > 0."""
    at = normalize_dim(dim, x.rank)
    first, stop, _ = slice(start, end).indices(x.shape[at])
    return part(c, x, at, first, max(first, stop), step)


@lowering("aten.narrow_copy.default")
def narrow_copy(c: Context, x: Value, dim: int, start: int, length: int) -> Value:
    """`x[..., start:start + length]` along `dim`."""
    at = normalize_dim(dim, x.rank)
    first = start + x.shape[at] if start < 0 else start
    return part(c, x, at, first, first + length)


@lowering("aten.slice_scatter.default")
def slice_scatter(
    c: Context,
    x: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """`x` with the slice replaced by `src`."""
    at = normalize_dim(dim, x.rank)
    first, stop, _ = slice(start, end).indices(x.shape[at])
    count = len(range(first, stop, step))
    if count == 0:
        return x
    source = c.broadcast(c.cast(src, x.dtype), (*x.shape[:at], count, *x.shape[at + 1 :]))
    if step == 1:
        return replace_part(c, x, source, at, first)
    return _overlay(c, x, source, {at: (first, step)})


def replace_part(c: Context, x: Value, source: Value, dim: int, start: int) -> Value:
    """`x` with `source` laid over it from `start` on along one dimension."""
    if source.shape == x.shape:
        return source
    return c.kernels.overwrite(c.b, x, source, [start if d == dim else 0 for d in range(x.rank)])


def _overlay(c: Context, x: Value, source: Value, places: dict[int, tuple[int, int]]) -> Value:
    """`x` with `source` at start and step per dimension, through a mask of the same padding."""
    low, high, interior = [0] * x.rank, [0] * x.rank, [0] * x.rank
    for d, (start, step) in places.items():
        span = (source.shape[d] - 1) * step + 1
        low[d], interior[d], high[d] = start, step - 1, x.shape[d] - start - span

    def padded(v: Value) -> Value:
        return c.b.pad(v, c.full((), 0, v.dtype), low, high, interior)

    mask = padded(c.full(source.shape, True, BOOL))
    return c.b.select(mask, padded(source), x)


@lowering("aten.select.int", "aten.select_copy.int")
def select(c: Context, x: Value, dim: int, index: int) -> Value:
    """`x[..., index]` along `dim`, without that dimension."""
    at = normalize_dim(dim, x.rank)
    first = index % x.shape[at]
    return c.reshape(part(c, x, at, first, first + 1), c.output.shape)


@lowering("aten.select_scatter.default")
def select_scatter(c: Context, x: Value, src: Value, dim: int, index: int) -> Value:
    """`x` with one position along `dim` replaced by `src`."""
    at = normalize_dim(dim, x.rank)
    source = c.reshape(c.cast(src, x.dtype), (*x.shape[:at], 1, *x.shape[at + 1 :]))
    return replace_part(c, x, source, at, index % x.shape[at])


@lowering("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default")
def split_with_sizes(
    c: Context, x: Value, split_sizes: Sequence[int], dim: int = 0
) -> tuple[Value, ...]:
    """Consecutive pieces of the given sizes."""
    at = normalize_dim(dim, x.rank)
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(part(c, x, at, start, start + size))
        start += size
    return tuple(pieces)


@lowering("aten.split.Tensor", "aten.split_copy.Tensor")
def split(c: Context, x: Value, split_size: int, dim: int = 0) -> tuple[Value, ...]:
    """Consecutive pieces of `split_size`, the last perhaps smaller."""
    length = x.shape[normalize_dim(dim, x.rank)]
    starts = range(0, length, split_size) if length else [0]
    return split_with_sizes(c, x, [min(split_size, length - s) for s in starts], dim)


@lowering("aten.unbind.int", "aten.unbind_copy.int")
def unbind(c: Context, x: Value, dim: int = 0) -> tuple[Value, ...]:
    """Every position along `dim`, without that dimension."""
    at = normalize_dim(dim, x.rank)
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    return tuple(c.reshape(part(c, x, at, i, i + 1), shape) for i in range(x.shape[at]))


@lowering("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The elements with `index2 - index1 == offset`, in a new last dimension."""
    rows, columns = normalize_dim(dim1, x.rank), normalize_dim(dim2, x.rank)
    others = [d for d in range(x.rank) if d not in (rows, columns)]
    count = c.output.shape[-1]
    if count == 0:
        return c.zeros(0)
    square = part(c, x, rows, max(-offset, 0), max(-offset, 0) + count)
    square = part(c, square, columns, max(offset, 0), max(offset, 0) + count)
    square = transpose_to(c, square, [*others, rows, columns])
    # In a flattened square the diagonal is every (count + 1)-th element.
    flat = c.reshape(square, (*square.shape[:-2], count * count))
    return part(c, flat, flat.rank - 1, 0, count * count, count + 1)


@lowering("aten.diagonal_scatter.default")
def diagonal_scatter(
    c: Context, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """`x` with its diagonal replaced by `src`."""
    rows, columns = normalize_dim(dim1, x.rank), normalize_dim(dim2, x.rank)
    others = [d for d in range(x.rank) if d not in (rows, columns)]
    # The k-th element lies in row k of an upper and in column k of a lower diagonal.
    anchor = rows if offset >= 0 else columns
    pad = x.shape[anchor] - src.shape[-1]
    zero = c.full((), 0, x.dtype)
    padded = c.b.pad(c.cast(src, x.dtype), zero, [0] * src.rank, [*[0] * (src.rank - 1), pad])
    laid = c.b.broadcast_in_dim(padded, x.shape, (*others, anchor))
    row, column = (c.b.iota(x.shape, d, INT64) for d in (rows, columns))
    shifted = c.b.add(row, c.full(x.shape, offset, INT64))
    return c.b.select(c.b.compare(column, shifted, "EQ"), laid, x)


@lowering("aten.unfold.default", "aten.unfold_copy.default")
def unfold(c: Context, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of `size` every `step` along `dimension`, their elements in a new last dimension."""
    if x.rank == 0:
        return c.reshape(x, c.output.shape)
    at = normalize_dim(dimension, x.rank)
    count = c.output.shape[at]
    starts = _ramp(c, (count, size), 0, step)
    positions = c.b.add(starts, _ramp(c, (count, size), 1, 1))
    windows = take(c, x, positions, at)
    order = [d for d in range(windows.rank) if d != at + 1]
    return transpose_to(c, windows, [*order, at + 1])


@lowering("aten.roll.default", values=("shifts",))
def roll(
    c: Context, x: Value, shifts: int | Sequence[int | Value], dims: Sequence[int] = ()
) -> Value:
    """Elements moved on by `shifts` along `dims`, around the end; without dims, row-major."""
    amounts = [shifts] if isinstance(shifts, int) else list(shifts)
    if not dims:
        flat = c.reshape(x, (x.size,))
        return c.reshape(_roll(c, flat, amounts[0], 0), x.shape)
    for amount, dim in zip(amounts, [dims] if isinstance(dims, int) else dims, strict=True):
        x = _roll(c, x, amount, normalize_dim(dim, x.rank))
    return x


def _roll(c: Context, x: Value, amount: int | Value, dim: int) -> Value:
    size = x.shape[dim]
    if isinstance(amount, Value):
        return _roll_by(c, x, amount, dim) if x.size else x
    cut = -amount % size if size else 0
    if cut == 0:
        return x
    if math.prod(x.shape[dim + 1 :]) > 1:
        # One loop reads whole slices, along several dimensions too; parts are copied for each.
        places = c.b.add(c.b.iota((size,), 0, INT64), c.full((size,), cut, INT64))
        return take(c, x, c.b.remainder(places, c.full((size,), size, INT64)), dim)
    return c.b.concatenate([part(c, x, dim, cut, size), part(c, x, dim, 0, cut)], dim)


def _roll_by(c: Context, x: Value, amount: Value, dim: int) -> Value:
    """What `_roll` gives: a part of two copies, one behind the other."""
    b, size = c.b, c.full((), x.shape[dim], INT64)
    # The remainder has the sign of what is divided.
    moved = b.remainder(b.add(b.remainder(b.negate(amount), size), size), size)
    starts = [moved if d == dim else c.full((), 0, INT64) for d in range(x.rank)]
    return b.dynamic_slice(b.concatenate([x, x], dim), starts, x.shape)


def take(c: Context, x: Value, positions: Value, dim: int) -> Value:
    """`x` at integer `positions` along `dim`, which their dimensions replace."""
    shape = (*x.shape[:dim], *positions.shape, *x.shape[dim + 1 :])
    if positions.size == 0:
        return c.full(shape, 0, x.dtype)
    index = c.reshape(positions, [positions.size if d == dim else 1 for d in range(x.rank)])
    return c.reshape(c.kernels.gather_along(c.b, x, dim, index), shape)


def _ramp(c: Context, shape: Sequence[int], dim: int, step: int) -> Value:
    counter = c.b.iota(tuple(shape), dim, INT64)
    return c.b.multiply(counter, c.full(shape, step, INT64))
