"""Tensors of a graph whose elements are known: they are computed from numbers alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

_MAX_OPERATORS = 100
_MAX_ELEMENTS = 1 << 26
"""In memory, of each value on the way, so that looking at a tensor costs little."""


def constant_tensor(node: fx.Node) -> torch.Tensor | None:
    """The elements of a tensor on the host; None where they are not known."""
    made = _made_of(node)
    if made is None:
        return None
    with compat.real_tensors():
        return _evaluated(made)


def _made_of(tensor: fx.Node) -> list[fx.Node] | None:
    """The nodes that a tensor is computed with, in order; None where it is not known."""
    found: set[fx.Node] = set()
    waiting = [tensor]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if len(found) > _MAX_OPERATORS or not _is_constant_operator(node):
            return None
        waiting += node.all_input_nodes
    return [node for node in tensor.graph.nodes if node in found]


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
