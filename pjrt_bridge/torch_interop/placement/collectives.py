"""Collective operations of torch.distributed, which PyTorch runs between the segments."""

from __future__ import annotations

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.compat import process_groups


def group_name(node: fx.Node) -> str | None:
    """The name of the process group that a node which starts a collective operation names."""
    given = [item for item in (*node.args, *node.kwargs.values()) if isinstance(item, str)]
    return given[-1] if given else None


def communication(node: fx.Node) -> str | None:
    """A node's exchange with other processes, for reports; None where it is no collective.

    Args:
        node: of an ATen graph. Its last argument is the name of a process group, but for a wait.
    """
    if nodes.waits(node):
        return "it waits for other processes"
    if not nodes.exchanges(node):
        return None
    tensors = [
        promise
        for item in node.all_input_nodes
        if isinstance(promise := compat.promise(item), torch.Tensor)
    ]
    name = group_name(node)
    where = "" if name is None else f" of group {name!r}"
    ranks = None if name is None else process_groups.ranks(name)
    if ranks is not None:
        where = f" with {_listed(ranks)}{where}"
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    if not all(isinstance(size, int) for size in sizes):
        return f"it exchanges data{where}"
    return f"it exchanges {sum(sizes):,} bytes{where}"


def _listed(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} alone"
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
