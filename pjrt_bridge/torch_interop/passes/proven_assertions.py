"""Assertions on positions that the graph itself computes, which cannot fail, are removed.

`one_hot(x.argmin(1), n)` asserts that positions are at least 0 and less than `n`. A graph that also
writes into its arguments would be divided for such an assertion.
"""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.position_ranges import is_within

_ASSERTION = "aten._assert_async.msg"


def remove_proven_assertions(module: fx.GraphModule) -> None:
    """Remove assertions of `all(x >= low)` and `all(x < high)` that always hold, in place.

    Args:
        module: a functional graph with known sizes.
    """
    for node in list(module.graph.nodes):
        if compat.operator_name(node.target) == _ASSERTION and _holds(node.args[0]):
            module.graph.erase_node(node)


def _holds(condition: Any) -> bool:
    if not _is_call(condition, "aten.all.default"):
        return False
    compared = condition.args[0]
    if not _is_call(compared, "aten.ge.Scalar", "aten.lt.Scalar"):
        return False
    positions, bound = compared.args
    if not isinstance(bound, int):
        return False
    at_least = _is_call(compared, "aten.ge.Scalar")
    return is_within(positions, *((bound, math.inf) if at_least else (-math.inf, bound - 1)))


def _is_call(node: Any, *names: str) -> bool:
    return isinstance(node, fx.Node) and compat.operator_name(node.target) in names
