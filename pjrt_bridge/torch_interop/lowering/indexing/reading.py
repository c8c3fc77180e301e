"""Reading at positions that are computed: index, gather, embedding and their derivatives.

ATen semantics kept: negative positions count from the end for `index`, and are errors for
`gather`, `index_select` and `embedding`. A position out of range, an error in eager, is undefined
here: StableHLO's gather clamps it (spec, "gather"). Masks (bool indices) give sizes that depend on
data and are not lowered. Forms that accumulate are in `writing`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order, memory_order
from pjrt_bridge.torch_interop.lowering.context import BOOL, INT64, Context, normalize_dim
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


class Places:
    """Where `x[indices]` reads or writes, in terms of StableHLO's gather and scatter.

    Attributes:
        dims: indexed dimensions of `x`, in order.
        positions: their positions, non-negative, of one shape.
        window_dims: dimensions of the result that come from unindexed dimensions of `x`.
        shape: shape of the result.
    """

    def __init__(self, c: Context, x: Value, indices: Sequence[Value | None]) -> None:
        chosen = {d: index for d, index in enumerate(indices) if index is not None}
        if any(index.dtype.is_bool for index in chosen.values()):
            raise NotLowerable("indexing with a mask gives a size that depends on data")
        self.dims = list(chosen)
        batch = broadcast_shapes(*(index.shape for index in chosen.values()))
        self.positions = [
            c.broadcast(from_front(c, index, x.shape[d]), batch) for d, index in chosen.items()
        ]
        # Separated index dimensions are put in front (NumPy, "Combining advanced and basic").
        adjacent = self.dims[-1] - self.dims[0] == len(self.dims) - 1
        first = self.dims[0] if adjacent else 0
        kept = [n for d, n in enumerate(x.shape) if d not in chosen]
        self.shape = (*kept[:first], *batch, *kept[first:])
        self.window_dims = [
            d for d in range(len(self.shape)) if not first <= d < first + len(batch)
        ]


def order_of_places(x: Value, rank: int, indices: Sequence[Value | None]) -> tuple[int, ...] | None:
    """The order in memory of what is read, or written, at places; None where it is row-major.

    None also where reading elements in that order would give them in another one.

    Args:
        x: what is read, or what is written.
        rank: of what is indexed.
        indices: of the places.
    """
    order = memory_order(x)
    chosen = [d for d, index in enumerate(indices) if index is not None]
    if x.rank != rank or order == tuple(range(rank)) or len(chosen) == 0:
        return None
    batch = max(index.rank for index in indices if index is not None)
    first = order.index(chosen[0])
    together = tuple(chosen) == order[first : first + len(chosen)]
    apart = chosen[-1] - chosen[0] != len(chosen) - 1
    return order if batch == len(chosen) and together and not apart else None


def in_order(indices: Sequence[Value | None], order: Sequence[int]) -> list[Value | None]:
    """The indices of something whose dimensions were put into an order."""
    return [indices[dim] if dim < len(indices) else None for dim in order]


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to under NumPy's rules."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


def from_front(c: Context, index: Value, size: int) -> Value:
    """Integer positions in int64, negative ones counted from the end."""
    wide = c.cast(index, INT64)
    negative = c.b.compare(wide, c.full(wide.shape, 0, INT64), "LT")
    return c.b.select(negative, c.b.add(wide, c.full(wide.shape, size, INT64)), wide)


@lowering("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing with integer tensors; None keeps a dimension."""
    order = order_of_places(x, x.rank, indices)
    if order is not None and c.output.size:
        turned = index(c, c.b.transpose(x, order), in_order(indices, order))
        return c.b.transpose(turned, inverse_order(order))
    places = Places(c, x, indices)
    if math.prod(places.shape) == 0:
        return c.zeros(0)
    return c.kernels.gather_slices(c.b, x, places.dims, places.positions)


@lowering("aten.index_select.default")
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    """Whole slices at the positions along `dim`."""
    at = normalize_dim(dim, x.rank)
    line = x if x.rank else c.reshape(x, (1,))
    return c.reshape(take(c, line, c.reshape(index, (index.size,)), at), c.output.shape)


