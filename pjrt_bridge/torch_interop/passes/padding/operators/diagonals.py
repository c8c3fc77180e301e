"""Diagonals of padded matrices: taken, and replaced."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims, Size, extent_of
from pjrt_bridge.torch_interop.passes.padding.operators.moves import dropped
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def diagonal(use: Use) -> PaddedDims:
    """A diagonal, as a new last dimension; padding of either lies behind its elements."""
    count = use.shape(use.result)[-1]
    found = _on_diagonal(use, count)
    if not _is_whole(use, count):
        last, length = use.rank("self") - 2, _length(use)
        use.needs_elements(count)
        use.emit = lambda e: e.rows(e.repeat(use.node), last, 0, count, length)
    return found


def diagonal_in(use: Use) -> PaddedDims:
    """The elements of a diagonal replaced; what is behind them is in padding."""
    count = use.shape("src")[-1]
    found = use.dims("self")
    use.same(_on_diagonal(use, count), use.dims("src"))
    if not _is_whole(use, count):
        last, length = use.rank("src") - 1, _length(use)
        use.needs_elements(count)

        def emit(e: Emission) -> Any:
            return e.repeat(use.node, src=e.rows(e[use["src"]], last, 0, length, count))

        use.emit = emit
    return found


def _on_diagonal(use: Use, count: Size) -> PaddedDims:
    """The padded dimensions of a diagonal of `self` with so many elements."""
    found, rank = use.dims("self"), use.rank("self")
    along = {use[name] % rank for name in ("dim1", "dim2")}
    for dim in found.keys() & along:
        use.needs_prefix(found[dim])
    made = dropped(found, along)
    return {**made, rank - 2: extent_of(count)} if use.is_padded(count) else made


def _is_whole(use: Use, count: Size) -> bool:
    """Whether so many elements are those of the diagonal in the padded matrix, too.

    They are not if it is the number of one graph, as where elements are taken apart, or a size by
    itself, which is padded for itself.
    """
    length = _length(use)
    return not use.is_padded(length) or compat.is_same_size(length, count)


def _length(use: Use) -> Size:
    """How many elements the diagonal has, by the sizes of the matrix."""
    shape = use.shape("self")
    rows, columns = (shape[use[name] % len(shape)] for name in ("dim1", "dim2"))
    return compat.diagonal_size(rows, columns, use.number(use["offset"]))
