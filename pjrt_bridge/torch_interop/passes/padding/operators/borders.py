"""Borders of tensors along padded dimensions: of a number (`constant_pad_nd`), or repeated rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, Size, extent_of
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def bordered(use: Use) -> PaddedDims:
    """Rows of one number before and behind; negative counts take rows away."""
    found, pad = use.dims("self"), [use.number(item) for item in use["pad"]]
    rank, result = use.rank("self"), use.shape(use.result)
    borders = {dim: [*pad[2 * (rank - 1 - dim) :][:2], 0, 0][:2] for dim in range(rank)}
    # Where a call decides how many rows these are, all are moved to their places.
    moved = {dim: own for dim, own in borders.items() if any(map(use.is_padded, own))}
    made = {dim: extent for dim, extent in found.items() if dim not in moved}
    for dim in made:
        before, after = borders[dim]
        if before or after:
            use.needs_prefix(found[dim])
            use.fill("self", use["value"] or 0, [dim])
            made[dim] = extent_of(result[dim])
    for dim in moved:
        if dim in found:
            use.needs_prefix(found[dim])
        use.needs_elements(use.shape("self")[dim])
        if use.is_padded(result[dim]):
            made[dim] = extent_of(result[dim])
    if moved:
        use.emit = lambda e: _placed(e, use, pad, moved)
    return made


def _placed(e: Emission, use: Use, pad: list[Size], moved: dict[int, list[Size]]) -> Any:
    rank, shape = use.rank("self"), use.shape("self")
    value, dtype = use["value"] or 0, compat.promise(use["self"]).dtype
    rest = [0 if rank - 1 - at // 2 in moved else e.size(size) for at, size in enumerate(pad)]
    made = e.call("aten.constant_pad_nd.default", e[use["self"]], rest, value)
    other = e.call("aten.full.default", [], value, dtype=dtype)
    for dim, (before, _) in moved.items():
        size = use.shape(use.result)[dim]
        index = e.call("aten.arange.default", e.size(size), dtype=torch.int64)
        index = e.call("aten.sub.Tensor", index, e.actual(before))
        inside = e.call(
            "aten.logical_and.default",
            e.call("aten.ge.Scalar", index, 0),
            e.call("aten.lt.Tensor", index, e.count(shape[dim], torch.int64)),
        )
        made = e.call("aten.index_select.default", made, dim, e.within(index, shape[dim]))
        made = e.call("aten.where.self", e.along(inside, dim, rank), made, other)
    return made


def repeated_backward(count: int) -> Callable[[Use], PaddedDims]:
    """Gradients of `replication_pad`, which repeats the outermost rows of the last dimensions."""

    def dims(use: Use) -> PaddedDims:
        found, gradient, rank = use.dims("self"), use.dims("grad_output"), use.rank("self")
        inner = {dim for dim in (*found, *gradient) if dim >= rank - count}
        for dim in found.keys() | gradient.keys():
            if dim not in inner:
                if dim not in found or dim not in gradient:
                    raise MixesRows("it combines the dimension with one of another size")
                use.unified(found[dim], gradient[dim])
        for own in (found, gradient):
            for dim in inner & own.keys():
                use.needs_prefix(own[dim])
        for dim in inner:
            use.needs_elements(use.shape("self")[dim])
        if inner:
            use.fill("grad_output", 0, inner)
            use.emit = lambda e: _added_to_repeated(e, use, count)
        return found

    return dims


def _added_to_repeated(e: Emission, use: Use, count: int) -> Any:
    """Each row's gradient added to that of the row that it repeats, dimension by dimension."""
    made, rank, sizes = e[use["grad_output"]], use.rank("self"), use.shape("grad_output")
    pad, dtype = [use.number(item) for item in use["padding"]], use.result.dtype
    for dim in range(rank - count, rank):
        before, rows = pad[2 * (rank - 1 - dim)], use.shape("self")[dim]
        index = e.within(e.counted(-before, sizes[dim], 1), rows)
        sizes = [*sizes[:dim], rows, *sizes[dim + 1 :]]
        none = e.call("aten.full.default", list(map(e.size, sizes)), 0, dtype=dtype)
        made = e.call("aten.index_add.default", none, dim, index, made)
    return made
