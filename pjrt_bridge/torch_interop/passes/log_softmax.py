"""Log-softmax over many classes: forward saves the scores for backward, which computes it again.

A loss reads one element of each row of such a logarithm, and its gradient all of them. As one
operator it is written to memory, beside the scores that it is computed of. As elementwise operators
and sums it is computed where it is read: backward is given the scores, and two numbers of each row.

Before: `%log = _log_softmax(%x, 1, False); ...; %powers = exp(%log)`. After: `%rest = sub(%x,
amax(%x, [1], True)); %log = sub(%rest, log(sum(exp(%rest), [1], True))); ...; %powers = exp(%log)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

LEAST = 1 << 20
"""Elements from which on it is computed again: fewer stay in a cache."""

_NAME = "aten._log_softmax.default"
_GRADIENTS = ("aten.exp.default", "aten._log_softmax_backward_data.default")
"""Operators of its gradient, decomposed or not, that read all elements."""


def recompute_log_softmax(graph: fx.Graph, keeps: Callable[[str], bool]) -> None:
    """Have gradients of large ones computed from the scores, in place.

    Args:
        graph: of a step forward and backward.
        keeps: says of an operator's name that it stays as it is.
    """
    if keeps(_NAME):
        return
    for node in list(graph.nodes):
        if compat.operator_name(node.target) != _NAME or not _is_large(node):
            continue
        if any(compat.operator_name(user.target) in _GRADIENTS for user in node.users):
            _replace(graph, node, _decomposed(graph, node))


def _is_large(node: fx.Node) -> bool:
    found = compat.promise(node)
    known = all(isinstance(size, int) for size in found.shape)
    return known and found.dim() > 0 and found.numel() >= LEAST and found.is_floating_point()


def _decomposed(graph: fx.Graph, node: fx.Node) -> fx.Node:
    x, dim, _ = node.args
    with graph.inserting_before(node):
        wide = _wide(graph, x)
        largest = _call(graph, "amax.default", wide, [dim], True)
        rest = _call(graph, "sub.Tensor", wide, largest)
        total = _call(graph, "sum.dim_IntList", _call(graph, "exp.default", rest), [dim], True)
        found = _call(graph, "sub.Tensor", rest, _call(graph, "log.default", total))
        return _as(graph, found, compat.promise(node).dtype)


def _replace(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    by.meta = {**node.meta, "val": by.meta["val"]}
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def _wide(graph: fx.Graph, x: Any) -> fx.Node:
    """Half precision is computed in float32."""
    dtype = compat.promise(x).dtype
    return _as(graph, x, torch.float32 if dtype.itemsize < 4 else dtype)


def _as(graph: fx.Graph, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    if compat.promise(x).dtype == dtype:
        return x
    return _call(graph, "_to_copy.default", x, dtype=dtype)


def _call(graph: fx.Graph, name: str, *args: Any, **kwargs: Any) -> fx.Node:
    return compat.insert_call(graph, f"aten.{name}", *args, **kwargs)
