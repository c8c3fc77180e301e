"""Which values of a graph several loops read, so that they should be materialized.

A compiler that fuses elementwise operations into whatever reads them computes a value again in each
loop. In a network with residual connections each block's input is such a value: every later block
would add up all blocks before it. So is a state that each step of a recurrence makes of the one
before and something else reads: the last step would compute all others, and the time would grow
with the square of their number.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import islice

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import OpOverload

_LEAST = 1 << 14
"""Elements. Fewer are recomputed in less time than another loop takes to start."""

_LOOPS = 3
"""Loops that compute a value from which on it is materialized, where that takes long."""

_LONG = 1 << 12
"""Elements times operations one after the other that take long: as another loop does to start."""

_DEEP = 4
"""Operations one after the other: fewer take no longer than to read their result."""

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


def recomputed(graph: fx.Graph) -> frozenset[fx.Node]:
    """Elementwise values that so many loops would compute that they should be materialized.

    Whatever is not elementwise has a loop for each value that it reads, as a concatenation has. A
    value that is a result has one, too. Values are taken from the last one on; the loops behind one
    that is materialized read it, and do not compute what comes before.
    """
    depths = _depths(graph)
    loops: dict[fx.Node, frozenset[tuple[fx.Node, fx.Node]]] = {}
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        depth = depths.get(node, 0)
        if not depth:
            continue
        found_in = (loops.get(at, {(node, at)}) for at in _loop_readers(node))
        inside = frozenset[tuple[fx.Node, fx.Node]]().union(*found_in)
        elements = compat.promise(node).numel()
        if len(inside) >= _LOOPS and depth >= _DEEP and depth * elements >= _LONG:
            found.add(node)
            inside = frozenset({(node, node)})
        # More than that are not counted, so that the time is linear in the size of the graph.
        loops[node] = frozenset(islice(inside, _LOOPS))
    return frozenset(found)


def _depths(graph: fx.Graph) -> dict[fx.Node, int]:
    """Of elementwise values: how many elementwise operations lead to them, one after the other."""
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        value = compat.promise(node)
        is_known = isinstance(value, torch.Tensor) and not compat.is_symbolic(value)
        if is_known and _is_elementwise(node):
            found[node] = 1 + max((found.get(at, 0) for at in _sources(node)), default=0)
    return found


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The values that an operator computes with, behind views of them."""
    for source in node.all_input_nodes:
        while isinstance(source.target, OpOverload) and source.target.is_view:
            viewed = source.all_input_nodes
            if not viewed:
                # It is one of a number.
                break
            source = viewed[0]
        yield source


def _loop_readers(node: fx.Node) -> Iterator[fx.Node]:
    """`_readers`, and the value itself where it is a result of the graph."""
    yield from _readers(node)
    if _is_result(node):
        yield node


def _is_result(node: fx.Node) -> bool:
    """Whether a value, or a view of it, is a result of the graph."""
    return any(
        user.op == "output"
        or (isinstance(user.target, OpOverload) and user.target.is_view and _is_result(user))
        for user in node.users
    )


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
