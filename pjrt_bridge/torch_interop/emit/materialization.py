"""Which values of a graph several loops read, so that they should be materialized.

A compiler that fuses elementwise operations into whatever reads them computes a value again in each
loop. In a network with residual connections each block's input is such a value: every later block
would add up all blocks before it. So is a state that each step of a recurrence makes of the one
before and something else reads: the last step would compute all others, and the time would grow
with the square of their number. A loop over a larger value computes a smaller one that it is
broadcast from for each of its own elements.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import OpOverload

_LEAST = 1 << 14
"""Elements. Fewer are recomputed in less time than another loop takes to start."""

_LOOPS = 4
"""Loops that are looked at for each value, so that the time is linear in the size of the graph."""

_START = 1 << 15
"""Additions, each of one element, that take as long as another loop to start."""

_MEMORY = 8
"""Additions that take as long as to write an element and to read it again."""

_FEWER = 8
"""Values of so many times fewer elements take little time to read again."""

_CHEAP = 4
"""Additions that take no longer than to read their result."""

_NAMES = {
    4: "div reciprocal",
    6: "rsqrt sqrt",
    10: "exp exp2",
    15: "elu erf expm1 log log10 log2 sigmoid silu tanh",
    20: "acos asin atan atanh cosh erfc gelu log1p logit sinh xlogy",
    25: "atan2 log_sigmoid_forward pow softplus",
    30: "acosh asinh erfinv logaddexp",
    40: "cos i0 mish sin",
    50: "tan",
    60: "digamma lgamma",
}
_COSTS = {name: cost for cost, names in _NAMES.items() for name in names.split()}
"""Additions that take as long as an elementwise operator, about; any other takes as long as one."""

_NORMALIZED = (
    "aten.native_layer_norm.default",
    "aten.native_group_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
)
"""Operators that end in elementwise operations on their input, whose result is their first."""

_BY_ROWS = ("aten.native_layer_norm.default", "aten.native_layer_norm_backward.default")
"""Norms over the last dimensions, and their gradients."""

_CONVERSIONS = ("aten._to_copy.default", "prims.convert_element_type.default")
"""Operators that convert a value to another element type."""

_UNTAGGED = ("aten.copy.default", "prims.fma.default", *_CONVERSIONS)
"""Elementwise operators that lack torch's tag `pointwise`."""


def should_materialize(node: fx.Node) -> bool:
    """Whether a node's value is elementwise and its readers cannot be fused into one loop.

    They cannot where one of several readers is a product, a convolution or a reduction. What takes
    less time to compute than to read stays in their loops, such as the mask of a row's target.
    """
    if not is_large_elementwise(node):
        return False
    readers = set(_readers(node))
    return len(readers) > 1 and not all(map(_is_fused, readers)) and not _is_made_of_few(node)


def _is_made_of_few(node: fx.Node) -> bool:
    """Whether a value is computed in a few additions of values of far fewer elements."""
    most = compat.promise(node).numel() // _FEWER
    cost = 0
    pending, seen = [node], {node}
    while pending:
        at = pending.pop()
        cost += _COSTS.get(_packet(at), 1)
        if cost > _MEMORY or not _is_pointwise(at):
            return False
        for source in at.all_input_nodes:
            needed = _larger(source, most)
            if needed is not None and needed not in seen:
                seen.add(needed)
                pending.append(needed)
    return True


def _larger(node: fx.Node, most: int) -> fx.Node | None:
    """What a node is a view of, unless that, or a view between, has few elements or is a number."""
    while True:
        value = compat.promise(node)
        if not isinstance(value, torch.Tensor):
            return node if isinstance(value, (tuple, list)) else None
        if not compat.is_symbolic(value) and value.numel() <= most:
            return None
        viewed = _viewed(node)
        if viewed is None:
            return node
        node = viewed


def is_normalized_by_rows(node: fx.Node) -> bool:
    """Whether a norm over the last dimensions reads a value, or what it is converted to.

    A norm is fast where its elements lie side by side in memory. In a vision transformer they would
    not: the convolution before the first block puts channels before places, and each sum with its
    result would keep that order.
    """
    for reader in node.users:
        name = compat.operator_name(reader.target)
        if name in _BY_ROWS or (name in _CONVERSIONS and is_normalized_by_rows(reader)):
            return True
    return False


def _is_fused(reader: fx.Node) -> bool:
    """Whether a reader is elementwise; a conversion of what is read elsewhere is a part of that."""
    if compat.operator_name(reader.target) in _CONVERSIONS:
        return all(map(_is_fused, _readers(reader)))
    return _is_pointwise(reader)


def recomputed(graph: fx.Graph) -> frozenset[fx.Node]:
    """Elementwise values that loops would compute so often that they should be materialized.

    Whatever is not elementwise has a loop for each value that it reads, as a concatenation has. A
    value that is a result has one, too. A loop computes what it reads for each of its elements.
    Values are taken from the last one on; the loops behind one that is materialized read it, and do
    not compute what comes before.
    """
    costs = _costs(graph)
    place = {node: index for index, node in enumerate(graph.nodes)}
    loops: dict[fx.Node, list[_Loop]] = {}
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in costs:
            continue
        elements = compat.promise(node).numel()
        inside = {
            loop
            for at in _loop_readers(node)
            for loop in loops.get(at, [_Loop(elements, place[node], place[at])])
        }
        largest = sorted(inside, reverse=True)[:_LOOPS]
        saved = (sum(loop.elements for loop in largest) - elements) * costs[node]
        if costs[node] >= _CHEAP and saved >= max(_START, _MEMORY * elements):
            found.add(node)
            largest = [_Loop(elements, place[node], place[node])]
        loops[node] = largest
    return frozenset(found)


class _Loop(NamedTuple):
    """A loop that computes a value: its elements, and which node it ends in for which reader."""

    elements: int
    last: int
    reader: int


def _costs(graph: fx.Graph) -> dict[fx.Node, int]:
    """Of elementwise values: additions that take as long as what leads to an element of them."""
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        value = compat.promise(node)
        is_known = isinstance(value, torch.Tensor) and not compat.is_symbolic(value)
        if is_known and _is_elementwise(node):
            before = max((found.get(at, 0) for at in _sources(node)), default=0)
            found[node] = before + _COSTS.get(_packet(node), 1)
    return found


def _packet(node: fx.Node) -> str:
    """An operator's name without its namespace and overload."""
    return node.target.__name__.partition(".")[0] if isinstance(node.target, OpOverload) else ""


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The values that an operator computes with, behind views of them."""
    for source in node.all_input_nodes:
        while (viewed := _viewed(source)) is not None:
            source = viewed
        yield source


def _viewed(node: fx.Node) -> fx.Node | None:
    """What a node is a view of; None where it is no view, or one of a number."""
    if not (isinstance(node.target, OpOverload) and node.target.is_view):
        return None
    return next(iter(node.all_input_nodes), None)


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
