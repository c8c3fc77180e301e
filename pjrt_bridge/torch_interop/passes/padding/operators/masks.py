"""What masks select of padded tensors, whose elements are in row-major order.

Positions of padded elements whose padding is behind each dimension are in the order in which they
are without it. So where padding counts as false, the same elements are selected, in the same order.
How many these are depends on data, and is no size that is padded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import label
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MixesRows,
    PaddedDims,
    extent_of,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.operators.moves import dropped_one, shifted
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def scattered(use: Use) -> PaddedDims:
    """Elements where a mask is true replaced by those of a tensor, one after the other."""
    found, count = use.aligned([use["self"], use["mask"]]), product(use.shape("source"))
    if compat.depends_on_data(count):
        use.emit = lambda e: e.repeat(use.node, mask=_in_full(e, use, found, use.result))
        return found
    use.needs_elements(count)

    def emit(e: Emission) -> Any:
        sizes = [e.size(size) for size in use.shape(use.result)]
        mask, place = _places(e, use, found, use.result)
        extent = _row_major(use, "source")
        source = e.call("aten.reshape.default", e[use["source"]], [-1])
        source = e.merged(source, 0, extent, extent_of(product(extent)))
        # Where the mask is true more often than there are elements, PyTorch raises.
        place = e.checked_positions(place, -1, product(extent) - 1, label(use.node))
        place = e.within(place, product(extent))
        made = e.call("aten.index_select.default", source, 0, place)
        made = e.call("aten.reshape.default", made, sizes)
        return e.call("aten.where.self", mask, made, e[use["self"]])

    use.emit = emit
    return found


def scattered_backward(use: Use) -> PaddedDims:
    """The gradient of the tensor that elements were taken from."""
    found = use.aligned([use["grad_output"], use["mask"]])
    result = use.promised(use.result)

    def emit(e: Emission) -> Any:
        grad = use["grad_output"]
        mask, place = _places(e, use, found, compat.promise(grad))
        shape, dtype = use.shape(use.result), use.result.dtype
        count = e.size(product(shape))
        # What was not taken goes behind the last, which is dropped.
        behind = e.call("aten.full.default", [], count, dtype=torch.int64)
        mask = e.call("aten.reshape.default", mask, [-1])
        place = e.call("aten.where.self", mask, place, behind)
        given = e.call("aten.reshape.default", e[grad], [-1])
        none = e.call("aten.full.default", [e.size(product(shape) + 1)], 0, dtype=dtype)
        made = e.call("aten.index_put.default", none, [place], given)
        order = e.place_in_call(tuple(item for item in shape if item != 1) or (1,))
        made = e.call("aten.index_select.default", made, 0, order)
        return e.call("aten.reshape.default", made, [e.size(size) for size in shape])

    use.emit = emit
    return result


def _places(
    e: Emission, use: Use, dims: PaddedDims, whole: torch.Tensor
) -> tuple[fx.Node, fx.Node]:
    """A mask in full that is false in padding, and for each element how many are true before it."""
    mask = _in_full(e, use, dims, whole)
    place = e.call("aten.reshape.default", mask, [-1])
    place = e.call("aten.cumsum.default", place, 0, dtype=torch.int64)
    return mask, e.call("aten.sub.Tensor", place, 1)


def _in_full(e: Emission, use: Use, dims: PaddedDims, whole: torch.Tensor) -> fx.Node:
    """The mask of a call in the shape of a promise, false in padding."""
    sizes = [e.size(size) for size in use.shape(whole)]
    mask = e.call("aten.expand.default", e[use["mask"]], sizes)
    return e.filled(mask, dims, whole.dim(), 0, torch.bool) if dims else mask


def _row_major(use: Use, name: str) -> Extent:
    """A tensor's elements as one dimension."""
    dims = use.dims(name)
    factors = (item for at, size in enumerate(use.shape(name)) for item in dims.get(at, (size,)))
    return tuple(item for item in factors if item != 1) or (1,)


def positions(use: Use) -> PaddedDims:
    """Positions of so many elements that are not zero."""
    for extent in use.dims("self").values():
        use.needs_prefix(extent)
    use.fill("self", 0)
    count = use.number(use["size"])
    return {0: extent_of(count)} if use.is_padded(count) else {}


def nonzero(use: Use) -> PaddedDims:
    """Positions of all elements that are not zero."""
    for extent in use.dims("self").values():
        use.needs_prefix(extent)
    use.fill("self", 0)
    return {}


def is_mask(index: fx.Node) -> bool:
    """Whether an index says of each element whether it is selected."""
    return compat.promise(index).dtype in (torch.bool, torch.uint8)


