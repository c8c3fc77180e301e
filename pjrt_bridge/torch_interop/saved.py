"""Results of a forward graph that only its backward graph reads: they lie as the device has them.

Nobody else sees their strides, so forward does not copy them into the order that PyTorch promises,
only for backward to copy them back, as a network of convolutions with channels last would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

_SAVED = "pjrt_bridge_saved_for_backward"


def mark_saved(graph: fx.Graph, visible: int) -> None:
    """Note of the nodes of a forward graph at which position they are saved for backward.

    Args:
        graph: as AOTAutograd gives it.
        visible: how many of the first results the user sees; the others are saved.
    """
    results = graph.output_node().args[0]
    assert isinstance(results, (list, tuple))
    once = Counter(item for item in results if isinstance(item, fx.Node))
    for position, node in enumerate(results):
        if position >= visible and isinstance(node, fx.Node) and once[node] == 1:
            promise = compat.promise(node)
            if (
                node.op == "call_function"
                and isinstance(promise, torch.Tensor)
                and not compat.is_symbolic(promise)
                and promise.is_contiguous()
            ):
                node.meta[_SAVED] = position


def see_strides(node: fx.Node) -> None:
    """Note that another result is a view of a node, whose memory therefore lies as promised."""
    node.meta.pop(_SAVED, None)


def saved_position(node: fx.Node) -> int | None:
    """The position at which only backward reads a node's value; None where others do, too."""
    found = node.meta.get(_SAVED)
    assert found is None or isinstance(found, int)
    return found


def take_as_saved(graph: fx.Graph, given: Sequence[Any]) -> None:
    """Have a backward graph take its arguments with the strides that they are saved with.

    Each such argument is copied as it was promised, before anything reads it: PyTorch needs that,
    where it runs the graph, and a program reads the argument as it lies.

    Args:
        graph: of backward, whose promises know nothing of these strides.
        given: fake arguments that have them.
    """
    placeholders = graph.find_nodes(op="placeholder")
    clone = compat.operator("aten.clone.default")
    assert clone is not None
    for node, example in reversed(list(zip(placeholders, given, strict=True))):
        promise = compat.promise(node)
        if not isinstance(promise, torch.Tensor) or not isinstance(example, torch.Tensor):
            continue
        if any(map(compat.is_symbolic, (promise, example))):
            continue
        if promise.stride() == example.stride() or not promise.is_contiguous():
            continue
        with graph.inserting_after(placeholders[-1]):
            copy = graph.call_function(clone, (node,), {"memory_format": torch.contiguous_format})
        copy.meta = {**node.meta, "val": promise}
        node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
        node.meta["val"] = example
