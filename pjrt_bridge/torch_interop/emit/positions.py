"""Checks of the positions at which nodes read and write, where a plugin's kernels have them.

What a graph computes itself with operators that give positions in range is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import label
from pjrt_bridge.torch_interop.passes.data_bounds import Bounds, bounds, is_checked

_GIVING_POSITIONS = frozenset(
    (
        "aten.arange.start_step",
        "aten.argmax.default",
        "aten.argmin.default",
        "aten.argsort.default",
        "aten.max.dim",
        "aten.max_pool2d_with_indices.default",
        "aten.max_pool3d_with_indices.default",
        "aten.min.dim",
        "aten.randperm.default",
        "aten.sort.default",
        "aten.sort.stable",
        "aten.topk.default",
        "prims.iota.default",
    )
)


class PositionChecks:
    """The checks of positions of one graph.

    Args:
        builder: of the program.
        kernels: that check.
    """

    def __init__(self, builder: Builder, kernels: Kernels) -> None:
        self._builder = builder
        self._kernels = kernels
        self._checked: dict[Bounds, Value] = {}

    def arguments(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Mapping[fx.Node, Any]:
        """The values that a node's arguments stand for, its positions checked."""
        if node.op != "call_function" or is_checked(node):
            return values
        checked = {
            item.index: self._value(item, values[item.index], label(node))
            for item in bounds(node)
            if self._is_given(item.index)
        }
        if not checked:
            return values
        return {item: checked.get(item, values[item]) for item in node.all_input_nodes}

    def _value(self, item: Bounds, positions: Value, where: str) -> Value:
        if item not in self._checked:
            self._checked[item] = self._kernels.checked_positions(
                self._builder, positions, item.low, item.high, where
            )
        return self._checked[item]

    def _is_given(self, node: fx.Node) -> bool:
        """Whether integers follow from those that the graph is given."""
        waiting = [node]
        seen = {node}
        while waiting:
            found = waiting.pop()
            if found.op != "call_function":
                return True
            if compat.operator_name(found.target) in _GIVING_POSITIONS:
                continue
            inputs = [item for item in found.all_input_nodes if _is_integral(item)]
            waiting += [item for item in inputs if item not in seen]
            seen.update(inputs)
        return False


def _is_integral(node: fx.Node) -> bool:
    """Whether a node gives integers, or several results, of which some may be."""
    promise = compat.promise(node)
    if isinstance(promise, torch.Tensor):
        return not (promise.is_floating_point() or promise.is_complex())
    return isinstance(promise, (tuple, list))