def selected(use: Use) -> PaddedDims:
    """What masks select, which may stand beside positions; each has some dimensions of its own.

    Raises:
        MixesRows: a mask is not padded as what it selects of, or positions are in padded rows.
    """
    found, covered, rank, at = use.dims("self"), list[int](), 1, 0
    for index in use["indices"]:
        mask = index is not None and is_mask(index)
        own = list(range(at, at + (use.rank(index) if mask else 1)))
        at += len(own)
        if index is None:
            continue
        inside = {dim: extent for dim, extent in found.items() if dim in own}
        if mask:
            use.same(shifted(use.dims(index), own[0]), inside)
            use.fill(index, 0)
        elif inside or use.dims(index):
            raise MixesRows("it looks up with a mask, and positions beside it")
        else:
            rank = max(rank, use.rank(index))
        covered += own
    first, last = covered[0], covered[-1]
    front = first if last - first + 1 == len(covered) else 0
    left = [dim for dim in range(use.rank("self")) if dim not in covered]
    moved = {dim: to if to < front else to + rank for to, dim in enumerate(left)}
    return {moved[dim]: extent for dim, extent in found.items() if dim in moved}


def selected_so_many(use: Use, mask: fx.Node, first: int) -> PaddedDims:
    """What a mask selects, where an argument tells of how many elements: in a backward graph.

    Args:
        use: see `selected`.
        mask: the only index.
        first: its first dimension in `self`.
    """
    found, shape, rank = selected(use), use.shape("self"), use.rank(mask)
    count = use.shape(use.result)[first]
    for extent in use.dims(mask).values():
        use.needs_elements(product(extent))

    def emit(e: Emission) -> Any:
        flat = e.call("aten.reshape.default", e[mask], [-1])
        place = e.call("aten.nonzero_static.default", flat, size=e.size(count), fill_value=0)
        place = e.call("aten.select.int", place, 1, 0)
        sizes = [*map(e.size, shape[:first]), -1, *map(e.size, shape[first + rank :])]
        rows = e.call("aten.reshape.default", e[use["self"]], sizes)
        return e.call("aten.index_select.default", rows, first, place)

    use.emit = emit
    return {**found, first: extent_of(count)}


def added(use: Use, mask: fx.Node, first: int) -> PaddedDims:
    """Rows added where a mask is true, as gradients of those that it selected: how many are padded.

    Args:
        use: of `index_put` that accumulates.
        mask: the only index.
        first: its first dimension in `self`.
    """
    found, shape = use.dims("self"), use.shape("self")
    rows, rank = use.dims("values"), use.rank(mask)
    use.needs_prefix(rows[first])
    use.fill(mask, 0)
    count = use.shape("values")[first]
    use.needs_elements(count)
    covered = {dim - first: extent for dim, extent in found.items() if 0 <= dim - first < rank}
    use.same(use.dims(mask), covered)
    left = {dim: extent for dim, extent in found.items() if dim - first not in range(rank)}
    moved = {dim if dim < first else dim - rank + 1: extent for dim, extent in left.items()}
    use.same(moved, dropped_one(rows, first))

    def emit(e: Emission) -> Any:
        place = e.call("aten.reshape.default", e[mask], [-1])
        place = e.call("aten.cumsum.default", place, 0, dtype=torch.int64)
        place = e.call("aten.sub.Tensor", place, 1)
        place = e.checked_positions(place, -1, count - 1, label(use.node))
        taken = e.call("aten.index_select.default", e[use["values"]], first, e.within(place, count))
        taken = e.call("aten.reshape.default", taken, [e.size(size) for size in shape])
        more = e.call("aten.add.Tensor", e[use["self"]], taken)
        seen = e[mask]
        for at in (*range(first), *range(first + rank, len(shape))):
            seen = e.call("aten.unsqueeze.default", seen, at)
        return e.call("aten.where.self", seen, more, e[use["self"]])

    use.emit = emit
    return found


def distinct(use: Use) -> list[PaddedDims]:
    """The distinct elements, which of them each is, and how many of each there are.

    Those in padding are dropped before: no number could stand there, as each NaN is distinct.
    """
    found, rank = use.dims("self"), use.rank("self")
    if use["dim"] is not None:
        raise MixesRows("it compares rows of the dimension")

    def emit(e: Emission) -> Any:
        sizes = [e.size(size) for size in use.shape("self")]
        mask = e.call("aten.expand.default", e.mask(found, rank), sizes)
        made = e.repeat(use.node, self=e.call("aten.index.Tensor", e[use["self"]], [mask]))
        results = [e.item(made, at) for at in range(3)]
        if use["return_inverse"]:
            none = e.call("aten.full.default", sizes, 0, dtype=torch.int64)
            results[1] = e.call("aten.masked_scatter.default", none, mask, results[1])
        return results

    use.emit = emit
    return [{}, found if use["return_inverse"] else {}, {}]
