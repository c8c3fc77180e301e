"""Nodes that have the elements of others, in the same order.

Products take three dimensions, and models compute with four or more: between them are views,
copies, and permutations that move dimensions of one element only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import fx

from pjrt_bridge.torch_interop import compat

_ALWAYS = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "_unsafe_view.default", "reshape.default", "clone.default"),
        *("alias.default", "unsqueeze.default"),
        *("squeeze.default", "squeeze.dim", "squeeze.dims"),
    )
)
_PERMUTING = ("aten.permute.default", "aten.transpose.int", "aten.t.default")
_CONVERTING = ("aten._to_copy.default", "prims.convert_element_type.default")


class SameElements(NamedTuple):
    """Nodes with the same elements, perhaps as other floats, beginning with the one asked for.

    Attributes:
        same: those that have them in the same order.
        nodes: these, and permutations between them that leave no order together with others.
    """

    same: list[fx.Node]
    nodes: list[fx.Node]


def behind(node: fx.Node) -> SameElements:
    """The nodes that a node is a layout of, the first to be computed last."""
    found = SameElements([node], [node])
    while nodes := _sources(found.same[-1]):
        found.same.append(nodes[-1])
        found.nodes.extend(nodes)
    return found


def origin(node: fx.Node) -> fx.Node:
    """The first node that has the elements of a node."""
    return behind(node).same[-1]


def ahead(node: fx.Node) -> SameElements:
    """The nodes that are a layout of a node, as long as each has one user."""
    found, waiting = SameElements([node], [node]), []
    while len(node.users) == 1:
        (node,) = node.users
        waiting.append(node)
        sources = _sources(node)
        if sources and sources[-1] is found.same[-1]:
            found.same.append(node)
            found.nodes.extend(waiting)
            waiting = []
        elif compat.operator_name(node.target) not in _PERMUTING:
            break
    return found


def _sources(node: fx.Node) -> list[fx.Node]:
    """What leads to a node that has the same elements in the same order, it last; else nothing."""
    name = compat.operator_name(node.target)
    if name is None or not node.args or not isinstance(node.args[0], fx.Node):
        return []
    inner = node.args[0]
    if name in _PERMUTING:
        return _sources_of_permuted(node)
    is_same = name in _ALWAYS
    if name in _CONVERTING:
        before, after = (compat.promise(item) for item in (inner, node))
        is_float = before.is_floating_point() and after.is_floating_point()
        is_same = is_float and before.device == after.device
    elif name == "aten.expand.default":
        is_same = are_alike(shape(inner), shape(node))
    return [inner] if is_same else []


def _sources_of_permuted(node: fx.Node) -> list[fx.Node]:
    """Permutations that follow each other, until together they leave the order."""
    order = list(range(len(shape(node))))
    nodes = []
    while compat.operator_name(node.target) in _PERMUTING:
        inner = node.args[0]
        assert isinstance(inner, fx.Node)
        before = permutation(node)
        order, node = [before[dim] for dim in order], inner
        nodes.append(node)
        sizes = shape(node)
        moved = [dim for dim in order if not compat.is_same_size(sizes[dim], 1)]
        if moved == sorted(moved):
            return nodes
    return []


def shape(node: fx.Node) -> tuple[Any, ...]:
    """The sizes of a tensor; some may be expressions of symbols."""
    return tuple(map(compat.expression, compat.promise(node).shape))


def has_shape(node: fx.Node, sizes: Sequence[Any]) -> bool:
    """Whether a tensor is known to have these sizes."""
    return _is_same(shape(node), sizes)


def has_shape_at_end(node: fx.Node, sizes: Sequence[Any]) -> bool:
    """Whether the last sizes of a tensor are known to be these."""
    return _is_same(shape(node)[-len(sizes) :], sizes)


def permutation(node: fx.Node) -> list[int]:
    """The order of dimensions in a permutation."""
    given = compat.bound_arguments(node)
    rank = len(shape(given["self"]))
    order = list(range(rank))
    if "dims" in given:
        return [dim % rank for dim in given["dims"]]
    if rank > 1:
        one, other = (given[name] % rank if name in given else at for name, at in _TRANSPOSED)
        order[one], order[other] = order[other], order[one]
    return order


_TRANSPOSED = (("dim0", 0), ("dim1", 1))


def turned(node: fx.Node) -> fx.Node | None:
    """Of what a node is the transposed: the last two dimensions are exchanged."""
    if compat.operator_name(node.target) not in _PERMUTING:
        return None
    order = permutation(node)
    rank = len(order)
    is_turned = rank > 1 and order == [*range(rank - 2), rank - 1, rank - 2]
    inner = node.args[0]
    return inner if is_turned and isinstance(inner, fx.Node) else None


def is_turned(one: fx.Node, other: fx.Node) -> bool:
    """Whether two matrices, or as many of them, are each other's transposed."""
    return any(
        inner is not None and origin(inner) is origin(b) and has_shape(inner, shape(b))
        for a, b in ((one, other), (other, one))
        for inner in (turned(a),)
    )


def are_equal(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes have the same elements in the same shape."""
    return one is other or (origin(one) is origin(other) and has_shape(one, shape(other)))


def are_alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes are known to be equal but for those of one element."""
    return _is_same(_extents(one), _extents(other))


def _extents(sizes: Sequence[Any]) -> list[Any]:
    return [size for size in sizes if not compat.is_same_size(size, 1)]


def _is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(compat.is_same_size, one, other))
