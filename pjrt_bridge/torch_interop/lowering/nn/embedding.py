"""Bags of embeddings, renormalized embeddings, and derivatives.

ATen semantics kept: bag i is `indices[offsets[i]:offsets[i + 1]]`, an empty one gives 0; indices
that equal `padding_idx` are ignored. Of equal maxima in a bag the first one's row is kept; a NaN is
the maximum if it comes first in its bag, and is ignored elsewhere. Sizes of bags are given where a
mean or a maximum needs them, else 0. Sums are in float32 for half precision.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Combination
from pjrt_bridge.torch_interop.lowering.context import (
    BOOL,
    INT64,
    Context,
    OptionalValues,
    Scalar,
    highest,
    lowest,
)
from pjrt_bridge.torch_interop.lowering.indexing.writing import into_rows
from pjrt_bridge.torch_interop.lowering.math.norms import norm_over
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.numbers import Number
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take

_SUM, _MEAN, _MAX = 0, 1, 2


@lowering("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    c: Context,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> OptionalValues:
    """(bags, width), the bag of each index, sizes of bags, and rows of maxima."""
    b = c.b
    bags = _Bags(c, weight.shape, indices, _bag_of_each(c, offsets, indices.size), padding_idx)
    bags.count = c.output.shape[0]
    none = c.full((bags.count,), 0, INT64)
    sizes = none if mode == _SUM else bags.sizes()
    chosen = sizes
    total = None
    if mode != _MAX:
        ends = c.cast(offsets, INT64)
        if not include_last_offset:
            ends = b.concatenate([ends, c.full((1,), indices.size, INT64)], 0)
        total = c.kernels.sums_of_bags(
            b,
            weight,
            indices,
            ends,
            per_sample_weights,
            mean=mode == _MEAN,
            ignored=bags.ignored,
        )
    if mode == _MAX:
        total, chosen = bags.largest(c.widen(take(c, weight, indices, 0)))
    elif total is None:
        rows = c.widen(take(c, weight, indices, 0))
        if per_sample_weights is not None:
            factor = c.cast(per_sample_weights, rows.dtype)
            rows = b.multiply(rows, c.along(factor, rows.shape, 0))
        total = bags.collect(rows, 0, "sum")
        if mode == _MEAN:
            divisor = b.maximum(sizes, c.full(sizes.shape, 1, INT64))
            total = b.divide(total, c.along(c.cast(divisor, total.dtype), total.shape, 0))
    extras = []
    for value, out in zip((bags.of, sizes, chosen), c.outputs[1:], strict=True):
        if out is None:
            raise NotLowerable("embedding_bag without one of its outputs")
        # Padded with zeros to the promised shape, or empty where that is.
        high = [to - n for n, to in zip(value.shape, out.shape, strict=True)]
        padded = b.pad(value, c.full((), 0, INT64), [0] * value.rank, high)
        extras.append(c.cast(padded, out.dtype))
    return c.result(total), *extras


@lowering("pjrt_bridge._embedding_bag.default")
def equal_bags(c: Context, table: Value, indices: Value, length: int, mean: bool) -> Value:
    """(bags, width): sums or means of `length` rows each; see `passes.equal_bags`."""
    b = c.b
    bag = b.iota((indices.size // length + 1,), 0, INT64)
    ends = b.multiply(bag, c.full(bag.shape, length, INT64))
    found = c.kernels.sums_of_bags(
        b, table, c.reshape(indices, (indices.size,)), ends, None, mean=mean, ignored=-1
    )
    if found is not None:
        return c.result(found)
    rows = c.widen(take(c, table, indices, 0))
    groups = c.reshape(rows, (rows.shape[0] // length, length, rows.shape[1]))
    total = b.reduce_sum(groups, (1,))
    if mean:
        total = b.divide(total, c.full(total.shape, length, total.dtype))
    return c.result(total)


def _bag_of_each(c: Context, offsets: Value, count: int) -> Value:
    """Which bag each of `count` indices is in: the number of offsets up to it, less 1."""
    b = c.b
    starts = into_rows(
        c,
        c.full((count, 1), 0, INT64),
        c.cast(offsets, INT64),
        c.full((offsets.size, 1), 1, INT64),
        "sum",
    )
    number = scan(c, c.reshape(starts, (count,)), 0, 0, b.add)
    return b.subtract(number, c.full((count,), 1, INT64))


class _Bags:
    """Indices in bags.

    Attributes:
        of: the bag of each index.
        kept: whether an index is not ignored.
        ignored: the index that is.
        count: number of bags.
    """

    count: int

    def __init__(
        self, c: Context, table: tuple[int, ...], indices: Value, of: Value, padding: int
    ) -> None:
        self._c = c
        self.of = of
        self._indices = c.cast(indices, INT64)
        self.ignored = padding + table[0] if padding < -1 else padding
        ignored = c.full(indices.shape, self.ignored, INT64)
        self.kept = c.b.compare(self._indices, ignored, "NE")

    def _places(self, kept: Value) -> Value:
        """The bag of each index; out of range for ignored ones."""
        return self._c.b.select(kept, self.of, self._c.full(self.of.shape, -1, INT64))

    def collect(self, rows: Value, start: Scalar, how: Combination) -> Value:
        """(bags, width): the rows of indices that are not ignored, combined by bag."""
        base = self._c.full((self.count, rows.shape[1]), start, rows.dtype)
        return into_rows(self._c, base, self._places(self.kept), rows, how)

    def sizes(self) -> Value:
        """The number of indices of each bag that are not ignored."""
        ones = self._c.full((self.of.size, 1), 1, INT64)
        return self._c.reshape(self.collect(ones, 0, "sum"), (self.count,))

    def largest(self, rows: Value) -> tuple[Value, Value]:
        """(bags, width): maxima and the indices that they come from; 0 for empty bags."""
        c, b = self._c, self._c.b
        if not rows.shape[0]:
            shape = (self.count, rows.shape[1])
            return c.full(shape, 0, rows.dtype), c.full(shape, 0, INT64)
        place = b.iota(rows.shape, 0, INT64)
        beyond = c.full(rows.shape, highest(INT64), INT64)
        first = self.collect(place, highest(INT64), "min")
        is_nan = b.compare(rows, rows, "NE")
        leads = b.compare(place, take(c, first, self.of, 0), "EQ")
        low = c.full(rows.shape, lowest(rows.dtype), rows.dtype)
        value = b.select(b.and_(is_nan, b.not_(leads)), low, rows)
        best = self.collect(value, -math.inf, "max")
        repeated = take(c, best, self.of, 0)
        hit = b.or_(b.compare(value, repeated, "EQ"), b.compare(value, value, "NE"))
        found = self.collect(b.select(hit, place, beyond), highest(INT64), "min")
        empty = b.compare(first, c.full(first.shape, highest(INT64), INT64), "EQ")
        zero = c.full(found.shape, 0, INT64)
        row = take(c, self._indices, b.select(empty, zero, found), 0)
        return b.select(empty, c.full(best.shape, 0, best.dtype), best), b.select(empty, zero, row)


@lowering("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    c: Context,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """(weights, width): gradients of the table, dense."""
    if sparse:
        raise NotLowerable("a sparse gradient")
    if offset2bag.size != indices.size:
        offset2bag = _bag_of_each(c, offsets, indices.size)
    return embedding_bag_dense_backward(
        c,
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowering("aten._embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    c: Context,
    grad: Value,
    indices: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """(weights, width): each row the sum over the bags that it is in."""
    b = c.b
    incoming = c.widen(grad)
    width = grad.shape[1]
    if mode == _MAX:
        return c.result(_to_maxima(c, incoming, bag_size, maximum_indices, num_weights))
    bags = _Bags(c, (num_weights, width), indices, c.cast(offset2bag, INT64), padding_idx)
    if mode == _MEAN:
        sizes = c.cast(bag_size, INT64)
        sizes = c.cast(b.maximum(sizes, c.full(sizes.shape, 1, INT64)), incoming.dtype)
        incoming = b.divide(incoming, c.along(sizes, incoming.shape, 0))
    rows = take(c, incoming, bags.of, 0)
    if per_sample_weights is not None:
        factor = c.cast(per_sample_weights, rows.dtype)
        rows = b.multiply(rows, c.along(factor, rows.shape, 0))
    places = c.cast(indices, INT64)
    if scale_grad_by_freq:
        divisor = c.cast(_frequencies(c, places, num_weights), rows.dtype)
        rows = b.divide(rows, c.along(divisor, rows.shape, 0))
    places = b.select(bags.kept, places, c.full(places.shape, -1, INT64))
    table = c.full((num_weights, width), 0, rows.dtype)
    return c.result(into_rows(c, table, places, rows, "sum"))


def _frequencies(c: Context, indices: Value, count: int) -> Value:
    """The frequency of each index as ATen computes it.

    It numbers the different indices in ascending order, and reads how often the index of that
    number occurs among all of them, sorted.
    """
    b = c.b
    ones, table = c.full((indices.size, 1), 1, INT64), c.full((count, 1), 0, INT64)
    frequency = c.reshape(into_rows(c, table, indices, ones, "sum"), (count,))
    present = c.cast(c.cast(frequency, BOOL), INT64)
    number = b.subtract(scan(c, present, 0, 0, b.add), c.full((count,), 1, INT64))
    (ordered,) = b.sort([indices], 0, lambda left, right: b.compare(left[0], right[0], "LT"))
    return take(c, frequency, take(c, ordered, take(c, number, indices, 0), 0), 0)


def _to_maxima(c: Context, grad: Value, sizes: Value, rows: Value, count: int) -> Value:
    """Each gradient at the row that its maximum came from."""
    b = c.b
    filled = b.compare(c.cast(sizes, INT64), c.full(sizes.shape, 0, INT64), "GT")
    row = b.select(
        c.along(filled, rows.shape, 0), c.cast(rows, INT64), c.full(rows.shape, -1, INT64)
    )
    (table,) = b.scatter(
        [c.full((count, grad.shape[1]), 0, grad.dtype)],
        c.reshape(row, (*row.shape, 1)),
        [grad],
        lambda old, new: b.add(old[0], new[0]),
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        input_batching_dims=[1],
        scatter_indices_batching_dims=[1],
        index_vector_dim=2,
    )
    return table


@lowering("aten._embedding_bag_per_sample_weights_backward.default")
def per_sample_weights_backward(
    c: Context,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    """The product of each index' row with the gradient of its bag."""
    b = c.b
    of = c.cast(offset2bag, INT64)
    if offset2bag.size != indices.size:
        of = _bag_of_each(c, offsets, indices.size)
    bags = _Bags(c, weight.shape, indices, of, padding_idx)
    rows = c.widen(take(c, weight, indices, 0))
    product = b.multiply(rows, c.cast(take(c, grad, of, 0), rows.dtype))
    total = b.reduce_sum(product, (1,))
    return c.result(b.select(bags.kept, total, c.full(total.shape, 0, total.dtype)))


@lowering(
    "aten.embedding_renorm.default",
    "pjrt_bridge.embedding_renorm.default",
    values=("max_norm", "norm_type"),
)
def embedding_renorm(
    c: Context, x: Value, indices: Value, max_norm: Number, norm_type: Number
) -> Value:
    """The rows that are in `indices` scaled down to `max_norm` where they are longer."""
    b = c.b
    wide = c.widen(x)
    norm = norm_over(c, b.abs(wide), (1,), norm_type)
    used = into_rows(
        c,
        c.full((x.shape[0], 1), False, BOOL),
        c.reshape(c.cast(indices, INT64), (indices.size,)),
        c.full((indices.size, 1), True, BOOL),
        "or",
    )
    limit, margin = (c.full(norm.shape, v, norm.dtype) for v in (max_norm, 1e-7))
    long = b.and_(b.compare(norm, limit, "GT"), c.reshape(used, norm.shape))
    factor = b.divide(limit, b.add(norm, margin))
    factor = b.select(long, factor, c.full(norm.shape, 1, norm.dtype))
    return c.result(b.multiply(wide, c.along(factor, wide.shape, 0)))
