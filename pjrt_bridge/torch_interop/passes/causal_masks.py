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

_PLACES = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (0, 3),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (1, 6),
}
"""Of the query and of the probability of dropout, which `is_causal` follows, by operator."""

_MAX_OPERATORS = 100
_MAX_ELEMENTS = 1 << 26
"""In memory, of each value that a mask is computed from, so that looking at it costs little."""


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
        if mask not in known:
            known[mask] = _is_causal(mask, compat.promise(node.args[query]).shape[2])
        if known[mask]:
            probability = node.args[dropout] if len(node.args) > dropout else 0.0
            node.args = (*node.args[:dropout], probability, True)
            node.kwargs = {name: x for name, x in node.kwargs.items() if name != "attn_mask"}
    for mask, is_causal in known.items():
        if is_causal:
            _erase(mask)


def _is_causal(mask: fx.Node, queries: Any) -> bool:
    """Whether a mask hides from each query the keys behind its own position, and nothing else."""
    made = _made_of(mask)
    if made is None:
        return False
    with compat.real_tensors():
        found = _evaluated(made)
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


def _made_of(mask: fx.Node) -> list[fx.Node] | None:
    """The nodes that a mask is computed with, in order; None where its value is not known here."""
    found: set[fx.Node] = set()
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if len(found) > _MAX_OPERATORS or not _is_constant_operator(node):
            return None
        waiting += node.all_input_nodes
    return [node for node in mask.graph.nodes if node in found]


def _is_constant_operator(node: fx.Node) -> bool:
    if node.op != "call_function" or not (compat.operator_name(node.target) or "").startswith(
        "aten."
    ):
        return False
    value = compat.promise(node)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    assert isinstance(node.target, compat.OpOverload)
    # What is empty holds anything.
    if torch.Tag.nondeterministic_seeded in node.target.tags or "empty" in str(node.target):
        return False
    extents = list(zip(value.shape, value.stride(), strict=True))
    return (
        all(type(size) is int and size > 0 for size, _ in extents)
        and math.prod(size for size, step in extents if step) <= _MAX_ELEMENTS
        and not node.target._schema.is_mutable
    )


def _evaluated(made: list[fx.Node]) -> torch.Tensor:
    values: dict[fx.Node, Any] = {}
    for node in made:
        args, kwargs = compat.substitute((node.args, node.kwargs), values)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    found: torch.Tensor = values[made[-1]]
    return found


def _erase(mask: fx.Node) -> None:
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if not node.users:
            inputs = node.all_input_nodes
            mask.graph.erase_node(node)
            waiting += [item for item in inputs if not item.users]
