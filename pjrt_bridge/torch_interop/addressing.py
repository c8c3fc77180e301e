"""Operators that address the storage of a tensor, whatever the tensor's own elements are."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from pjrt_bridge.torch_interop import compat

_ADDRESSING = frozenset(
    f"aten.{name}.default" for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
_COPYING = frozenset(
    (
        "aten.as_strided_scatter.default",
        "aten.copy.default",
        "aten.diagonal_scatter.default",
        "aten.select_scatter.default",
        "aten.slice_scatter.default",
    )
)
"""They copy the whole storage of their first argument (ATen's `clone_preserve_strides`)."""


def addresses_storage(node: fx.Node) -> bool:
    """Whether a node reads or replaces elements of the storage of its first argument."""
    return compat.operator_name(node.target) in _ADDRESSING


def sharing_storage(node: fx.Node) -> Iterator[fx.Node]:
    """A node, and what its storage is a copy of, or the same as, up to what made it."""
    while True:
        yield node
        target = node.target
        if not isinstance(target, compat.OpOverload):
            return
        if not target.is_view and str(target) not in _COPYING:
            return
        node = node.all_input_nodes[0]


def is_copy_around_argument(node: fx.Node) -> bool:
    """Whether a node's storage is a copy of an argument's, with what lies around the argument.

    Torch promises that such a node begins its storage; it lies where the argument does.
    """
    found = list(sharing_storage(node))
    is_given = found[-1].op != "call_function"
    return is_given and any(str(item.target) in _COPYING for item in found)


def addressed_storages(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose storage such a node addresses, or that it is a copy of."""
    return {
        sharing
        for node in graph.nodes
        if addresses_storage(node)
        for sharing in sharing_storage(node.all_input_nodes[0])
    }
