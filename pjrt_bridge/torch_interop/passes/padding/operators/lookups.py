"""Embeddings, gathers and scatters with padded dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    MixesRows,
    PaddedDims,
    Size,
    extent_of,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.operators import masks
from pjrt_bridge.torch_interop.passes.padding.operators.moves import dropped_one, shifted
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def _positions(use: Use, index: fx.Node, size: Size) -> None:
    """Have positions in padding be 0, which has to exist.

    Where the size depends on data, it is known too late to ask for an element. Then there has to be
    a position instead: PyTorch refuses each of them where there is no element.
    """
    use.fill(index, 0)
    if use.dims(index):
        use.needs_elements(product(use.shape(index)) if compat.depends_on_data(size) else size)


def _counted_from_the_front(e: Emission, index: fx.Node, size: Size) -> fx.Node:
    """Negative positions count from the end of the call's rows, not from that of the padding."""
    size = e.actual(size)
    before = e.call("aten.lt.Scalar", index, 0)
    return e.call("aten.where.self", before, e.call("aten.add.Tensor", index, size), index)


def embedded(use: Use) -> PaddedDims:
    """Rows of a table."""
    found, sizes = use.dims("weight"), use.shape("weight")
    _positions(use, use["indices"], sizes[0])
    if 0 in found:
        use.needs_prefix(found[0])
    left = shifted(dropped_one(found, 0), use.rank("indices") - 1)
    return {**use.dims("indices"), **left}


def embedded_backward(use: Use) -> PaddedDims:
    """Gradients of a table: sums of the rows' gradients."""
    if use["scale_grad_by_freq"]:
        raise MixesRows("it counts rows of the dimension")
    last = use.rank("grad_output") - 1
    use.same(use.dims("indices"), dropped_one(use.dims("grad_output"), last))
    use.fill("grad_output", 0)
    use.fill("indices", 0)
    count, columns = use.number(use["num_weights"]), use.dims("grad_output")
    found = {1: columns[last]} if last in columns else {}
    return {**found, 0: extent_of(count)} if use.is_padded(count) else found


def _looked_up(use: Use) -> tuple[PaddedDims, Mapping[int, fx.Node], Mapping[int, Size]]:
    """The padded dimensions of what indices select, the indices, and the padded sizes they are in.

    Raises:
        MixesRows: the padding of a dimension is not all behind it.
    """
    indices = {at: index for at, index in enumerate(use["indices"]) if index is not None}
    found, sizes = use.dims("self"), use.shape("self")
    for at, index in indices.items():
        if at in found:
            use.needs_prefix(found[at])
        _positions(use, index, sizes[at])
    inner = use.aligned(indices.values())
    rank = max(map(use.rank, indices.values()))
    first, last = min(indices), max(indices)
    front = first if last - first + 1 == len(indices) else 0
    left = [dim for dim in range(len(sizes)) if dim not in indices]
    moved = {dim: at if at < front else at + rank for at, dim in enumerate(left)}
    kept = {moved[dim]: extent for dim, extent in found.items() if dim not in indices}
    inside = {at: sizes[at] for at in indices if at in found}
    return {**shifted(inner, front), **kept}, indices, inside


def indexed(use: Use) -> PaddedDims:
    """Elements at positions, or where a mask is true."""
    if _has_masks(use):
        alone = _only_mask(use)
        if alone is not None and use.is_padded(use.shape(use.result)[alone[1]]):
            return masks.selected_so_many(use, *alone)
        return masks.selected(use)
    result, indices, inside = _looked_up(use)
    if inside:

        def emit(e: Emission) -> Any:
            return e.call("aten.index.Tensor", e[use["self"]], _chosen(e, indices, inside))

        use.emit = emit
    return result


def _has_masks(use: Use) -> bool:
    return any(index is not None and masks.is_mask(index) for index in use["indices"])


def _only_mask(use: Use) -> tuple[fx.Node, int] | None:
    """A mask that is the only index, and its first dimension."""
    given = [(index, at) for at, index in enumerate(use["indices"]) if index is not None]
    is_alone = len(given) == 1 and compat.promise(given[0][0]).dtype is torch.bool
    return given[0] if is_alone else None


def _chosen(
    e: Emission, indices: Mapping[int, fx.Node], inside: Mapping[int, Size]
) -> list[fx.Node | None]:
    """Indices whose positions in padded dimensions are those of the call."""
    return [
        None
        if at not in indices
        else e.within(_counted_from_the_front(e, e[indices[at]], inside[at]), inside[at])
        if at in inside
        else e[indices[at]]
        for at in range(max(indices) + 1)
    ]


