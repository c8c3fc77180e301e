"""Orders along padded dimensions: sorting, ranks, medians, the most frequent."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    PaddedDims,
    PythonNumber,
    extent_of,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.operators.mixing import named_along, reduced_dims
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def ordered(use: Use) -> PaddedDims:
    """Sorting, with padding behind everything: equal elements stay in their order."""
    found, inside = named_along(use, "self", "dim")
    if not inside:
        return found
    for dim in inside:
        use.needs_prefix(found[dim])
    descending = bool(use["descending"])
    _fill_behind(use, inside, descending)
    positions_only = "argsort" in str(use.node.target)

    def emit(e: Emission) -> Any:
        values, indices = _sorted(e, e[use["self"]], use["dim"], descending)
        return indices if positions_only else [values, indices]

    use.emit = emit
    return found


def largest(use: Use) -> PaddedDims:
    """The largest or smallest so many of a dimension.

    Among equals any may be chosen, and padding is equal to infinities, so it is sorted behind them.
    """
    found, inside = named_along(use, "self", "dim")
    left = {at: extent for at, extent in found.items() if at not in inside}
    if not inside:
        return left
    (dim,) = inside
    use.needs_prefix(found[dim])
    count = use.number(use["k"])
    descending = bool(use["largest"])
    _fill_behind(use, inside, descending)

    def emit(e: Emission) -> Any:
        made = _sorted(e, e[use["self"]], use["dim"], descending)
        return [e.call("aten.slice.Tensor", item, dim, 0, e.size(count)) for item in made]

    use.emit = emit
    return {**left, dim: extent_of(count)} if use.is_padded(count) else left


def of_rank(use: Use) -> PaddedDims:
    """The element of a rank, and its position: of the so many least, or the median.

    Among equals any may be chosen. NaN is the largest of all for a rank; every median of it is NaN
    unless it is left out.
    """
    found, inside, left = reduced_dims(use)
    if not inside:
        return left
    (dim,) = inside
    use.needs_prefix(found[dim])
    use.needs_elements(product(found[dim]))
    _fill_behind(use, inside, descending=False)
    size = use.shape("self")[dim]
    is_median = "median" in str(use.node.target)

    def emit(e: Emission) -> Any:
        values, indices = _sorted(e, e[use["self"]], dim, descending=False)
        if is_median:
            at = _middle(e, use, values, dim, e.actual(size))
        else:
            at = _row(e, use, dim, e.count(use.number(use["k"]) - 1, torch.int64))
        made = [e.call("aten.gather.default", item, dim, at) for item in (values, indices)]
        return made if use["keepdim"] else [e.call("aten.squeeze.dim", x, dim) for x in made]

    use.emit = emit
    return left


def median(use: Use) -> PaddedDims:
    """The median of all elements; see `of_rank`."""
    if use.dims("self"):
        count = product(use.shape("self"))
        use.needs_elements(count)
        use.fill("self", _behind(use, descending=False))

        def emit(e: Emission) -> Any:
            flat = e.call("aten.reshape.default", e[use["self"]], [-1])
            values, _ = _sorted(e, flat, 0, descending=False)
            at = _middle(e, use, values, 0, e.actual(count))
            return e.call("aten.squeeze.dim", e.call("aten.gather.default", values, 0, at), 0)

        use.emit = emit
    return {}


def _middle(e: Emission, use: Use, values: fx.Node, dim: int, count: fx.Node) -> fx.Node:
    """The position of medians among elements that are sorted, with padding behind.

    The padding of floating-point numbers is NaN, so that the elements of the call that are NaN lie
    before it.
    """
    number = e.call("aten.logical_not.default", e.call("aten.isnan.default", values))
    number = e.call("aten.sum.dim_IntList", number, [dim], True)
    number = e.call("aten.minimum.default", number, count)
    leaves_out = "nanmedian" in str(use.node.target)
    at = e.call("aten.sub.Tensor", number if leaves_out else count, 1)
    at = e.call("aten.clamp.default", at, 0)
    at = e.call("aten.div.Tensor_mode", at, 2, rounding_mode="floor")
    if leaves_out:
        return at
    return e.call("aten.where.self", e.call("aten.lt.Tensor", number, count), number, at)


def most_frequent(use: Use) -> list[PaddedDims]:
    """The least of the most frequent elements, and the last position of it; each NaN is its own."""
    found, inside, left = reduced_dims(use)
    if inside:
        (dim,) = inside
        use.needs_prefix(found[dim])
        use.needs_elements(use.shape("self")[dim])
        _fill_behind(use, inside, descending=False)
        use.emit = lambda e: _most_frequent(e, use, dim)
    return [left, left]


def _most_frequent(e: Emission, use: Use, dim: int) -> list[fx.Node]:
    rank, size = use.rank("self"), use.shape("self")[dim]
    values, indices = _sorted(e, e[use["self"]], dim, descending=False)
    place = e.along(e.positions(extent_of(size)), dim, rank)
    begins = e.call("aten.ne.Tensor", values, e.call("aten.roll.default", values, [1], [dim]))
    begins = e.call("aten.logical_or.default", begins, e.call("aten.eq.Scalar", place, 0))
    none = e.call("aten.full.default", [], 0, dtype=torch.int64)
    first = e.call("aten.where.self", begins, place, none)
    first = e.item(e.call("aten.cummax.default", first, dim), 0)
    length = e.call("aten.sub.Tensor", place, first)
    # Padding lies behind the call's elements, so no run of these is longer for it.
    inside = e.call("aten.lt.Tensor", place, e.count(size, torch.int64))
    never = e.call("aten.full.default", [], -1, dtype=torch.int64)
    length = e.call("aten.where.self", inside, length, never)
    # The first run of the greatest length, at its end.
    at = e.call("aten.argmax.default", length, dim, True)
    made = [e.call("aten.gather.default", item, dim, at) for item in (values, indices)]
    return made if use["keepdim"] else [e.call("aten.squeeze.dim", x, dim) for x in made]


def _row(e: Emission, use: Use, dim: int, at: fx.Node) -> fx.Node:
    """A position in a dimension, for each row of the others."""
    sizes = [1 if other == dim else size for other, size in enumerate(use.shape("self"))]
    return e.call("aten.expand.default", at, [e.size(size) for size in sizes])


def _fill_behind(use: Use, dims: set[int], descending: bool) -> None:
    """Have padding be what is sorted behind everything."""
    use.fill("self", _behind(use, descending), dims)


def _behind(use: Use, descending: bool) -> PythonNumber:
    floating = compat.promise(use["self"]).dtype.is_floating_point
    return -inf if descending else (nan if floating else inf)


def _sorted(e: Emission, made: fx.Node, dim: int, descending: bool) -> list[fx.Node]:
    made = e.call("aten.sort.stable", made, stable=True, dim=dim, descending=descending)
    return [e.item(made, at) for at in (0, 1)]
