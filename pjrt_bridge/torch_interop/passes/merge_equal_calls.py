"""Common subexpressions of a joint graph are computed once.

Before:

    sigmoid = sigmoid(x); sigmoid_1 = sigmoid(x); mul = mul(sigmoid, sigmoid_1)

After:

    sigmoid = sigmoid(x); mul = mul(sigmoid, sigmoid)

A joint graph is rewritten before it is divided, so that backward reads what forward computed and
saves one value instead of two. Within one program the plugin's compiler does the same. PyTorch's
partitioner has such a pass, which imports the whole of Inductor: a third of the time of a first
call.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import COPY_INTO_INPUT, depends_on_data, has_effect

_UNINITIALIZED = ("empty", "new_empty", "_efficientzerotensor", "resize")
"""Beginnings of the names of operators whose results hold anything."""


class _Unequal(Exception):
    """An argument that cannot be compared."""


def merge_equal_calls(graph: fx.Graph) -> None:
    """Merge nodes that call one operator with the same arguments.

    Those stay that have effects, that hold uninitialized memory, or that share memory with a
    result: results that are tensors of their own in eager stay so. A node that writes into an
    argument separates what stands before it from what stands after it.

    Args:
        graph: changed in place.
    """
    results = _results(graph)
    known: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if compat.operator_name(node.target) == COPY_INTO_INPUT:
            known.clear()
        if not _can_merge(node) or _storage(node) in results:
            continue
        try:
            key = (node.target, _key(node.args), _key(node.kwargs), node.meta.get("recompute"))
            earlier = known.setdefault(key, node)
        except (_Unequal, TypeError):
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _results(graph: fx.Graph) -> set[int]:
    found = {_storage(node) for node in graph.output_node().all_input_nodes}
    return {storage for storage in found if storage is not None}


def _storage(node: fx.Node) -> int | None:
    promise = compat.promise(node)
    return compat.storage_identity(promise) if isinstance(promise, torch.Tensor) else None


def _can_merge(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, compat.OpOverload):
        return False
    _, name, _ = str(node.target).split(".")
    return not (
        node.target._schema.is_mutable
        or has_effect(node)
        or depends_on_data(node)
        or name.startswith(_UNINITIALIZED)
    )


def _key(value: Any) -> Hashable:
    """Equal for arguments that are the same to an operator: 1 and 1.0 and True are not."""
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return slice, _key(value.start), _key(value.stop), _key(value.step)
    if isinstance(value, float | complex):
        # Zeros of both signs are equal, and no NaN is.
        return type(value), repr(value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | torch.Tensor):
        raise _Unequal
    return type(value), value