def written_at(use: Use) -> PaddedDims:
    """Elements written or added at positions.

    In padding nothing is added, at position 0; what is written there, or added and the same for all
    positions, goes to a row behind all, which is dropped.
    """
    values = use["values"]
    given = {at: index for at, index in enumerate(use["indices"]) if index is not None}
    if len(given) == 1 and use.rank(values) == 0 and not use["accumulate"]:
        ((at, index),) = given.items()
        if compat.promise(index).dtype is torch.bool:
            return _written_where(use, index, at)
    if _has_masks(use):
        alone = _only_mask(use)
        if alone is not None and use["accumulate"] and alone[1] in use.dims(values):
            return masks.added(use, *alone)
        covered = [use.rank(index) if masks.is_mask(index) else 1 for index in given.values()]
        others = [use.rank(index) for index in given.values() if not masks.is_mask(index)]
        _check_values(use, masks.selected(use), use.rank("self") - sum(covered) + max([1, *others]))
        return use.dims("self")
    result, indices, inside = _looked_up(use)
    rank = len(use.shape("self")) - len(indices) + max(map(use.rank, indices.values()))
    _check_values(use, result, rank)
    padded = {at: index for at, index in indices.items() if use.dims(index)}
    inner = use.aligned(indices.values()).values()
    # What is added at positions in padding is padding, too, or the same for all positions.
    spread = sum(extent in inner for extent in use.dims(values).values()) < len(inner)
    if padded and (spread or not use["accumulate"]):
        use.emit = lambda e: _written_apart(e, use, indices, padded, inside)
        return use.dims("self")
    use.fill(values, 0)
    if inside:
        use.emit = lambda e: e.repeat(use.node, indices=_chosen(e, indices, inside))
    return use.dims("self")


def _check_values(use: Use, written: PaddedDims, rank: int) -> None:
    """Check that values are padded as the elements that they are written to.

    Raises:
        MixesRows: they are not.
    """
    values = use["values"]
    for at, extent in use.aligned([values], rank).items():
        if at not in written:
            raise MixesRows("it combines the dimension with one of another size")
        use.unified(written[at], extent)
    use.check_broadcast(values, written, rank)


def _written_where(use: Use, mask: fx.Node, first: int) -> PaddedDims:
    """One element written where a mask is true, which has some dimensions from a first one on."""
    found = use.dims("self")
    own = shifted(use.dims(mask), first)
    covered = range(first, first + use.rank(mask))
    use.same(own, {dim: extent for dim, extent in found.items() if dim in covered})
    return found


def _written_apart(
    e: Emission,
    use: Use,
    indices: Mapping[int, fx.Node],
    padded: Mapping[int, fx.Node],
    inside: Mapping[int, Size],
) -> fx.Node:
    """What is written with one more row behind each dimension that padding of indices is in."""
    sizes, rank = use.shape("self"), use.rank("self")
    chosen = _chosen(e, indices, inside)
    longer = e[use["self"]]
    for at, index in padded.items():
        longer = e.longer(longer, at, rank, 1)
        place = chosen[at] if at in inside else _counted_from_the_front(e, e[index], sizes[at])
        assert place is not None
        chosen[at] = _behind(e, place, use.dims(index), use.rank(index), sizes[at])
    made = e.repeat(use.node, self=longer, indices=chosen)
    for at in padded:
        made = e.call("aten.slice.Tensor", made, at, 0, e.size(sizes[at]))
    return e.call("aten.clone.default", made, memory_format=torch.contiguous_format)


def _behind(e: Emission, places: fx.Node, dims: PaddedDims, rank: int, size: Size) -> fx.Node:
    """Positions, of which those in padding are behind all rows."""
    row = e.call("aten.full.default", [], e.size(size), dtype=torch.int64)
    return e.call("aten.where.self", e.mask(dims, rank), places, row)


def index_selected(use: Use) -> PaddedDims:
    """Rows at positions."""
    found, sizes = use.dims("self"), use.shape("self")
    (dim,) = use.named("dim", len(sizes))
    _positions(use, use["index"], sizes[dim])
    if dim in found:
        use.needs_prefix(found[dim])

        def emit(e: Emission) -> Any:
            index = e.within(_counted_from_the_front(e, e[use["index"]], sizes[dim]), sizes[dim])
            return e.call("aten.index_select.default", e[use["self"]], dim, index)

        use.emit = emit
    others = {at: extent for at, extent in found.items() if at != dim}
    return {**others, **shifted(use.dims("index"), dim)}


def gathered(use: Use) -> PaddedDims:
    """An element of each row at a position."""
    found, sizes, index = use.dims("self"), use.shape("self"), use.dims("index")
    (dim,) = use.named("dim", len(sizes))
    _positions(use, use["index"], sizes[dim])
    same_rows(use, found, index, dim)
    if dim in found:
        use.needs_prefix(found[dim])

        def emit(e: Emission) -> Any:
            at = e.within(_counted_from_the_front(e, e[use["index"]], sizes[dim]), sizes[dim])
            return e.call("aten.gather.default", e[use["self"]], dim, at)

        use.emit = emit
    return index


