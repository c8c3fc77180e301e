"""Pooling of images and volumes along padded dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    MixesRows,
    PaddedDims,
    Size,
    extent_of,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.formulas import Term, compute_type
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def largest(count: int) -> Callable[[Use], list[PaddedDims]]:
    """The largest of each window, and its position.

    Args:
        count: of the last dimensions, along which windows lie.
    """

    def dims(use: Use) -> list[PaddedDims]:
        found, sizes = _pooled(use, use.results[0], count), use.shape("self")[-count:]
        inside = _inside(use, count)
        use.fill("self", -inf, inside)
        if _positions_move(use, count):

            def emit(e: Emission) -> list[Any]:
                made = e.copy(use.node)
                values, places = (e.item(made, at) for at in (0, 1))
                return [values, _renumbered(e, places, sizes, e.size, e.actual)]

            use.emit = emit
        return [found, found]

    return dims


def largest_backward(count: int) -> Callable[[Use], PaddedDims]:
    """Its gradient; see `largest`."""

    def dims(use: Use) -> PaddedDims:
        inside = _inside(use, count)
        use.same(_pooled(use, use["grad_output"], count), use.dims("grad_output"))
        use.fill("grad_output", 0, inside)
        use.fill("indices", 0, inside)
        _move_positions(use, count)
        return use.dims("self")

    return dims


def positions_backward(count: int) -> Callable[[Use], PaddedDims]:
    """The gradient of the largest elements of windows that positions tell; see `largest`."""

    def dims(use: Use) -> PaddedDims:
        use.same(use.dims("grad_output"), use.dims("indices"))
        use.fill("grad_output", 0)
        use.fill("indices", 0)
        _move_positions(use, count)
        return use.dims("self")

    return dims


def mean(count: int) -> Callable[[Use], PaddedDims]:
    """The mean of each window; see `largest`."""

    def dims(use: Use) -> PaddedDims:
        inside = _inside(use, count)
        use.fill("self", 0, inside)
        pooled = _pooled(use, use.result, count)
        if inside and _differ_in_size(use):
            sizes = use.shape(use.result)
            use.emit = lambda e: _divided(e, use, "self", sizes, count)
        return pooled

    return dims


def mean_backward(count: int) -> Callable[[Use], PaddedDims]:
    """Its gradient; see `largest`."""

    def dims(use: Use) -> PaddedDims:
        inside = _inside(use, count)
        use.same(_pooled(use, use["grad_output"], count), use.dims("grad_output"))
        use.fill("grad_output", 0, inside)
        if inside and _differ_in_size(use):
            sizes = use.shape("grad_output")
            use.emit = lambda e: _divided(e, use, "grad_output", sizes, count)
        return use.dims("self")

    return dims


def _inside(use: Use, count: int) -> set[int]:
    """The padded dimensions along which windows lie."""
    first = use.rank("self") - count
    return {dim for dim in use.dims("self") if dim >= first}


def _pooled(use: Use, pooled: Any, count: int) -> PaddedDims:
    """The padded dimensions of what is pooled.

    Raises:
        MixesRows: the number of windows is not that of the call.
    """
    found, sizes = use.dims("self"), use.shape(pooled)
    for at in ("kernel_size", "stride", "padding", "dilation"):
        if any(use.is_padded(use.number(item)) for item in use[at] or ()):
            raise MixesRows("it uses the size as a number")
    made = dict(found)
    for dim in _inside(use, count):
        use.needs_prefix(found[dim])
        if not use.is_padded(sizes[dim]):
            raise MixesRows("it works along the dimension")
        made[dim] = extent_of(sizes[dim])
    return made


# -- positions in images ---------------------------------------------------------------------------


def _positions_move(use: Use, count: int) -> bool:
    """Whether positions count elements of padded dimensions: of all but the slowest varying."""
    return any(dim > use.rank("self") - count for dim in _inside(use, count))


def _move_positions(use: Use, count: int) -> None:
    """Have positions in the call be those in the padding."""
    if _positions_move(use, count):
        sizes = use.shape("self")[-count:]

        def emit(e: Emission) -> Any:
            return e.repeat(
                use.node, indices=_renumbered(e, e[use["indices"]], sizes, e.actual, e.size)
            )

        use.emit = emit


def _renumbered(
    e: Emission, places: fx.Node, sizes: list[Size], before: Any, after: Any
) -> fx.Node:
    """Row-major positions among sizes as those among others."""
    rest, inner = Term(e, places), [*sizes[1:], 1]
    made: Term | None = None
    for at in range(len(inner)):
        step = product(inner[at:])
        own = rest.call("div.Tensor_mode", before(step), rounding_mode="floor")
        rest = rest - own * before(step)
        own = own * after(step)
        made = own if made is None else made + own
    assert made is not None
    return made.node


# -- sizes of windows ------------------------------------------------------------------------------


def _differ_in_size(use: Use) -> bool:
    """Whether windows at the borders are divided by less than the others."""
    if use["divisor_override"] is not None:
        return False
    return bool(use["ceil_mode"]) or (not use["count_include_pad"] and any(use["padding"] or ()))


def _divided(e: Emission, use: Use, name: str, sizes: list[Size], count: int) -> fx.Node:
    """Sums, and a division by how many elements of the call are in each window.

    Args:
        e: where to emit.
        use: of the operator.
        name: of what is summed; backward it is divided before it is spread.
        sizes: of what is pooled.
        count: see `mean`.
    """
    promise, rank = use.result, use.rank("self")
    given, dtype = Term(e, e[use[name]]), compute_type(promise.dtype)
    given = given.to(dtype)
    number = None
    for at in range(count):
        one = _elements(e, use, at, use.shape("self")[at - count], sizes[at - count])
        one = Term(e, e.along(one.node, rank - count + at, rank))
        number = one if number is None else number * one
    assert number is not None
    number = number.to(dtype)
    changed = {name: (given / number if name == "grad_output" else given).node}
    if name == "grad_output":
        changed["self"] = Term(e, e[use["self"]]).to(dtype).node
    made = Term(e, e.repeat(use.node, divisor_override=1, **changed))
    return (made if name == "grad_output" else made / number).to(promise.dtype).node


def _elements(e: Emission, use: Use, at: int, size: Size, windows: Size) -> Term:
    """For each window along a dimension how many elements it counts."""
    kernel, stride, padding = (
        use.number((values * (at + 1))[at] if len(values) == 1 else values[at])
        for values in (
            use["kernel_size"],
            use["stride"] or use["kernel_size"],
            use["padding"] or [0],
        )
    )
    index = Term(e, e.call("aten.arange.default", e.size(windows), dtype=torch.int64))
    begin: Term = index * stride - padding
    length = Term(e, e.count(size, torch.int64))
    end: Term = (begin + kernel).call("minimum.default", length + padding)
    if not use["count_include_pad"]:
        begin, end = begin.call("clamp.default", 0), end.call("minimum.default", length)
    # No window of the call is empty.
    return (end - begin).call("clamp.default", 1)
