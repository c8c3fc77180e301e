"""Adaptive pooling along padded dimensions: windows that divide the sizes of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    PaddedDims,
    Size,
    extent_of,
)
from pjrt_bridge.torch_interop.passes.padding.formulas import compute_type
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def mean(count: int) -> Callable[[Use], PaddedDims]:
    """The mean of each window.

    Args:
        count: of the last dimensions, in which windows lie.
    """

    def dims(use: Use) -> PaddedDims:
        inside, left = _pooled(use, count, use.shape(use.result))
        use.fill("self", 0, inside)
        if inside:
            use.emit = lambda e: _weighted(e, use, e[use["self"]], inside, forward=True)
        return left

    return dims


def mean_backward(count: int) -> Callable[[Use], PaddedDims]:
    """Its gradient; see `mean`."""

    def dims(use: Use) -> PaddedDims:
        inside, left = _pooled(use, count, use.shape("grad_output"))
        use.same(left, use.dims("grad_output"))
        if inside:
            use.emit = lambda e: _weighted(e, use, e[use["grad_output"]], inside, forward=False)
        return use.dims("self")

    return dims


def largest(count: int) -> Callable[[Use], list[PaddedDims]]:
    """The largest element of each window, and its position in the image or volume; see `mean`."""

    def dims(use: Use) -> list[PaddedDims]:
        inside, left = _pooled(use, count, use.shape(use.results[0]))
        use.fill("self", -float("inf"), inside)
        if inside:
            use.emit = lambda e: _largest(e, use, count)
        return [left, left]

    return dims


def _pooled(use: Use, count: int, pooled: list[Size]) -> tuple[dict[int, Size], PaddedDims]:
    """The dimensions that are pooled, with the numbers of windows, and padded dimensions after it.

    None are pooled here where none of them is padded: the operator itself does it.
    """
    found, sizes = use.dims("self"), use.shape("self")
    pooled_dims = {
        dim: pooled[dim]
        for dim in range(len(sizes) - count, len(sizes))
        if not compat.is_same_size(pooled[dim], sizes[dim])
    }
    changing = {dim: extent_of(size) for dim, size in pooled_dims.items() if use.is_padded(size)}
    for dim in found.keys() & pooled_dims.keys():
        use.needs_prefix(found[dim])
        use.needs_elements(sizes[dim])
    for dim in changing:
        use.needs_elements(pooled[dim])
    left = {dim: extent for dim, extent in found.items() if dim not in pooled_dims}
    inside = (found.keys() | changing.keys()) & pooled_dims.keys()
    return pooled_dims if inside else {}, {**left, **changing}


def _windows(e: Emission, use: Use, dim: int, windows: Size) -> tuple[fx.Node, fx.Node, fx.Node]:
    """Which elements of a dimension are in which window, the first of each, and how many it has.

    Window `i` of `m` over `n` elements goes from `floor(i n / m)` to `ceil((i + 1) n / m)`.

    Returns:
        bools by window and element; the others by window in a column.
    """
    size = use.shape("self")[dim]
    index = e.call("aten.arange.default", e.size(windows), dtype=torch.int64)
    scaled = e.call("aten.mul.Tensor", index, e.actual(size))
    number = e.count(windows, torch.int64)
    first = e.call("aten.div.Tensor_mode", scaled, number, rounding_mode="floor")
    # The ceiling of a quotient is a floor of what is larger by the divisor less one.
    end = e.call("aten.add.Tensor", scaled, e.actual(size))
    end = e.call("aten.sub.Tensor", e.call("aten.add.Tensor", end, number), 1)
    end = e.call("aten.div.Tensor_mode", end, number, rounding_mode="floor")
    first, end = (e.along(item, 0, 2) for item in (first, end))
    position = e.along(e.call("aten.arange.default", e.size(size), dtype=torch.int64), 1, 2)
    within = e.call(
        "aten.logical_and.default",
        e.call("aten.ge.Tensor", position, first),
        e.call("aten.lt.Tensor", position, end),
    )
    return within, first, e.call("aten.sub.Tensor", end, first)


def _among(e: Emission, made: fx.Node, dim: int, rank: int) -> fx.Node:
    """What is known by window and element, for a tensor of a rank that has a dimension of windows.

    That of windows is `dim`, and that of elements follows it.
    """
    for _ in range(dim):
        made = e.call("aten.unsqueeze.default", made, 0)
    for _ in range(rank - dim - 1):
        made = e.call("aten.unsqueeze.default", made, -1)
    return made


def _weighted(
    e: Emission, use: Use, made: fx.Node, inside: dict[int, Size], *, forward: bool
) -> fx.Node:
    """Sums along dimensions with the weights of windows, or, backward, over the windows.

    What is outside of a window has no part in its sum, also where it is infinite.
    """
    result = use.result
    rank = result.dim()
    dtype = compute_type(result.dtype)
    made = e.call("aten._to_copy.default", made, dtype=dtype)
    for dim, windows in inside.items():
        within, _, count = (_among(e, item, dim, rank) for item in _windows(e, use, dim, windows))
        count = e.call("aten._to_copy.default", count, dtype=dtype)
        spread = e.call("aten.unsqueeze.default", made, dim if forward else dim + 1)
        spread = e.call("aten.div.Tensor", spread, count)
        spread = e.call(
            "aten.where.self", within, spread, e.call("aten.full.default", [], 0.0, dtype=dtype)
        )
        made = e.call("aten.sum.dim_IntList", spread, [dim + 1 if forward else dim])
    return e.call("aten._to_copy.default", made, dtype=result.dtype)


def _largest(e: Emission, use: Use, count: int) -> list[Any]:
    """Along the width, then the others: the first of equals in row-major order, the last NaN."""
    rank, sizes = use.rank("self"), use.shape("self")
    pooled = use.shape(use.results[0])
    values, places = e[use["self"]], list[fx.Node]()
    for dim in reversed(range(rank - count, rank)):
        values, found = _largest_along(e, use, values, dim, pooled[dim])
        places = [found, *(e.call("aten.gather.default", at, dim, found) for at in places)]
    indices, *others = places
    for dim, at in enumerate(others, rank - count + 1):
        indices = e.call("aten.mul.Tensor", indices, e.actual(sizes[dim]))
        indices = e.call("aten.add.Tensor", indices, at)
    return [values, indices]


def _largest_along(
    e: Emission, use: Use, made: fx.Node, dim: int, windows: Size
) -> tuple[fx.Node, fx.Node]:
    rank, dtype = use.rank("self"), use.results[0].dtype
    within, first, _ = (_among(e, item, dim, rank) for item in _windows(e, use, dim, windows))
    least = e.call("aten.full.default", [], -float("inf"), dtype=dtype)
    spread = e.call("aten.unsqueeze.default", made, dim)
    spread = e.call("aten.where.self", within, spread, least)
    both = e.call("aten.max.dim", spread, dim + 1)
    # Where all elements of a window are infinite and negative, they equal those before it.
    first = e.call("aten.squeeze.dim", first, dim + 1)
    found = e.call("aten.maximum.default", e.item(both, 1), first)
    # Of several NaN torch takes the last.
    size = e.size(use.shape("self")[dim])
    position = e.call("aten.arange.default", size, dtype=torch.int64)
    none = e.call("aten.full.default", [], -1, dtype=torch.int64)
    is_nan = e.call("aten.isnan.default", spread)
    last = e.call("aten.where.self", is_nan, e.along(position, dim + 1, rank + 1), none)
    last = e.call("aten.amax.default", last, [dim + 1])
    return e.item(both, 0), e.call("aten.maximum.default", found, last)
