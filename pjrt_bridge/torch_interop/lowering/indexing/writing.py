"""Writing at positions that are computed: index_put, scatter and the derivatives of reading.

ATen semantics kept: accumulation adds every update, in float32 for half precision, rounded once;
without accumulation the last of several updates to one place is unspecified, as in eager. A
position out of range, an error in eager, is ignored (StableHLO spec, "scatter"). With a mask it is
a selection among what is there and what is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.kernel_attributes import Combination
from pjrt_bridge.stablehlo.position_kernels import stacked
from pjrt_bridge.torch_interop.lowering.context import (
    BOOL,
    INT64,
    Context,
    Operand,
    Scalar,
    compute_type,
    highest,
    lowest,
    normalize_dim,
)
from pjrt_bridge.torch_interop.lowering.indexing.along import (
    Combine,
    replace,
    scatter_along,
    write,
)
from pjrt_bridge.torch_interop.lowering.indexing.reading import (
    Places,
    from_front,
    in_order,
    order_of_places,
    varying,
)
from pjrt_bridge.torch_interop.lowering.math.elementwise import divide_down, term
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


@lowering("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    c: Context,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    """`x` with `x[indices]` set to, or increased by, the broadcast values."""
    if any(index is not None and index.dtype.is_bool for index in indices):
        return _put_where(c, x, indices, values, accumulate)
    order = order_of_places(values, x.rank, indices)
    if order is not None and x.size:
        here, new = (c.b.transpose(side, order) for side in (x, values))
        turned = index_put(c, here, in_order(indices, order), new, accumulate)
        return c.b.transpose(turned, inverse_order(order))
    places = Places(c, x, indices)
    if math.prod(places.shape) == 0:
        return x
    if not accumulate:
        return c.result(_write_places(c, x, places, values))
    kind = compute_type(x.dtype)
    updates = c.operand(values, kind, places.shape)
    return c.result(
        c.kernels.combine_slices(
            c.b, c.cast(x, kind), places.dims, places.positions, updates, "sum"
        )
    )


def _write_places(c: Context, x: Value, places: Places, values: Value) -> Value:
    count = places.positions[0].size
    first = next((d for d, at in enumerate(places.window_dims) if d != at), len(places.window_dims))
    rest = [places.shape[dim] for dim in places.window_dims]
    slices = c.reshape(
        c.operand(values, x.dtype, places.shape), (*rest[:first], count, *rest[first:])
    )
    positions = stacked(c.b, [c.reshape(item, (count,)) for item in places.positions])
    return c.kernels.write_slices(c.b, x, places.dims, positions, slices, first)


def _put_where(
    c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    chosen = [(d, index) for d, index in enumerate(indices) if index is not None]
    start, mask = chosen[0]
    if len(chosen) > 1:
        raise NotLowerable("index_put with a mask beside other indices")
    if values.dtype != x.dtype and values.size != 1:
        raise NotLowerable(f"index_put of values of type {values.dtype} into type {x.dtype}")
    leading = max(values.rank - (x.rank - start - mask.rank), 0)
    values = c.cast(values, x.dtype)
    if leading and values.shape[leading - 1] != 1:
        values = _at_hits(c, x.shape, start, mask, values)
    elif leading:
        covered = (*values.shape[: leading - 1], *[1] * mask.rank, *values.shape[leading:])
        values = c.reshape(values, covered)
    update = c.broadcast(values, x.shape)
    hit = c.b.broadcast_in_dim(mask, x.shape, tuple(range(start, start + mask.rank)))
    return c.b.select(hit, c.b.add(x, update) if accumulate else update, x)


def _at_hits(c: Context, shape: Sequence[int], start: int, mask: Value, values: Value) -> Value:
    """Values of which the mask's k-th hit, row-major, gets the k-th, broadcast to a shape.

    Args:
        c: the lowering's context.
        shape: to broadcast to; what is not at a hit is any of the values.
        start: the first of the dimensions that the mask covers.
        mask: of the hits, whose number `passes/data_checks.py` checks.
        values: with the hits in one dimension instead of these.
    """
    rest = tuple(shape[start + mask.rank :])
    axis = values.rank - len(rest) - 1
    if values.size == 0 or mask.size == 0:
        return c.full(tuple(shape), 0, values.dtype)
    hit = c.reshape(c.cast(mask, INT64), (mask.size,))
    rank = c.b.subtract(scan(c, hit, 0, 0, c.b.add), c.full(hit.shape, 1, INT64))
    spread = take(c, values, rank, axis)
    spread = c.broadcast(spread, (*shape[:start], mask.size, *rest))
    return c.reshape(spread, tuple(shape))


@lowering("aten.scatter.src", "aten.scatter.value")
def scatter(c: Context, x: Value, dim: int, index: Value, src: Operand) -> Value:
    """`out[index[i][j]][j] = src[i][j]` for dim 0, over a copy of `x`."""
    return c.result(scatter_along(c, x, dim, index, src, "last"))


@lowering("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_with(
    c: Context, x: Value, dim: int, index: Value, src: Operand, *, reduce: str
) -> Value:
    """The same, combined with the elements of `x`: "add" or "multiply"."""
    how: Combination = "sum" if reduce == "add" else "prod"
    return c.result(scatter_along(c, c.widen(x), dim, index, src, how))


@lowering("aten.scatter_add.default")
def scatter_add(c: Context, x: Value, dim: int, index: Value, src: Value) -> Value:
    """The same, added to the elements of `x`."""
    return c.result(scatter_along(c, c.widen(x), dim, index, src, "sum"))


@lowering("aten.scatter_reduce.two")
def scatter_reduce(
    c: Context,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """Combined by sum, prod, mean, amax or amin; without `x` itself where there is an update."""
    b = c.b
    base = c.widen(x)
    starts: dict[str, tuple[Scalar, Combination]] = {
        "sum": (0, "sum"),
        "mean": (0, "sum"),
        "prod": (1, "prod"),
        "amax": (lowest(base.dtype), "max"),
        "amin": (highest(base.dtype), "min"),
    }
    start, how = starts[reduce]
    if not include_self:
        base = scatter_along(c, base, dim, index, start, "last")
    total = scatter_along(c, base, dim, index, src, how)
    if reduce == "mean":
        count = _updates(c, x, dim, index, include_self)
        divide = partial(divide_down, b) if total.dtype.is_integer else b.divide
        total = divide(total, c.cast(count, total.dtype))
    return c.result(total)


def _updates(c: Context, x: Value, dim: int, index: Value, include_self: bool) -> Value:
    """How many numbers there are at each place of `x`, at least 1; `x` itself may be one."""
    shape = x.shape
    if x.rank and index.rank and index.size:
        positions, dims = varying(index, normalize_dim(dim, x.rank))
        if all(index.shape[d] == n for d, n in enumerate(shape) if d not in dims):
            # The same along the others.
            shape = tuple(n if d in dims else 1 for d, n in enumerate(shape))
            sizes = (n if d in dims else 1 for d, n in enumerate(index.shape))
            index = c.reshape(positions, tuple(sizes))
    own = c.full(shape, 1, INT64)
    if not include_self:
        own = scatter_along(c, own, dim, index, 0, "last")
    count = scatter_along(c, own, dim, index, 1, "sum")
    return c.broadcast(c.b.maximum(count, c.full(shape, 1, INT64)), x.shape)


@lowering("aten.index_reduce.default")
def index_reduce(
    c: Context,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """The same with whole slices of `source`."""
    each = (
        index if source.rank == 0 else c.along(index, source.shape, normalize_dim(dim, source.rank))
    )
    return scatter_reduce(c, x, dim, each, source, reduce, include_self=include_self)


@lowering("aten.index_add.default", values=("alpha",))
def index_add(
    c: Context, x: Value, dim: int, index: Value, source: Value, *, alpha: Operand = 1
) -> Value:
    """Slices of `alpha * source` added at the positions along `dim`."""
    base = c.widen(x)
    update = term(c, c.cast(source, base.dtype), alpha)
    line, at, positions, slices = _of_slices(c, base, dim, index, update)
    places = c.reshape(positions, tuple(index.size if d == at else 1 for d in range(line.rank)))
    written = c.kernels.combine_along(c.b, line, at, places, slices, "sum")
    return c.result(c.reshape(written, x.shape))


@lowering("aten.index_copy.default")
def index_copy(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Slices of `source` written at the positions along `dim`."""
    line, at, positions, slices = _of_slices(c, x, dim, index, source)
    written = c.kernels.write_slices(c.b, line, [at], positions, slices, at)
    return c.result(c.reshape(written, x.shape))


