"""Operators that address storages: given the tensor that is a whole storage, row-major.

`as_strided` of a view addresses the storage of the view's base, wherever the view's own elements
lie there. A device has values, not storages; what can be lowered is `as_strided` of a tensor whose
elements are all that its storage has, in order.

Before: `%v = transpose(%x, 0, 1); as_strided(%v, size, stride)`. After: `as_strided(%x, size,
stride, 0)`, where `%x` was computed row-major; else of `%x` permuted to the order of its memory. A
view of another element type addresses elements of that type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.addressing import addresses_storage
from pjrt_bridge.torch_interop.nodes import computed

_aten = torch.ops.aten


def address_whole_storages(module: fx.GraphModule) -> None:
    """Have operators that address storages take them whole, in place.

    What lies around an argument of the graph is not known here: see `placement/surroundings.py`.

    Args:
        module: a functional graph of known sizes.
    """
    for node in list(module.graph.nodes):
        if not addresses_storage(node):
            continue
        view = node.all_input_nodes[0]
        base = _base(view)
        with module.graph.inserting_before(node):
            storage = _in_memory_order(module.graph, base)
            if storage is None or storage is view:
                continue
            storage = _in_type(module.graph, storage, compat.promise(view).dtype)
            _address(module.graph, node, view, storage)
    module.graph.lint()


def _base(node: fx.Node) -> fx.Node:
    """What a node is a view of, or the node."""
    while isinstance(node.target, compat.OpOverload) and node.target.is_view:
        node = node.all_input_nodes[0]
    return node


def _in_memory_order(graph: fx.Graph, base: fx.Node) -> fx.Node | None:
    """A tensor of a whole storage with its dimensions in the order of memory, if it is dense."""
    promise = compat.promise(base)
    if not isinstance(promise, torch.Tensor) or compat.is_symbolic(promise):
        return None
    if _is_whole(promise):
        return base
    steps = promise.stride()
    order = sorted(range(promise.dim()), key=lambda dim: (-steps[dim], -promise.shape[dim]))
    if base.op == "placeholder" or not _is_whole(promise.permute(order)):
        return None
    return computed(graph, _aten.permute.default, base, order)


def _in_type(graph: fx.Graph, storage: fx.Node, dtype: torch.dtype) -> fx.Node:
    """A storage as elements of a type that a view of it has; their sizes may differ."""
    promise = compat.promise(storage)
    if promise.dtype is dtype:
        return storage
    elements = max(dtype.itemsize // promise.dtype.itemsize, 1)
    line = computed(graph, _aten.reshape.default, storage, [-1])
    if promise.numel() % elements:
        line = computed(graph, _aten.slice.Tensor, line, 0, 0, -(promise.numel() % elements))
    if promise.dtype.is_complex:
        parts = computed(graph, _aten.view_as_real.default, line)
        line = computed(graph, _aten.reshape.default, parts, [-1])
    real = dtype.to_real()
    if compat.promise(line).dtype is not real:
        line = computed(graph, _aten.view.dtype, line, real)
    if dtype.is_complex:
        pairs = computed(graph, _aten.reshape.default, line, [-1, 2])
        line = computed(graph, _aten.view_as_complex.default, pairs)
    return line


def _is_whole(promise: torch.Tensor) -> bool:
    """Whether a tensor lies row-major from the start of its storage on."""
    return promise.is_contiguous() and promise.storage_offset() == 0


def _address(graph: fx.Graph, node: fx.Node, view: fx.Node, storage: fx.Node) -> None:
    """Have a node address a storage that it was given a view of."""
    given = compat.bound_arguments(node)
    place = [given[name] for name in ("size", "stride")]
    seen = compat.promise(view)
    offset = given["storage_offset"]
    place.append(seen.storage_offset() if offset is None else offset)
    assert isinstance(node.target, compat.OpOverload)
    if "src" not in given:
        made = graph.call_function(node.target, (storage, *place))
        made.meta = dict(node.meta)
    else:
        # The result is the same view of the changed storage.
        changed = computed(graph, node.target, storage, given["src"], *place)
        own: list[Any] = [[*seen.shape], [*seen.stride()], seen.storage_offset()]
        made = graph.call_function(_aten.as_strided.default, (changed, *own))
        made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