def same_rows(use: Use, one: PaddedDims, other: PaddedDims, besides: int) -> None:
    """Require that two values are padded alike in all dimensions but one."""
    use.same(dropped_one(one, besides), dropped_one(other, besides))


def repeated(use: Use) -> PaddedDims:
    """The index of each element, as often as is said; behind all of them, that of some element."""
    if use["output_size"] is None:
        raise MixesRows("the size of its result depends on data")
    rows, (count,) = use.dims("repeats"), use.shape("repeats")
    if 0 in rows:
        use.needs_prefix(rows[0])
    use.fill("repeats", 0)
    use.needs_elements(count)
    found = use.promised(use.result)

    def emit(e: Emission) -> Any:
        ends = e.call("aten.cumsum.default", e[use["repeats"]], 0)
        size = e.size(use.number(use["output_size"]))
        index = e.call("aten.arange.default", size, dtype=torch.int64)
        made = e.call("aten.searchsorted.Tensor", ends, index, right=True)
        made = e.call("aten.clamp.default", made, None, e.size(count - 1))
        return e.call("aten._to_copy.default", made, dtype=use.result.dtype)

    use.emit = emit
    return found


def scattered(use: Use) -> PaddedDims:
    """Elements written or added in each row at positions."""
    found, sizes, index = use.dims("self"), use.shape("self"), use.dims("index")
    (dim,) = use.named("dim", len(sizes))
    adds = "scatter_add" in str(use.node.target) or use["reduce"] == "sum"
    adds = adds and use["include_self"] is not False
    if dim in index and not adds:
        return _scattered_apart(use, dim)
    if dim in found:
        # Positions are never negative here.
        use.needs_prefix(found[dim])
    _positions(use, use["index"], sizes[dim])
    same_rows(use, found, index, dim)
    source = use["src"]
    if isinstance(source, fx.Node):
        same_rows(use, index, use.dims(source), besides=-1)
        if dim in index:
            use.fill(source, 0, [dim])
    return found


def _scattered_apart(use: Use, dim: int) -> PaddedDims:
    """Elements written at positions; those in padding go to a row behind all, which is dropped."""
    found, sizes, index = use.dims("self"), use.shape("self"), use.dims("index")
    rank = len(sizes)
    if dim in found:
        use.needs_prefix(found[dim])
    same_rows(use, found, index, dim)
    if isinstance(use["src"], fx.Node):
        same_rows(use, index, use.dims(use["src"]), besides=-1)
    others = {at: extent for at, extent in index.items() if at != dim}
    use.fill("index", 0, others)

    def emit(e: Emission) -> Any:
        longer = e.longer(e[use["self"]], dim, rank, 1)
        places = _behind(e, e[use["index"]], {dim: index[dim]}, rank, sizes[dim])
        made = e.repeat(use.node, self=longer, index=places)
        return e.call("aten.slice.Tensor", made, dim, 0, e.size(sizes[dim]))

    use.emit = emit
    return found


def index_added(use: Use) -> PaddedDims:
    """Rows added at positions, which are never negative; in padding nothing is, at position 0."""
    dim = _written_rows(use)
    _positions(use, use["index"], use.shape("self")[dim])
    use.fill("source", 0, [dim])
    return use.dims("self")


def index_copied(use: Use) -> PaddedDims:
    """Rows written at positions, which are never negative; those in padding are dropped."""
    dim = _written_rows(use)
    if use.dims("index"):
        rank, size = use.rank("self"), use.shape("self")[dim]

        def emit(e: Emission) -> Any:
            longer = e.longer(e[use["self"]], dim, rank, 1)
            places = _behind(e, e[use["index"]], use.dims("index"), 1, size)
            made = e.repeat(use.node, self=longer, index=places)
            kept = e.call("aten.slice.Tensor", made, dim, 0, e.size(size))
            return e.call("aten.clone.default", kept, memory_format=torch.contiguous_format)

        use.emit = emit
    return use.dims("self")


def _written_rows(use: Use) -> int:
    """The dimension of the rows of `source` that are written at positions into `self`.

    Raises:
        MixesRows: positions and rows are not padded alike.
    """
    found, source, index = use.dims("self"), use.dims("source"), use.dims("index")
    (dim,) = use.named("dim", use.rank("self"))
    if dim in found:
        use.needs_prefix(found[dim])
    if (0 in index) != (dim in source):
        raise MixesRows("it combines the dimension with one of another size")
    if 0 in index:
        use.unified(index[0], source[dim])
    same_rows(use, found, source, dim)
    return dim
