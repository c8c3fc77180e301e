"""Rules of operators that only move elements: where their results have padded dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MergedOtherwise,
    MixesRows,
    PaddedDims,
    Size,
    extent_of,
    product,
    regrouped,
)
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_END = torch.iinfo(torch.int64).max


def dropped(dims: PaddedDims, gone: Iterable[int]) -> PaddedDims:
    """Dimensions renumbered after some are dropped."""
    gone = set(gone)
    return {
        dim - sum(other < dim for other in gone): extent
        for dim, extent in dims.items()
        if dim not in gone
    }


def same(use: Use) -> PaddedDims:
    """Every dimension stays where it is."""
    return use.dims("self")


def written(use: Use) -> PaddedDims:
    """A value in the place of another, which has its padding where that had it."""
    return use.aligned([use["src"], use["self"]])


def permuted(use: Use) -> PaddedDims:
    """The dimensions in another order."""
    found, rank = use.dims("self"), use.rank("self")
    order = [dim % rank for dim in use["dims"]]
    return {at: found[dim] for at, dim in enumerate(order) if dim in found}


def transposed(use: Use) -> PaddedDims:
    """Two dimensions swapped."""
    rank = max(use.rank("self"), 1)
    one, other = use["dim0"] % rank, use["dim1"] % rank
    swapped = {one: other, other: one}
    return {swapped.get(dim, dim): extent for dim, extent in use.dims("self").items()}


def reversed_dims(use: Use) -> PaddedDims:
    """The dimensions in reverse."""
    last = use.rank("self") - 1
    return {last - dim: extent for dim, extent in use.dims("self").items()}


def unsqueezed(use: Use) -> PaddedDims:
    """With one more dimension."""
    return moved_up(use.dims("self"), use["dim"] % (use.rank("self") + 1))


def moved_up(dims: PaddedDims, at: int) -> PaddedDims:
    """Dimensions renumbered after one was added."""
    return {dim + (dim >= at): extent for dim, extent in dims.items()}


def squeezed(use: Use) -> PaddedDims:
    """Without dimensions whose size is 1."""
    found, shape = use.dims("self"), use.shape("self")
    named = use.named("dim", len(shape))
    if found.keys() & named:
        raise MixesRows("it drops the dimension where its size is 1")
    return dropped(found, [dim for dim in named if shape[dim] == 1])


def selected(use: Use) -> PaddedDims:
    """One row."""
    found, shape = use.dims("self"), use.shape("self")
    (dim,) = use.named("dim", len(shape))
    if dim in found:
        use.needs_prefix(found[dim])
    position = use.row(use["index"], dim)
    if use.is_padded(position):

        def emit(e: Emission) -> Any:
            made = e.rows(e[use["self"]], dim, position, 1, shape[dim])
            return e.call("aten.squeeze.dim", made, dim)

        use.emit = emit
    elif use.is_padded(use.number(use["index"])):
        use.emit = lambda e: e.repeat(use.node, index=position)
    return dropped(found, [dim])


def unbound(use: Use) -> PaddedDims:
    """All rows of a dimension, each by itself."""
    found = use.dims("self")
    (dim,) = use.named("dim", use.rank("self"))
    if dim in found:
        raise MixesRows("it gives as many results as there are rows")
    return dropped(found, [dim])


def sliced(use: Use) -> PaddedDims:
    """Some rows of a dimension, or all."""
    found, shape, result = use.dims("self"), use.shape("self"), use.shape(use.result)
    (dim,) = use.named("dim", len(shape))
    start, end = use.number(use["start"]), use.number(use["end"])
    step, whole = use.number(use["step"] or 1), end in (None, _END, shape[dim])
    if dim not in found:
        if use.is_padded(start) or use.is_padded(result[dim]):
            _take_rows(use, dim, use.start(use["start"], dim), step)
            return {**found, dim: extent_of(result[dim])} if use.is_padded(result[dim]) else found
        if use.is_padded(end):
            raise MixesRows("it uses the size as a number")
        use.result_fill = use.rows("self").fill
        return found
    if whole and step == 1 and start in (None, 0) and end in (None, _END):
        return found
    use.needs_prefix(found[dim])
    begin = use.start(use["start"], dim)
    if use.is_padded(begin) or use.is_padded(end) or not whole:
        _take_rows(use, dim, begin, step)
    elif use.is_padded(start):
        use.emit = lambda e: e.repeat(use.node, start=begin)
    return {**dropped_one(found, dim), **_sized(use, dim, result[dim])}


def shifted(dims: PaddedDims, by: int) -> PaddedDims:
    """Dimensions renumbered after so many were added before them."""
    return {dim + by: extent for dim, extent in dims.items()}


def dropped_one(dims: PaddedDims, dim: int) -> PaddedDims:
    """Without one dimension; the others keep their numbers."""
    return {at: extent for at, extent in dims.items() if at != dim}


def _sized(use: Use, dim: int, size: Any) -> PaddedDims:
    return {dim: extent_of(size)} if use.is_padded(size) else {}


def _take_rows(use: Use, dim: int, start: Any, step: Any) -> None:
    """Have rows taken from a position that the call may decide."""
    size, count = use.shape("self")[dim], use.shape(use.result)[dim]

    def emit(e: Emission) -> Any:
        return e.rows(e[use["self"]], dim, start, count, size, step)

    use.needs_elements(size)
    use.emit = emit


def split(use: Use) -> list[PaddedDims]:
    """In pieces along a dimension."""
    found, shape = use.dims("self"), use.shape("self")
    (dim,) = use.named("dim", len(shape))
    others = dropped_one(found, dim)
    pieces = [use.shape(result)[dim] for result in use.results]
    if dim not in found and not any(map(use.is_padded, pieces)):
        return [others for _ in pieces]
    if dim in found:
        use.needs_prefix(found[dim])
    starts = [sum(pieces[:at]) for at in range(len(pieces))]

    def emit(e: Emission) -> Any:
        return [
            e.rows(e[use["self"]], dim, start, count, shape[dim])
            for start, count in zip(starts, pieces, strict=True)
        ]

    use.needs_elements(shape[dim])
    use.emit = emit
    return [{**others, **_sized(use, dim, count)} for count in pieces]


def _alike(use: Use, tensors: list[fx.Node], besides: int | None = None) -> dict[int, Extent]:
    """The padded dimensions of several tensors, which must be the same in all, besides one."""
    first, *others = tensors
    found = {dim: extent for dim, extent in use.dims(first).items() if dim != besides}
    for other in others:
        own = {dim: extent for dim, extent in use.dims(other).items() if dim != besides}
        if own.keys() != found.keys() or use.rank(other) != use.rank(first):
            raise MixesRows("its arguments have the size in different dimensions")
        for dim, extent in own.items():
            use.unified(found[dim], extent)
    return found


def stacked(use: Use) -> PaddedDims:
    """Several in a new dimension."""
    rank = use.rank(use["tensors"][0])
    return moved_up(_alike(use, use["tensors"]), use["dim"] % (rank + 1))


def concatenated(use: Use) -> PaddedDims:
    """Several along a dimension; an empty vector goes with tensors of any number of dimensions."""
    tensors = [item for item in use["tensors"] if use.shape(item) != [0]]
    if not tensors:
        return {}
    rank = use.rank(tensors[0])
    (dim,) = use.named("dim", rank)
    found = _alike(use, tensors, dim)
    if not any(dim in use.dims(item) for item in tensors):
        return found
    for item in tensors:
        if dim in use.dims(item):
            use.needs_prefix(use.dims(item)[dim])
    sizes = [use.shape(item)[dim] for item in tensors]
    total = use.shape(use.result)[dim]
    if len(tensors) > 1:
        use.emit = lambda e: _joined(e, use, tensors, dim, sizes)
        if all(size == 1 for size in sizes[1:]):
            fills = {use.rows(item).fill for item in tensors if use.dims(item)}
            use.result_fill = 0 if fills == {0} else None
    return {**found, **_sized(use, dim, total)}


def _joined(e: Emission, use: Use, tensors: list[fx.Node], dim: int, sizes: list[Any]) -> Any:
    """One behind another, without padding between them."""
    made, before, rank = e[tensors[0]], sizes[0], use.rank(tensors[0])
    for item, size in zip(tensors[1:], sizes[1:], strict=True):
        other, after = e[item], before + size
        if not use.is_padded(before):
            made = e.call("aten.cat.default", [made, other], dim)
        elif size == 1:
            made = e.longer(made, dim, rank, 1)
            at = e.call("aten.eq.Tensor", e.positions(extent_of(after)), e.actual(before))
            made = e.call("aten.where.self", e.along(at, dim, rank), other, made)
        else:
            # Rows of the other begin where the rows before end in the call.
            positions = e.positions(extent_of(after))
            moved = e.call("aten.sub.Tensor", positions, e.actual(before))
            moved = e.call("aten.add.Tensor", moved, e.size(before))
            first = e.call("aten.lt.Tensor", positions, e.actual(before))
            index = e.call("aten.where.self", first, positions, moved)
            index = e.call("aten.clamp.default", index, None, e.size(after - 1))
            joined = e.call("aten.cat.default", [made, other], dim)
            made = e.call("aten.index_select.default", joined, dim, index)
        before = after
    return made


def expanded(use: Use) -> PaddedDims:
    """Repeated without a copy."""
    own, result = use["self"], use.result
    found = {**use.promised_alike(result), **use.aligned([own], result.dim())}
    use.check_broadcast(own, found, result.dim())
    return found


def repeated(use: Use) -> PaddedDims:
    """Repeated in other dimensions, or a single row as often as there are rows."""
    result, shape = use.result, use.shape("self")
    repeats = list(map(use.number, use["repeats"]))
    new = len(repeats) - len(shape)
    own = {dim + new: extent for dim, extent in use.dims("self").items()}
    found = dict(own)
    for dim, size in enumerate(use.shape(result)):
        if dim in own:
            # Repeated as a whole, padding and all.
            if repeats[dim] != 1:
                if use.is_padded(repeats[dim]):
                    raise MixesRows("it repeats the dimension as often as a size says")
                found[dim] = (repeats[dim], *own[dim])
        elif use.is_padded(size):
            inner = shape[dim - new] if dim >= new else 1
            found[dim] = tuple(item for item in (repeats[dim], inner) if item != 1)
    return found


def unfolded(use: Use) -> PaddedDims:
    """Windows along a dimension, whose elements are a new last dimension."""
    found, result = use.dims("self"), use.shape(use.result)
    (dim,) = use.named("dimension", use.rank("self"))
    if dim not in found:
        return found
    use.needs_prefix(found[dim])
    if any(use.is_padded(use.number(use[name])) for name in ("size", "step")):
        raise MixesRows("it uses the size as a number")
    return {**dropped_one(found, dim), **_sized(use, dim, result[dim])}


def viewed(use: Use) -> PaddedDims:
    """In row-major order with other sizes."""
    dims, shape, result = use.dims("self"), use.shape("self"), use.shape(use.result)
    factors = [dims.get(dim, (size,)) for dim, size in enumerate(shape)]
    # Torch may know the sizes by other expressions, which are equal in calls.
    sizes = use["size"] or use["shape"] or []
    asked = map(use.number, sizes)
    pairs = [(a, b) for a, b in zip(asked, result, strict=False) if a not in (-1, b)]
    use.equal += [pair for pair in pairs if any(map(use.is_padded, pair))]
    # What stands for the argument may have other strides, of which there is no view.
    use.emit = lambda e: e.call("aten.reshape.default", e[use["self"]], e.mapped(sizes))
    try:
        return regrouped(factors, result, use.symbols, use.equal)
    except MergedOtherwise:
        raise
    except MixesRows:
        return _viewed_anew(use, factors, shape, result)


def _viewed_anew(
    use: Use, factors: list[Extent], shape: list[Size], result: list[Size]
) -> PaddedDims:
    """Dimensions that are divided across each other: their elements are moved, one by one."""
    ends = 0
    # What varies faster than all that is padded is moved as a whole.
    while (
        ends < min(len(shape), len(result))
        and not use.is_padded(shape[-1 - ends])
        and shape[-1 - ends] == result[-1 - ends]
    ):
        ends += 1
    inner = shape[len(shape) - ends :]
    before = tuple(item for extent in factors[: len(shape) - ends] for item in extent if item != 1)
    after = tuple(item for item in result[: len(result) - ends] if item != 1)
    use.equal.append((product(before), product(after)))

    def emit(e: Emission) -> Any:
        sizes = list(map(e.size, inner))
        flat = e.call("aten.reshape.default", e[use["self"]], [e.size(product(before)), *sizes])
        moved = e.merged(flat, 0, before, after)
        return e.call("aten.view.default", moved, [e.size(size) for size in result])

    use.emit = emit
    use.repeats_elements = True
    return use.promised(use.result)


def flipped(use: Use) -> PaddedDims:
    """Backwards."""
    found, shape = use.dims("self"), use.shape("self")
    inside = sorted(found.keys() & use.named("dims", len(shape)))
    if not inside:
        return found
    for dim in inside:
        use.needs_prefix(found[dim])
        use.needs_elements(shape[dim])

    def emit(e: Emission) -> Any:
        made = e[use["self"]]
        for dim in inside:
            # Positions of padding would be negative.
            last = e.call("aten.sub.Tensor", e.actual(shape[dim]), 1)
            index = e.call("aten.sub.Tensor", last, e.positions(found[dim]))
            index = e.call("aten.clamp.default", index, 0)
            made = e.call("aten.index_select.default", made, dim, index)
        others = sorted(use.named("dims", len(shape)) - set(inside))
        return e.call("aten.flip.default", made, others) if others else made

    use.emit = emit
    return found


def rolled(use: Use) -> PaddedDims:
    """Moved around."""
    found, shape = use.dims("self"), use.shape("self")
    dims = use["dims"] or []
    if not dims and found:
        raise MixesRows("it moves all elements around")
    inside = [(dim % len(shape), shift) for dim, shift in zip(dims, use["shifts"], strict=True)]
    if not found.keys() & {dim for dim, _ in inside}:
        return found
    if any(use.is_padded(use.number(shift)) for _, shift in inside):
        raise MixesRows("it uses the size as a number")
    for dim, _ in inside:
        if dim in found:
            use.needs_prefix(found[dim])
            use.needs_elements(shape[dim])

    def emit(e: Emission) -> Any:
        made = e[use["self"]]
        for dim, shift in inside:
            if dim in found:
                index = e.call("aten.sub.Tensor", e.positions(found[dim]), shift)
                index = e.call("aten.remainder.Tensor", index, e.actual(shape[dim]))
                made = e.call("aten.index_select.default", made, dim, index)
            else:
                made = e.call("aten.roll.default", made, [shift], [dim])
        return made

    use.emit = emit
    return found
