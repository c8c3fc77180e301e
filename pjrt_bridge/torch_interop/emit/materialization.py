"""Which values of a graph several loops read, so that they should be materialized.

A compiler that fuses elementwise operations into whatever reads them computes a value again in each
loop. In a network with residual connections each block's input is such a value: every later block
would add up all blocks before it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import OpOverload

_LEAST = 1 << 14
"""Elements. Fewer are recomputed in less time than another loop takes to start."""

_NORMALIZED = (
    "aten.native_layer_norm.default",
    "aten.native_group_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
)
"""Operators that end in elementwise operations on their input, whose result is their first."""

_UNTAGGED = ("aten.copy.default", "prims.fma.default")
"""Elementwise operators that lack torch's tag `pointwise`."""


def should_materialize(node: fx.Node) -> bool:
    """Whether a node's value is elementwise and its readers cannot be fused into one loop.

    They cannot where one of several readers is a product, a convolution or a reduction.
    """
    if not is_large_elementwise(node):
        return False
    readers = set(_readers(node))
    return len(readers) > 1 and not all(map(_is_pointwise, readers))


def is_large_elementwise(node: fx.Node) -> bool:
    """Whether a node's value is elementwise, and large enough to be worth a loop of its own."""
    value = compat.promise(node)
    if not isinstance(value, torch.Tensor) or not _is_elementwise(node):
        return False
    return not compat.is_symbolic(value) and value.numel() >= _LEAST


def _is_elementwise(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node)
        return compat.operator_name(source.target) in _NORMALIZED and bool(index == 0)
    return _is_pointwise(node) and not _is_argument(node)


def _is_argument(node: fx.Node) -> bool:
    """Whether a node copies an argument, which is in memory already."""
    name = compat.operator_name(node.target)
    return name == "aten.clone.default" and node.all_input_nodes[0].op == "placeholder"


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The operators that compute with a value, or with a view of it."""
    for user in node.users:
        if isinstance(user.target, OpOverload) and user.target.is_view:
            yield from _readers(user)
        elif user.op == "call_function":
            yield user


def _is_pointwise(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and (
        torch.Tag.pointwise in target.tags or compat.operator_name(target) in _UNTAGGED
    )
