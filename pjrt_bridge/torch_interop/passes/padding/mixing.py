"""Operators that work along padded dimensions: sums, extremes, softmax, scans, orders."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Dims,
    Extent,
    MixesRows,
    Number,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.moves import dropped
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_HALF = (torch.bfloat16, torch.float16)


def _reduced_dims(use: Use) -> tuple[Dims, set[int], Dims]:
    """The padded dimensions of an operand, those reduced over, and what the results have."""
    found = use.dims("self")
    named = use.named("dim", use.rank("self"))
    left = {at: extent for at, extent in found.items() if at not in named}
    return found, found.keys() & named, left if use["keepdim"] else dropped(found, named)


def filled(number: Number, *, elements: bool = False) -> Callable[[Use], Dims]:
    """Reductions that a number does not change.

    Args:
        number: that.
        elements: PyTorch refuses to reduce over no elements.
    """

    def dims(use: Use) -> Dims:
        found, inside, left = _reduced_dims(use)
        if inside:
            use.fill("self", number, inside)
            if elements:
                for dim in inside:
                    use.needs_elements(product(found[dim]))
        return left

    return dims


def positions(number: Number) -> Callable[[Use], Dims]:
    """Reductions that give positions: of the first among equals, so never of padding."""

    def dims(use: Use) -> Dims:
        found, inside, left = _reduced_dims(use)
        for dim in inside:
            use.needs_elements(product(found[dim]))
        use.fill("self", number, inside)
        if use["dim"] is None and inside:
            shape = enumerate(use.shape("self"))
            extent = tuple(item for at, size in shape for item in found.get(at, (size,)))
            use.emit = lambda e: _position_in_call(e, use, extent)
            return left
        for dim in inside:
            use.needs_prefix(found[dim])
        return left

    return dims


def _position_in_call(e: Emission, use: Use, extent: Extent) -> fx.Node:
    """A position among all elements, which has the order of those in the call."""
    at = e.call("aten.reshape.default", e.copy(use.node), [1])
    found = e.call("aten.index_select.default", e.place_in_call(extent), 0, at)
    return e.call("aten.reshape.default", found, list(use.result.shape))


def norm(use: Use) -> Dims:
    """Norms of any order."""
    _, inside, left = _reduced_dims(use)
    order = use["ord"]
    use.fill("self", inf if order is not None and order < 0 else 0, inside)
    return left


def _compute_type(promise: torch.Tensor) -> torch.dtype:
    return torch.float32 if promise.dtype in _HALF else promise.dtype


def _count(e: Emission, use: Use, dtype: torch.dtype) -> Any:
    return e.count(
        product(use.shape("self")[dim] for dim in use.named("dim", use.rank("self"))), dtype
    )


def mean(use: Use) -> Dims:
    """Sums divided by the number of elements in the call."""
    _, inside, left = _reduced_dims(use)
    if not inside:
        return left
    use.fill("self", 0, inside)
    result = use.result

    def emit(e: Emission) -> Any:
        dtype = _compute_type(result)
        named = sorted(use.named("dim", use.rank("self")))
        total = e.call(
            "aten.sum.dim_IntList", e[use["self"]], named, bool(use["keepdim"]), dtype=dtype
        )
        made = e.call("aten.div.Tensor", total, _count(e, use, dtype))
        return e.call("aten._to_copy.default", made, dtype=result.dtype)

    use.emit = emit
    return left


def variance(use: Use) -> Dims | list[Dims]:
    """Variances, their roots, and means with them."""
    found, inside, left = _reduced_dims(use)
    name = compat.operator_name(use.node.target) or ""
    several = "var_mean" in name or "std_mean" in name
    if not inside:
        return left
    operand = compat.promise(use["self"])
    if operand.dtype.is_complex:
        raise MixesRows("it gives the variance of complex numbers")
    correction = use["correction"]
    if correction is None:
        correction = 0 if use["unbiased"] is False else 1
    dims = sorted(use.named("dim", use.rank("self")))
    rank = use.rank("self")

    def emit(e: Emission) -> Any:
        dtype = _compute_type(operand)
        given = e.call("aten._to_copy.default", e[use["self"]], dtype=dtype)
        x = e.filled(given, {at: found[at] for at in inside}, rank, 0, dtype)
        count = _count(e, use, dtype)
        center = e.call("aten.sum.dim_IntList", x, dims, True)
        center = e.call("aten.div.Tensor", center, count)
        gap = e.call("aten.sub.Tensor", given, center)
        gap = e.filled(gap, {at: found[at] for at in inside}, rank, 0, dtype)
        total = e.call("aten.mul.Tensor", gap, gap)
        total = e.call("aten.sum.dim_IntList", total, dims, bool(use["keepdim"]))
        left_over = e.call("aten.sub.Tensor", count, correction)
        made = e.call("aten.div.Tensor", total, e.call("aten.clamp.default", left_over, 0))
        if ".std" in name:
            made = e.call("aten.sqrt.default", made)
        made = e.call("aten._to_copy.default", made, dtype=operand.dtype)
        if not several:
            return made
        if not use["keepdim"]:
            for dim in reversed(dims):
                center = e.call("aten.squeeze.dim", center, dim)
        return [made, e.call("aten._to_copy.default", center, dtype=operand.dtype)]

    use.emit = emit
    return left


# -- along a dimension that stays ------------------------------------------------------------------


def _named_along(use: Use, operand: str, name: str) -> tuple[Dims, set[int]]:
    found = use.dims(operand)
    return found, found.keys() & use.named(name, use.rank(operand))


def softmax(use: Use) -> Dims:
    """Softmax and its logarithm."""
    found, inside = _named_along(use, "self", "dim")
    use.fill("self", -inf, inside)
    return found


def softmax_backward(use: Use) -> Dims:
    """Gradients of softmax and of its logarithm, which sum over the dimension."""
    found, inside = _named_along(use, "output", "dim")
    use.aligned([use["grad_output"], use["output"]])
    use.fill("grad_output", 0, inside)
    use.fill("output", 0, inside)
    return found


def scanned(number: Number | None) -> Callable[[Use], Dims]:
    """Scans, in which padding is behind everything that counts.

    Args:
        number: does not change what comes after it; None where positions would.
    """

    def dims(use: Use) -> Dims:
        found, inside = _named_along(use, "self", "dim")
        for dim in inside:
            if number is None:
                use.needs_prefix(found[dim])
            elif len(found[dim]) > 1:
                use.fill("self", number, [dim])
        return found

    return dims


def ordered(use: Use) -> Dims:
    """Sorting, with padding behind everything: equal elements stay in their order."""
    found, inside = _named_along(use, "self", "dim")
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


def largest(use: Use) -> Dims:
    """The largest or smallest so many of a dimension.

    Among equals any may be chosen, and padding is equal to infinities, so it is sorted behind them.
    """
    found, inside = _named_along(use, "self", "dim")
    left = {at: extent for at, extent in found.items() if at not in inside}
    if not inside:
        return left
    (dim,) = inside
    use.needs_prefix(found[dim])
    count = use.number(use["k"])
    if use.is_padded(count):
        raise MixesRows("it uses the size as a number")
    descending = bool(use["largest"])
    _fill_behind(use, inside, descending)

    def emit(e: Emission) -> Any:
        made = _sorted(e, e[use["self"]], use["dim"], descending)
        return [e.call("aten.slice.Tensor", item, dim, 0, e.size(count)) for item in made]

    use.emit = emit
    return left


def of_rank(use: Use) -> Dims:
    """The element of a rank, and its position: of the so many least, or the median.

    Among equals any may be chosen. NaN is the largest of all for a rank; every median of it is NaN
    unless it is left out.
    """
    found, inside, left = _reduced_dims(use)
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


def median(use: Use) -> Dims:
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


def extremes(use: Use) -> list[Dims]:
    """The least and the largest element."""
    found, inside, left = _reduced_dims(use)
    for dim in inside:
        use.needs_elements(product(found[dim]))
    if inside:
        rank, promise = use.rank("self"), compat.promise(use["self"])
        named = sorted(use.named("dim", rank))

        def emit(e: Emission) -> Any:
            padding = {dim: found[dim] for dim in inside}
            made = []
            for number, name in ((inf, "aten.amin.default"), (-inf, "aten.amax.default")):
                given = e.filled(e[use["self"]], padding, rank, number, promise.dtype)
                made.append(e.call(name, given, named, bool(use["keepdim"])))
            return made

        use.emit = emit
    return [left, left]


def _row(e: Emission, use: Use, dim: int, at: fx.Node) -> fx.Node:
    """A position in a dimension, for each row of the others."""
    sizes = [1 if other == dim else size for other, size in enumerate(use.shape("self"))]
    return e.call("aten.expand.default", at, [e.size(size) for size in sizes])


def _fill_behind(use: Use, dims: set[int], descending: bool) -> None:
    """Have padding be what is sorted behind everything."""
    use.fill("self", _behind(use, descending), dims)


def _behind(use: Use, descending: bool) -> Number:
    floating = compat.promise(use["self"]).dtype.is_floating_point
    return -inf if descending else (nan if floating else inf)


def _sorted(e: Emission, made: fx.Node, dim: int, descending: bool) -> list[fx.Node]:
    made = e.call("aten.sort.stable", made, stable=True, dim=dim, descending=descending)
    return [e.item(made, at) for at in (0, 1)]


def lost(use: Use) -> list[Dims]:
    """Negative log likelihood, alone or with its mean: what is ignored counts for nothing."""
    rows = use.dims("self")
    if rows.keys() - {0} or (rows and use.rank("self") == 1):
        raise MixesRows("it works along the dimension")
    use.fill("target", use["ignore_index"])
    return [rows if use["reduction"] == 0 else {}, {}]


def lost_backward(use: Use) -> Dims:
    """Its gradient."""
    lost(use)
    return use.dims("self")
