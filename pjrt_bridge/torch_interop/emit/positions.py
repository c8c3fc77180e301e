"""Checks of nodes' positions and divisors, where a plugin's kernels have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop.nodes import label
from pjrt_bridge.torch_interop.passes.data_bounds import (
    Bounds,
    bounds,
    is_checked,
    uncertain_divisor,
)


class PositionChecks:
    """The checks of positions and divisors of one graph.

    Args:
        builder: of the program.
        kernels: that check.
    """

    def __init__(self, builder: Builder, kernels: Kernels) -> None:
        self._builder = builder
        self._kernels = kernels
        self._checked: dict[Bounds, Value] = {}
        self._divisors: dict[fx.Node, Value] = {}

    def arguments(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Mapping[fx.Node, Any]:
        """The values that a node's arguments stand for, its positions and divisors checked."""
        if node.op != "call_function" or is_checked(node):
            return values
        checked: dict[fx.Node, Value] = {}
        for item in bounds(node):
            positions = checked.get(item.index, values[item.index])
            checked[item.index] = self._value(item, positions, label(node))
        by = uncertain_divisor(node)
        if by is not None:
            checked[by] = self._divisor(by, values[by], label(node))
        if not checked:
            return values
        return {item: checked.get(item, values[item]) for item in node.all_input_nodes}

    def _value(self, item: Bounds, positions: Value, where: str) -> Value:
        if item not in self._checked and item.first:
            b, count = self._builder, positions.shape[0]
            parts = [b.slice(positions, *limits) for limits in (([0], [1]), ([1], [count]))]
            parts[0] = self._kernels.checked_positions(b, parts[0], item.low, item.high, where)
            self._checked[item] = b.concatenate(parts, 0)
        if item not in self._checked:
            repeats = positions.repeats if positions.size else None
            found = self._kernels.checked_positions(
                self._builder,
                positions if repeats is None else repeats.value,
                item.low,
                item.high,
                where,
            )
            if repeats is not None:
                # Still known to be the same for whole slices.
                found = self._builder.broadcast_in_dim(found, positions.shape, repeats.dims)
            self._checked[item] = found
        return self._checked[item]

    def _divisor(self, item: fx.Node, divisors: Value, where: str) -> Value:
        if item not in self._divisors:
            self._divisors[item] = self._kernels.checked_divisors(self._builder, divisors, where)
        return self._divisors[item]