def _of_slices(
    c: Context, x: Value, dim: int, index: Value, update: Value
) -> tuple[Value, int, Value, Value]:
    """A tensor that has dimensions, which of them is written along, positions and slices."""
    line = x if x.rank else c.reshape(x, (1,))
    at = normalize_dim(dim, line.rank)
    slices = c.reshape(update, (*line.shape[:at], index.size, *line.shape[at + 1 :]))
    return line, at, c.reshape(index, (index.size, 1)), slices


@lowering("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    c: Context,
    grad: Value,
    indices: Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    """The rows' gradients summed per index; the row `padding_idx` gets none."""
    b = c.b
    count, width = indices.size, grad.shape[-1]
    rows = c.reshape(c.cast(indices, INT64), (count, 1))
    updates = c.reshape(c.widen(grad), (count, width))
    if scale_grad_by_freq:
        ones = c.full((count, 1), 1, updates.dtype)
        table = c.full((num_weights, 1), 0, updates.dtype)
        places = c.reshape(rows, (count,))
        frequency = take(c, into_rows(c, table, places, ones, "sum"), places, 0)
        updates = b.divide(updates, c.broadcast(frequency, updates.shape))
    padding = b.compare(rows, c.full(rows.shape, padding_idx, INT64), "EQ")
    zero = c.full(updates.shape, 0, updates.dtype)
    updates = b.select(c.broadcast(padding, updates.shape), zero, updates)
    table = c.full((num_weights, width), 0, updates.dtype)
    return c.result(into_rows(c, table, c.reshape(rows, (count,)), updates, "sum"))


def into_rows(c: Context, table: Value, rows: Value, updates: Value, how: Combination) -> Value:
    """A matrix with the updates (one a row number) combined with its rows; -1 is dropped."""
    return c.kernels.combine_along(c.b, table, 0, c.reshape(rows, (rows.size, 1)), updates, how)


@lowering("aten.masked_scatter.default")
def maskedwrite(c: Context, x: Value, mask: Value, source: Value) -> Value:
    """The k-th hit of the mask, row-major, replaced by the k-th element of `source`."""
    b = c.b
    hit = c.reshape(c.broadcast(c.cast(mask, BOOL), c.output.shape), (c.output.size,))
    if hit.size == 0 or source.size == 0:
        return c.broadcast(x, c.output.shape)
    rank = b.subtract(scan(c, c.cast(hit, INT64), 0, 0, b.add), c.full(hit.shape, 1, INT64))
    arriving = take(c, c.reshape(source, (source.size,)), rank, 0)
    base = c.reshape(c.broadcast(x, c.output.shape), hit.shape)
    return c.reshape(b.select(hit, arriving, base), c.output.shape)


@lowering("aten.masked_scatter_backward.default")
def masked_scatter_backward(c: Context, grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """The gradient of the source: the k-th hit's gradient at place k, zeros behind the last."""
    b = c.b
    source = c.zeros(0)
    flat = (math.prod(grad.shape),)
    if source.size == 0 or flat[0] == 0:
        return source
    hit = c.reshape(c.broadcast(c.cast(mask, BOOL), grad.shape), flat)
    rank = b.subtract(scan(c, c.cast(hit, INT64), 0, 0, b.add), c.full(flat, 1, INT64))
    place = b.select(hit, rank, c.full(flat, source.size, INT64))
    base = c.reshape(source, (source.size,))
    return c.reshape(_put_flat(c, base, place, c.reshape(grad, flat), replace), source.shape)


@lowering("aten.put.default")
def put(c: Context, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """`source` written, or added, at row-major positions; negative ones count from the end."""
    if index.size == 0:
        return x
    base = c.widen(x) if accumulate else x
    line, places = (base.size,), (index.size,)
    position = c.reshape(from_front(c, index, x.size), places)
    update = c.reshape(c.cast(source, base.dtype), places)
    combine = c.b.add if accumulate else replace
    return c.result(
        c.reshape(_put_flat(c, c.reshape(base, line), position, update, combine), x.shape)
    )


def _put_flat(c: Context, x: Value, positions: Value, updates: Value, combine: Combine) -> Value:
    return write(
        c,
        x,
        c.reshape(positions, (positions.size, 1)),
        updates,
        combine,
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
    )
