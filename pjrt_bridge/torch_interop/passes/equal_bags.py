"""Bags of embeddings that all have the same number of indices: rows are summed in groups.

Such offsets come of indices that lie in a matrix, a bag in each row. Without offsets no index has
to find its bag, and sums need no positions.

Before: `%o = arange(0, 12, 3); %bags = _embedding_bag(%table, %indices, %o); %bags[0]`. After:
`sum(view(index_select(%table, 0, %indices), [4, 3, -1]), [1])` in the place of `%bags[0]`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

_BAGS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
_ARANGE = "aten.arange.start_step"
_SUM, _MEAN = 0, 1
_DEFAULTS: dict[str, Any] = {
    "scale_grad_by_freq": False,
    "mode": _SUM,
    "sparse": False,
    "per_sample_weights": None,
    "include_last_offset": False,
    "padding_idx": -1,
}


def sum_equal_bags(graph: fx.Graph) -> None:
    """Sum rows of the table in groups where each bag has as many, in place.

    What a gradient needs to know of the bags is computed as before.

    Args:
        graph: a functional graph of known sizes.
    """
    for node in list(graph.nodes):
        if compat.operator_name(node.target) not in _BAGS:
            continue
        result = next((user for user in node.users if _is_first(user)), None)
        length = _length(node)
        if result is None or not length:
            continue
        with graph.inserting_before(result):
            result.replace_all_uses_with(_summed(graph, node, length))
        graph.erase_node(result)
        if not node.users:
            graph.erase_node(node)


def _is_first(user: fx.Node) -> bool:
    return bool(user.target is operator.getitem and user.args[1] == 0)


def _length(node: fx.Node) -> int:
    """The number of indices of each bag; 0 where that is not known, or not all are summed."""
    _, indices, offsets, *others = node.args
    given = {**_DEFAULTS, **dict(zip(_DEFAULTS, others, strict=False)), **node.kwargs}
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
    start, end, step = (*offsets.args, 1)[:3]
    count = compat.promise(indices).numel()
    if not (isinstance(end, int) and isinstance(step, int) and isinstance(count, int)):
        return 0
    return step if start == 0 and end == count > 0 and step > 0 and count % step == 0 else 0


def _summed(graph: fx.Graph, node: fx.Node, length: int) -> fx.Node:
    """The result for bags of one length."""
    aten = torch.ops.aten
    table, indices, _, *others = node.args
    mean = bool(others[1:2]) and others[1] == _MEAN

    def add(op: Any, *args: Any) -> fx.Node:
        made = graph.call_function(op, args)
        made.meta = {key: value for key, value in node.meta.items() if key != "val"}
        given = [compat.promise(arg) if isinstance(arg, fx.Node) else arg for arg in args]
        made.meta["val"] = op(*given)
        return made

    rows = add(aten.index_select.default, table, 0, indices)
    width = compat.promise(rows).shape[1]
    count = compat.promise(rows).shape[0] // length
    bags = add(aten.view.default, rows, [count, length, width])
    return add(aten.mean.dim if mean else aten.sum.dim_IntList, bags, [1])
