"""Positions out of range in padded calls: those of the call are checked, those in padding are 0.

What reads and writes at positions in padded dimensions moves them into range, where eager raises.
So an operator before it looks at them. Its bounds depend on the sizes of the call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import label
from pjrt_bridge.torch_interop.passes.data_bounds import Bounds, bounds, out_of_range
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.merging import Applied

_NAME = f"{compat.OWN_NAMESPACE}::checked_positions"


class OutOfCall(IndexError):
    """A padded call has a position that is out of range in the call."""


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


torch.library.define(_NAME, "(Tensor positions, Tensor low, Tensor high, str where) -> Tensor")
torch.library.impl(_NAME, "cpu", _checked)
torch.library.register_fake(_NAME, lambda positions, *_: torch.empty_like(positions))


def check(e: Emission, node: fx.Node, applied: Applied) -> bool:
    """Have a node that is emitted take checked positions; whether it takes any.

    Args:
        e: emits in the place of the node; has filled what the node's rule fills.
        node: of the graph before.
        applied: what its rule says.
    """
    found = list(bounds(node, symbolic=True))
    for item in found:
        e.change(item.index, _emit(e, node, item, applied))
    return bool(found)


def _emit(e: Emission, node: fx.Node, item: Bounds, applied: Applied) -> fx.Node:
    use, promise = applied.use, compat.promise(item.index)
    made: fx.Node = e[item.index]
    dims = use.rows(item.index).dims
    number, filled = use.fills.get(item.index, (use.rows(item.index).fill, frozenset(dims)))
    if dims and (number != 0 or filled != dims.keys()):
        made = e.filled(made, dims, promise.dim(), 0, promise.dtype)
    return e.call(
        "pjrt_bridge.checked_positions.default",
        made,
        *(e.count(_expression(end), torch.int64) for end in (item.low, item.high)),
        label(node),
    )


def _expression(number: Any) -> Any:
    return compat.expression(number) if compat.is_symbolic(number) else number
