"""Assertions on positions that the graph itself computes, which cannot fail, are removed.

`one_hot(x.argmin(1), n)` asserts that positions are at least 0 and less than `n`. A graph that also
writes into its arguments would be divided for such an assertion.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

_ASSERTION = "aten._assert_async.msg"
_EXTREMES = ("aten.argmax.default", "aten.argmin.default")
_WITH_POSITIONS = ("aten.max.dim", "aten.min.dim", "aten.topk.default", "aten.sort.default")
"""Their second result has positions along a dimension; the third argument of `topk` is it."""
_SAME_NUMBERS = frozenset(
    f"aten.{name}"
    for name in ("clone.default", "reshape.default", "unsqueeze.default", "view.default")
)


def remove_proven_assertions(module: fx.GraphModule) -> None:
    """Remove assertions of `all(x >= low)` and `all(x < high)` that always hold, in place.

    Args:
        module: a functional graph with known sizes.
    """
    for node in list(module.graph.nodes):
        if compat.operator_name(node.target) == _ASSERTION and _holds(node.args[0]):
            module.graph.erase_node(node)


def _holds(condition: Any) -> bool:
    # `all` comes decomposed: nowhere not.
    compared: Any = condition
    for name in ("aten.logical_not.default", "aten.any.dims", "aten.logical_not.default"):
        if not _is_call(compared, name):
            return False
        compared = compared.args[0]
    if not _is_call(compared, "aten.ge.Scalar", "aten.lt.Scalar"):
        return False
    positions, bound = compared.args
    places = _places(positions)
    if places is None or not isinstance(bound, int):
        return False
    return bound <= 0 if _is_call(compared, "aten.ge.Scalar") else places <= bound


def _places(positions: Any) -> int | None:
    """The number of places that positions from 0 on may name; None where it is not known."""
    while _is_call(positions, *_SAME_NUMBERS):
        positions = positions.args[0]
    if _is_call(positions, *_EXTREMES):
        return _size(*positions.args)
    if isinstance(positions, fx.Node) and positions.target is operator.getitem:
        source: Any = positions.args[0]
        at = positions.args[1]
        if at == 1 and _is_call(source, *_WITH_POSITIONS):
            first = 2 if _is_call(source, "aten.topk.default") else 1
            return _size(source.args[0], *(source.args[first : first + 1] or (-1,)))
    return None


def _size(x: Any, dim: int | None = None, *_: Any) -> int | None:
    promise = compat.promise(x)
    if not isinstance(promise, torch.Tensor) or compat.is_symbolic(promise):
        return None
    shape = tuple(promise.shape) or (1,)
    return math.prod(shape) if dim is None else int(shape[dim])


def _is_call(node: Any, *names: str) -> bool:
    return isinstance(node, fx.Node) and compat.operator_name(node.target) in names
