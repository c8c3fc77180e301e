"""Positions and divisors in padded calls: those of the call are checked, not those in padding.

What reads and writes at positions in padded dimensions moves them into range, where eager raises.
So an operator before it looks at them. Its bounds depend on the sizes of the call. Positions in
padding are 0, divisors are 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import label
from pjrt_bridge.torch_interop.passes.data_bounds import (
    bounds,
    out_of_range,
    uncertain_divisor,
)
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims
from pjrt_bridge.torch_interop.passes.padding.merging import Applied
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_NAME = f"{compat.OWN_NAMESPACE}::checked_positions"
_OF_DIVISORS = f"{compat.OWN_NAMESPACE}::checked_divisors"


class OutOfCall(IndexError):
    """A padded call has a position that is out of range in the call, or a divisor of 0."""


def _checked(
    positions: torch.Tensor, low: torch.Tensor, high: torch.Tensor, where: str
) -> torch.Tensor:
    """Positions as they are, where PyTorch runs the graph."""
    if positions.numel():
        found, allowed = map(int, positions.aminmax()), (int(low), int(high))
        smallest, largest = found
        if smallest < allowed[0] or largest > allowed[1]:
            raise OutOfCall(f"{where}: {out_of_range(smallest, largest, *allowed)}")
    return positions.clone()


def _checked_divisors(divisors: torch.Tensor, where: str) -> torch.Tensor:
    """Divisors as they are, where PyTorch runs the graph."""
    if not divisors.all():
        raise OutOfCall(f"{where}: an integer is divided by zero")
    return divisors.clone()


torch.library.define(_NAME, "(Tensor positions, Tensor low, Tensor high, str where) -> Tensor")
torch.library.impl(_NAME, "cpu", _checked)
torch.library.register_fake(_NAME, lambda positions, *_: torch.empty_like(positions))
torch.library.define(_OF_DIVISORS, "(Tensor divisors, str where) -> Tensor")
torch.library.impl(_OF_DIVISORS, "cpu", _checked_divisors)
torch.library.register_fake(_OF_DIVISORS, lambda divisors, _: torch.empty_like(divisors))


def check(e: Emission, node: fx.Node, applied: Applied) -> bool:
    """Have a node that is emitted take checked positions and divisors.

    Args:
        e: emits in the place of the node; has filled what the node's rule fills.
        node: of the graph before.
        applied: what its rule says.

    Returns:
        Whether all are checked. Positions whose bounds depend on data are not: their padding is
        within these bounds, and the part of the divided graph that is given the bounds checks them.
    """
    where, complete = label(node), True
    for item in list(bounds(node, symbolic=True)):
        if item.first:
            first = e.call("aten.slice.Tensor", e[item.index], 0, 0, 1)
            first = e.checked_positions(first, item.low, item.high, where)
            changed = e.call("aten.slice_scatter.default", e[item.index], first, 0, 0, 1)
            e.change(item.index, changed)
            continue
        # Pivots count from 1. A symbolic least is that of positions which count from the end, too.
        least = max(item.low, 0) if isinstance(item.low, int) else 0
        index = _filled(e, item.index, least, applied)
        low, high = map(_expression, (item.low, item.high))
        if not (e.is_known(low) and e.is_known(high)):
            complete = False
            continue
        e.change(item.index, e.checked_positions(index, low, high, where))
    by = uncertain_divisor(node)
    if by is not None:
        e.change(by, e.checked_divisors(_filled(e, by, 1, applied), where))
    return complete


def checked(use: Use) -> PaddedDims:
    """Positions that were checked already, in a graph that is divided.

    The padding gets the least position that is allowed. Where there is none, PyTorch refuses all
    positions, of which there has to be one.
    """
    dims, rank = use.dims("positions"), use.rank("positions")
    for size in use.shape("positions"):
        if use.is_padded(size):
            use.needs_elements(size)

    def emit(e: Emission) -> Any:
        low = e.call("aten._to_copy.default", e[use["low"]], dtype=use.result.dtype)
        given = e.call("aten.where.self", e.mask(dims, rank), e[use["positions"]], low)
        return e.repeat(use.node, positions=given)

    if dims:
        use.emit = emit
    return dims


def checked_divisors(use: Use) -> PaddedDims:
    """Divisors that were checked already, in a graph that is divided."""
    use.fill("divisors", 1)
    return use.dims("divisors")


def _filled(e: Emission, item: fx.Node, wanted: int, applied: Applied) -> fx.Node:
    """A tensor of integers with a number in padding."""
    use, promise = applied.use, compat.promise(item)
    made: fx.Node = e[item]
    dims = use.rows(item).dims
    number, filled = use.fills.get(item, (use.rows(item).fill, frozenset(dims)))
    if dims and (number != wanted or filled != dims.keys()):
        made = e.filled(made, dims, promise.dim(), wanted, promise.dtype)
    return made


def _expression(number: Any) -> Any:
    return compat.expression(number) if compat.is_symbolic(number) else number
