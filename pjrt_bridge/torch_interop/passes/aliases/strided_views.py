"""Operators that address the storage of a tensor, and all of its elements in order: views of it.

ATen restrides the mean of an image whose channels come last (`adaptive_avg_pool2d` to one element),
and writes a gradient through such a view. Which elements are addressed does not depend on the
sizes, so what is a view can be padded.

Before: `as_strided(%x, [%s0, 8, 1, 1], [8, 1, 8, 8])`, where `%x` is row-major and has `8 * %s0`
elements. After: `view(%x, [%s0, 8, 1, 1])`. `as_strided_copy` of all elements is a copy of such a
view, and `as_strided_scatter` of all elements one of what it writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.addressing import addresses_storage

_aten = torch.ops.aten


def view_whole_tensors(graph: fx.Graph) -> None:
    """Make views of operators that address all elements of a tensor in their order.

    Args:
        graph: a functional graph, whose sizes need not be known.
    """
    for node in list(graph.nodes):
        if addresses_storage(node) and (viewed := _viewed(node)) is not None:
            with graph.inserting_before(node):
                made = graph.call_function(_aten.view.default, viewed)
                if not node.target.is_view:
                    made.meta = dict(node.meta)
                    made = graph.call_function(_aten.clone.default, (made,))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _viewed(node: fx.Node) -> tuple[fx.Node, list[Any]] | None:
    """The tensor whose elements a node has in their order, if there is one, and its sizes."""
    given = compat.bound_arguments(node)
    tensor = node.all_input_nodes[0]
    sizes, strides, offset = (
        fx.map_arg(given[name], compat.promise) for name in ("size", "stride", "storage_offset")
    )
    memory = compat.promise(tensor)
    if (
        not _is_row_major(memory.shape, memory.stride())
        or not _is_row_major(sizes, strides)
        or not _is_same(math.prod(sizes), math.prod(memory.shape))
        or not (offset is None or _is_same(offset, memory.storage_offset()))
    ):
        return None
    if "src" not in given:
        return tensor, given["size"]
    source, shape = given["src"], [size if isinstance(size, int) else -1 for size in memory.shape]
    written = compat.promise(source)
    if (
        written.dtype is not memory.dtype
        or not _is_row_major(written.shape, written.stride())
        or shape.count(-1) > (0 not in shape)
    ):
        return None
    return source, shape


def _is_row_major(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether elements lie in order without gaps; a stride along a size of 1 says nothing."""
    expected: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not _is_same(size, 1):
            if not _is_same(stride, expected):
                return False
            expected = expected * size
    return True


def _is_same(one: Any, other: Any) -> bool:
    return compat.is_same_size(compat.expression(one), compat.expression(other))
