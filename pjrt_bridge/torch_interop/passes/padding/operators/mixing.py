"""Reductions, softmax, scans and losses along padded dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MixesRows,
    PaddedDims,
    PythonNumber,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.formulas import compute_type
from pjrt_bridge.torch_interop.passes.padding.operators.moves import dropped
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def reduced_dims(use: Use) -> tuple[PaddedDims, set[int], PaddedDims]:
    """The padded dimensions of an operand, those reduced over, and what the results have."""
    found = use.dims("self")
    named = use.named("dim", use.rank("self"))
    left = {at: extent for at, extent in found.items() if at not in named}
    return found, found.keys() & named, left if use["keepdim"] else dropped(found, named)


def filled(number: PythonNumber, *, elements: bool = False) -> Callable[[Use], PaddedDims]:
    """Reductions that a number does not change.

    Args:
        number: that.
        elements: PyTorch refuses to reduce over no elements.
    """

    def dims(use: Use) -> PaddedDims:
        found, inside, left = reduced_dims(use)
        if inside:
            use.fill("self", number, inside)
            if elements:
                for dim in inside:
                    use.needs_elements(product(found[dim]))
        return left

    return dims


def counted_in_bins(use: Use) -> PaddedDims:
    """How many elements are in each bin between two numbers; no bin has infinities.

    Raises:
        MixesRows: the elements decide between which.
    """
    if use.dims("self") and use["min"] == use["max"]:
        raise MixesRows("its bins are between the extremes of the dimension")
    use.fill("self", inf)
    return {}


def positions(number: PythonNumber) -> Callable[[Use], PaddedDims]:
    """Reductions that give positions: of the first among equals, so never of padding."""

    def dims(use: Use) -> PaddedDims:
        found, inside, left = reduced_dims(use)
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


def norm(use: Use) -> PaddedDims:
    """Norms of any order."""
    _, inside, left = reduced_dims(use)
    order = use["ord"]
    use.fill("self", inf if order is not None and order < 0 else 0, inside)
    return left


def _count(e: Emission, use: Use, dtype: torch.dtype) -> Any:
    return e.count(
        product(use.shape("self")[dim] for dim in use.named("dim", use.rank("self"))), dtype
    )


def mean(use: Use) -> PaddedDims:
    """Sums divided by the number of elements in the call."""
    _, inside, left = reduced_dims(use)
    if not inside:
        return left
    use.fill("self", 0, inside)
    result = use.result

    def emit(e: Emission) -> Any:
        dtype = compute_type(result.dtype)
        named = sorted(use.named("dim", use.rank("self")))
        total = e.call(
            "aten.sum.dim_IntList", e[use["self"]], named, bool(use["keepdim"]), dtype=dtype
        )
        made = e.call("aten.div.Tensor", total, _count(e, use, dtype))
        return e.call("aten._to_copy.default", made, dtype=result.dtype)

    use.emit = emit
    return left


def variance(use: Use) -> PaddedDims | list[PaddedDims]:
    """Variances, their roots, and means with them."""
    found, inside, left = reduced_dims(use)
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
        dtype = compute_type(operand.dtype)
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


def named_along(use: Use, operand: str, name: str) -> tuple[PaddedDims, set[int]]:
    """The padded dimensions of an operand, by name, and those of them that an argument names."""
    found = use.dims(operand)
    return found, found.keys() & use.named(name, use.rank(operand))


def softmax(use: Use) -> PaddedDims:
    """Softmax and its logarithm."""
    found, inside = named_along(use, "self", "dim")
    use.fill("self", -inf, inside)
    return found


def softmax_backward(use: Use) -> PaddedDims:
    """Gradients of softmax and of its logarithm, which sum over the dimension."""
    found, inside = named_along(use, "output", "dim")
    use.aligned([use["grad_output"], use["output"]])
    use.fill("grad_output", 0, inside)
    use.fill("output", 0, inside)
    return found


def scanned(number: PythonNumber | None) -> Callable[[Use], PaddedDims]:
    """Scans, in which padding is behind everything that counts.

    Args:
        number: does not change what comes after it; None where positions would.
    """

    def dims(use: Use) -> PaddedDims:
        found, inside = named_along(use, "self", "dim")
        for dim in inside:
            if number is None:
                use.needs_prefix(found[dim])
            elif len(found[dim]) > 1:
                use.fill("self", number, [dim])
        return found

    return dims


def extremes(use: Use) -> list[PaddedDims]:
    """The least and the largest element."""
    found, inside, left = reduced_dims(use)
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


def nll_loss(use: Use) -> list[PaddedDims]:
    """Negative log likelihood, alone or with its mean: what is ignored counts for nothing."""
    rows = use.dims("self")
    if rows.keys() - {0} or (rows and use.rank("self") == 1):
        raise MixesRows("it works along the dimension")
    use.fill("target", use["ignore_index"])
    return [rows if use["reduction"] == 0 else {}, {}]


def nll_loss_backward(use: Use) -> PaddedDims:
    """Its gradient."""
    nll_loss(use)
    return use.dims("self")
