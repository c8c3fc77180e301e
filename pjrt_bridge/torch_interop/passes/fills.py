"""Filled tensors that depend on the sizes of another tensor, and not on its values.

Where backward fills a tensor like a result of forward, torch's partitioner would save that result,
and autograd would not let it be written into: eager saves none of it.
"""

from __future__ import annotations

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat


def fill_by_sizes(graph: fx.Graph) -> None:
    """Fill tensors of known sizes without the tensors that they are like."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.full_like.default):
        promise = compat.promise(node)
        if compat.is_symbolic(promise) or not promise.is_contiguous():
            continue
        with graph.inserting_before(node):
            filled = graph.call_function(
                aten.full.default,
                (list(promise.shape), node.args[1]),
                {"dtype": promise.dtype, "device": promise.device, "pin_memory": False},
            )
        filled.meta = dict(node.meta)
        node.replace_all_uses_with(filled)
        graph.erase_node(node)
