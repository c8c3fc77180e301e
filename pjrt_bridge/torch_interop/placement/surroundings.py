"""Nodes that need the memory around the elements of an argument.

`as_strided` addresses the storage of a tensor. Where an argument is a part of a larger tensor, such
as `x[2:]`, or `x` after `torch.outer(x, x, out=x[1:])`, which made its storage larger, there are
elements around it, which no device is given. PyTorch's scatter operators copy them with it, so that

    x[0] = 1
    y = x.as_strided(size, stride, offset)

which is `as_strided(select_scatter(x, ...))` in a graph, reads them there, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.addressing import addresses_storage, sharing_storage
from pjrt_bridge.torch_interop.emit.node_lowering import memory_order
from pjrt_bridge.torch_interop.lowering.context import MemoryOrder


def needing_surroundings(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes that read what lies around an argument, and those that hand it to them."""
    found: set[fx.Node] = set()
    for node, *between, root in _addressing(graph):
        part = memory_order(compat.promise(root)) is not MemoryOrder.WHOLE
        if part or _reaches_beyond(node, compat.promise(root)):
            found.update((node, *between))
    return frozenset(found)


def addressed(graph: fx.Graph) -> frozenset[fx.Node]:
    """The arguments whose memory is addressed, elements around them included."""
    return frozenset(root for *_, root in _addressing(graph))


def _addressing(graph: fx.Graph) -> Iterator[tuple[fx.Node, ...]]:
    """Each node that addresses the memory of an argument, and what is between them, up to that."""
    for node in graph.nodes:
        if addresses_storage(node):
            path = tuple(sharing_storage(node.all_input_nodes[0]))
            if path[-1].op == "placeholder":
                yield node, *path


def _reaches_beyond(node: fx.Node, root: torch.Tensor) -> bool:
    """Whether a node addresses memory behind the last element of a tensor, as far as is known.

    Its elements are those of the view that it is given, whose type may be another one.
    """
    given = compat.bound_arguments(node)
    size, stride, offset = given["size"], given["stride"], given["storage_offset"] or 0
    if not all(isinstance(number, int) for number in (*size, *stride, offset, *root.shape)):
        return False
    reach = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    width = compat.promise(node.all_input_nodes[0]).dtype.itemsize
    return 0 not in size and (offset + reach + 1) * width > root.numel() * root.dtype.itemsize
