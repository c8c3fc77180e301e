"""Masks of attention that are causal, whatever the input: attention is told so in their place.

Models that are traced compute such a mask from positions, where in eager they would say
`is_causal`. A kernel that knows reads no mask, and leaves out what nobody sees.

Before: `%m = le(%columns, %rows); attention(%q, %k, %v, attn_mask=%m)`, where columns and rows are
made of `arange`. After: `attention(%q, %k, %v, 0.0, True)`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.constant_tensors import constant_tensor

_PLACES = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (0, 3),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (1, 6),
}
"""Of the query and of the probability of dropout, which `is_causal` follows, by operator."""


def recognize_causal_masks(graph: fx.Graph) -> None:
    """Take causal masks away from attention, in place.

    Args:
        graph: a functional graph.
    """
    known: dict[fx.Node, bool] = {}
    for node in list(graph.nodes):
        places = _PLACES.get(compat.operator_name(node.target) or "")
        mask = node.kwargs.get("attn_mask") if places is not None else None
        if places is None or not isinstance(mask, fx.Node):
            continue
        query, dropout = places
        if len(node.args) > dropout + 1 and node.args[dropout + 1]:
            continue
        if {"dropout_p", "is_causal"} & node.kwargs.keys():
            continue
        if not _keeps_hidden(node.kwargs.get("scale")):
            continue
        if mask not in known:
            known[mask] = _is_causal(mask, compat.promise(node.args[query]).shape[2])
        if known[mask]:
            probability = node.args[dropout] if len(node.args) > dropout else 0.0
            node.args = (*node.args[:dropout], probability, True)
            node.kwargs = {name: x for name, x in node.kwargs.items() if name != "attn_mask"}
    for mask, is_causal in known.items():
        if is_causal:
            _erase(mask)


def _keeps_hidden(scale: Any) -> bool:
    """Whether scores of -inf are hidden when they are multiplied by a scale.

    A mask is added behind that; PyTorch's kernel multiplies what is hidden because of `is_causal`.
    """
    return scale is None or (isinstance(scale, (int, float)) and scale > 0)


def _is_causal(mask: fx.Node, queries: Any) -> bool:
    """Whether a mask hides from each query the keys behind its own position, and nothing else."""
    found = constant_tensor(mask)
    if found is None:
        return False
    with compat.real_tensors():
        if found.dim() < 2 or found.shape[-2] != queries:
            return False
        # What is repeated is looked at once.
        repeated = [dim for dim in range(found.dim() - 2) if found.stride(dim) == 0]
        for dim in repeated:
            found = found.narrow(dim, 0, 1)
        seen = found if found.dtype == torch.bool else found == 0
        hidden = ~found if found.dtype == torch.bool else found == -math.inf
        below = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).tril()
        return bool((seen == below).all() and (hidden == ~below).all())


def _erase(mask: fx.Node) -> None:
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if not node.users:
            inputs = node.all_input_nodes
            mask.graph.erase_node(node)
            waiting += [item for item in inputs if not item.users]
