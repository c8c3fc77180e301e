"""Results that own memory with gaps between their elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.tensors import has_gaps

_VISIBLE = "pjrt_bridge_seen_by_the_user"


def mark_visible(node: fx.Node) -> None:
    """Note that a result which the user gets lies in the memory of this node."""
    node.meta[_VISIBLE] = True


def gaps(graph: fx.Graph) -> dict[int, tuple[int, ...]]:
    """Strides of the results that are to lie in memory with gaps, by position.

    Only of tensors that own their memory and that the user gets, in a graph of known sizes: such as
    what is copied into `torch.empty_strided((4, 2), (4, 1))`.
    """
    (end,) = graph.find_nodes(op="output")
    found = {}
    for position, node in enumerate(end.args[0]):
        promise = compat.promise(node) if isinstance(node, fx.Node) else None
        if (
            isinstance(promise, torch.Tensor)
            and node.op == "call_function"
            and _VISIBLE in node.meta
            and not compat.is_symbolic(promise)
            and has_gaps(promise.shape, promise.stride())
        ):
            found[position] = promise.stride()
    return found


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor of these strides, copied where it has others."""
    if tensor.stride() == tuple(strides):
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    return made.copy_(tensor)
