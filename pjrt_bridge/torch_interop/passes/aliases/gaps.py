"""Results that own memory with gaps between their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.runtime.dispatch.value_spec import has_gaps
from pjrt_bridge.torch_interop import compat

_VISIBLE = "pjrt_bridge_seen_by_the_user"


def mark_visible(node: fx.Node) -> None:
    """Note that a result which the user gets lies in the memory of this node."""
    node.meta[_VISIBLE] = True


def is_visible(node: fx.Node) -> bool:
    """Whether a result that the user gets lies in the memory of a node, as `mark_visible` noted."""
    return _VISIBLE in node.meta


@dataclass(frozen=True)
class Gaps:
    """A graph some of whose results are to lie in memory with gaps between their elements.

    Attributes:
        module: the graph; it gives them without gaps.
        strides: of these results, by position.
    """

    module: fx.GraphModule
    strides: Mapping[int, Sequence[int]]

    def prologue(self, arguments: list[Any]) -> None:
        """Nothing happens to the arguments."""

    def epilogue(self, state: None, outputs: list[Any]) -> list[Any]:
        """Put the gaps back."""
        for position, strides in self.strides.items():
            outputs[position] = with_strides(outputs[position], strides)
        return outputs


def find_gaps(module: fx.GraphModule) -> Gaps | None:
    """The results that are to lie in memory with gaps; None where there are none.

    Only of tensors that own their memory and that the user gets, in a graph of known sizes: such as
    what is copied into `torch.empty_strided((4, 2), (4, 1))`.
    """
    (end,) = module.graph.find_nodes(op="output")
    found = {}
    for position, node in enumerate(end.args[0]):
        promise = compat.promise(node) if isinstance(node, fx.Node) else None
        if (
            isinstance(promise, torch.Tensor)
            and node.op == "call_function"
            and is_visible(node)
            and not compat.is_symbolic(promise)
            and _lies_apart(promise.shape, promise.stride())
        ):
            found[position] = promise.stride()
    return Gaps(module, found) if found else None


def _lies_apart(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """Whether a result of these strides needs more than the elements in some order.

    One without elements has strides too, which nothing in a program follows from.
    """
    if 0 in shape:
        return strides != torch.empty(shape, device="meta").stride()
    return has_gaps(shape, strides)


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor of these strides, copied where it has others."""
    if tensor.stride() == tuple(strides):
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)