@lowering("aten.embedding.default")
def embedding(
    c: Context,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """The rows of `weight` at `indices`; the other arguments concern the derivative only."""
    return take(c, weight, indices, 0)


@lowering("aten.take.default")
def take_flat(c: Context, x: Value, index: Value) -> Value:
    """Elements at row-major positions; negative positions count from the end."""
    return take(c, c.reshape(x, (x.size,)), from_front(c, index, x.size), 0)


@lowering("aten.gather.default")
def gather(c: Context, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """`out[i][j] = x[index[i][j]][j]` for dim 0; `index` may be smaller than `x` elsewhere."""
    if index.size == 0:
        return c.zeros(0)
    if x.rank == 0 or index.rank == 0:
        source = c.reshape(x, (x.size,))
        return c.reshape(take(c, source, c.reshape(index, (index.size,)), 0), c.output.shape)
    return gather_along(c, x, normalize_dim(dim, x.rank), index)


def along_last(c: Context, x: Value, index: Value) -> Value:
    """`x` at the positions of its last dimension that `index`, of the same rank, has."""
    if index.size == 0:
        return c.full(index.shape, 0, x.dtype)
    return gather_along(c, x, x.rank - 1, index)


def gather_along(c: Context, x: Value, at: int, index: Value) -> Value:
    """`gather` of tensors that have a dimension, for an index that is not empty.

    Positions that are the same for whole slices read slices.
    """
    for d in range(x.rank):
        if d != at:
            x = part(c, x, d, 0, index.shape[d])
    positions, dims = varying(index, at)
    sizes = [index.shape[d] if d in dims else 1 for d in range(x.rank)]
    return c.kernels.gather_along(c.b, x, at, c.reshape(positions, sizes))


def varying(index: Value, at: int) -> tuple[Value, tuple[int, ...]]:
    """Positions without the dimensions that they are repeated along, and the dimensions left.

    Args:
        index: of the positions, such as `index.unsqueeze(-1).expand_as(x)`.
        at: a dimension that stays.
    """
    everything = index, tuple(range(index.rank))
    if index.repeats is None:
        return everything
    source, dims = index.repeats.value, index.repeats.dims
    kept = [d for size, d in zip(source.shape, dims, strict=True) if size == index.shape[d]]
    if kept != sorted(kept):
        return everything
    if index.shape[at] == 1 and at not in kept:
        kept = sorted([*kept, at])
    return (source, tuple(kept)) if at in kept else everything


@lowering("aten.nonzero_static.default")
def nonzero_static(c: Context, x: Value, *, size: int, fill_value: int = -1) -> Value:
    """(size, rank): the indices of the first elements that are not 0, the rest filled."""
    b = c.b
    filled = c.full((size, x.rank), fill_value, INT64)
    if size == 0 or x.size == 0 or x.rank == 0:
        if x.rank:
            return filled
        return c.zeros(0)
    hit = c.reshape(c.cast(x, BOOL), (x.size,))
    index = b.concatenate(
        [c.reshape(b.iota(x.shape, d, INT64), (x.size, 1)) for d in range(x.rank)], 1
    )
    rank = b.subtract(scan(c, c.cast(hit, INT64), 0, 0, b.add), c.full(hit.shape, 1, INT64))
    # `scatter` drops updates whose position is beyond the end.
    place = b.select(hit, rank, c.full(hit.shape, size, INT64))
    (out,) = b.scatter(
        [filled],
        c.reshape(place, (x.size, 1)),
        [index],
        lambda _, new: new,
        update_window_dims=[1],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )
    return out


@lowering("aten.repeat_interleave.Tensor")
def repeat_interleave(c: Context, repeats: Value, *, output_size: int | None = None) -> Value:
    """The index of each element as often as `repeats` says, `output_size` in all."""
    if output_size is None:
        raise NotLowerable(
            "repeat_interleave without output_size gives a size that depends on data"
        )
    return c.result(repeated(c, repeats, output_size))


def repeated(c: Context, repeats: Value, size: int) -> Value:
    """Indices 0, 1, ... as int64, each as often as `repeats` says, `size` in all."""
    b = c.b
    ends = scan(c, c.cast(repeats, INT64), 0, 0, b.add)
    marks = c.full((size,), 0, INT64)
    if not size or not repeats.size:
        return marks
    (marks,) = b.scatter(
        [marks],
        c.reshape(ends, (ends.size, 1)),
        [c.full((ends.size,), 1, INT64)],
        lambda old, new: b.add(old[0], new[0]),
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )
    return scan(c, marks, 0, 0, b.add)
