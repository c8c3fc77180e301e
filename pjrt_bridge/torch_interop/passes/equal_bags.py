"""Bags of embeddings that all have the same number of indices: rows are summed in groups.

Such offsets come of indices that lie in a matrix, a bag in each row. Without offsets no index has
to find its bag, and sums need no positions.

Before: `%o = arange(0, 12, 3); %bags = _embedding_bag(%table, %indices, %o); %bags[0]`. After:
`pjrt_bridge::_embedding_bag(%table, %indices, 3, False)` in the place of `%bags[0]`. In PyTorch it
is the operator that it stands for, which has words of its own for wrong indices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx

from pjrt_bridge.torch_interop import compat

_BAGS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
_ARANGE = "aten.arange.start_step"
_SUM, _MEAN = 0, 1


def sum_equal_bags(graph: fx.Graph, keeps: Callable[[str], bool]) -> None:
    """Sum rows of the table in groups where each bag has as many, in place.

    What a gradient needs to know of the bags is computed as before.

    Args:
        graph: a functional graph of known sizes.
        keeps: says of an operator's name that it stays as it is.
    """
    summing = compat.operator(f"{compat.OWN_NAMESPACE}.{_NAME}.default")
    assert summing is not None
    for node in list(graph.nodes):
        name = compat.operator_name(node.target)
        if name not in _BAGS or keeps(name):
            continue
        result = next((user for user in node.users if _is_first(user)), None)
        length = _length(node)
        if result is None or not length:
            continue
        given = compat.bound_arguments(node)
        arguments = (given["weight"], given["indices"], length, given["mode"] == _MEAN)
        with graph.inserting_before(result):
            summed = graph.call_function(summing, arguments)
        summed.meta = dict(result.meta)
        result.replace_all_uses_with(summed)
        graph.erase_node(result)
        if not node.users:
            graph.erase_node(node)


def _is_first(user: fx.Node) -> bool:
    return bool(user.target is operator.getitem and user.args[1] == 0)


def _length(node: fx.Node) -> int:
    """The number of indices of each bag; 0 where that is not known, or not all are summed."""
    given = compat.bound_arguments(node)
    indices, offsets = given["indices"], given["offsets"]
    plain = (
        given["mode"] in (_SUM, _MEAN)
        and given["per_sample_weights"] is None
        and not given["include_last_offset"]
        and given["padding_idx"] == -1
    )
    if not (plain and isinstance(offsets, fx.Node) and isinstance(indices, fx.Node)):
        return 0
    if compat.operator_name(offsets.target) != _ARANGE:
        return 0
    places = compat.bound_arguments(offsets)
    start, end, step = places["start"], places["end"], places["step"]
    count = compat.promise(indices).numel()
    if not (isinstance(end, int) and isinstance(step, int) and isinstance(count, int)):
        return 0
    return step if start == 0 and end == count > 0 and step > 0 and count % step == 0 else 0


def _run(table: Tensor, indices: Tensor, length: int, mean: bool) -> Tensor:
    offsets = torch.arange(0, indices.numel(), length, device=indices.device)
    bags = torch.ops.aten._embedding_bag_forward_only
    found: Tensor = bags(table, indices, offsets, False, _MEAN if mean else _SUM)[0]
    return found


def _fake(table: Tensor, indices: Tensor, length: int, mean: bool) -> Tensor:
    return table.new_empty(indices.numel() // length, table.shape[1])


_NAME = "_embedding_bag"
_OPERATOR = f"{compat.OWN_NAMESPACE}::{_NAME}"
torch.library.define(_OPERATOR, "(Tensor table, Tensor indices, int length, bool mean) -> Tensor")
torch.library.impl(_OPERATOR, "cpu", _run)
torch.library.register_fake(_OPERATOR, _fake)
