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


def exchanges_in(graph: fx.Graph) -> str | None:
    """What a part of a graph does with other processes, for its errors; None where it is nothing.

    Torch's errors of collective operations name neither the operation nor the processes.
    """
    lines = []
    for node in graph.nodes:
        text = communication(node) if node.op == "call_function" else None
        if text is not None:
            taken = ", ".join(map(_shown, node.all_input_nodes))
            source = nodes.source_line(node)
            where = f", {source}" if source else ""
            lines.append(f"  {nodes.label(node)}({taken}): {text}{where}")
    if not lines:
        return None
    return (
        "It happened where PyTorch ran these operations of a compiled graph:\n"
        + "\n".join(lines)
        + "\nExpected that each of these processes runs them, in the same order and with sizes "
        "that fit. One that has ended, or runs another program, says why in its own output."
    )


def _shown(node: fx.Node) -> str:
    promise = compat.promise(node)
    if not isinstance(promise, torch.Tensor):
        return type(promise).__name__
    return f"{str(promise.dtype).removeprefix('torch.')}{list(promise.shape)}"


def _listed(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} alone"
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
