"""`options={"check_indices": True}`: positions out of range raise, as they do in eager.

For each tensor of positions in a graph its smallest and largest number are computed on the device,
for each tensor that integers are divided by whether it has a zero, and a check of that is put into
the graph. It is one of those that `checks.py` makes after the call,
so the program stays whole; where the graph writes into arguments the check comes before that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.index_bounds import Bounds, bounds, divisor, out_of_range
from pjrt_bridge.torch_interop.placement import source_line

_OPERATOR = f"{compat.OWN_NAMESPACE}::check_indices"
_OF_DIVISORS = f"{compat.OWN_NAMESPACE}::check_divisors"
_CHECKED = "pjrt_bridge_indices_checked"
"""Marks nodes in their `meta`, so that a part of a graph is not checked once more."""


def _check(smallest: torch.Tensor, largest: torch.Tensor, low: int, high: int, where: str) -> None:
    found = int(smallest), int(largest)
    if found[0] < low or found[1] > high:
        raise IndexError(f"{where}: {out_of_range(*found, low, high)}")


def _check_divisors(without_zero: torch.Tensor, where: str) -> None:
    if not without_zero:
        raise RuntimeError(f"{where}: ZeroDivisionError: an integer is divided by zero")


torch.library.define(
    _OPERATOR, "(Tensor smallest, Tensor largest, int low, int high, str where) -> ()"
)
torch.library.impl(_OPERATOR, "cpu", _check)
torch.library.register_fake(_OPERATOR, lambda *_: None)
torch.library.define(_OF_DIVISORS, "(Tensor without_zero, str where) -> ()")
torch.library.impl(_OF_DIVISORS, "cpu", _check_divisors)
torch.library.register_fake(_OF_DIVISORS, lambda *_: None)


def with_index_checks(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with a check of all positions whose sizes are known, and of integer divisors."""
    if not any(_unchecked(node) or _divisor(node) for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    end = graph.output(graph.graph_copy(module.graph, {}))
    extremes: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
    for node in list(graph.nodes):
        if node is end:
            break
        for item in _unchecked(node):
            with graph.inserting_before(node):
                if item.index not in extremes:
                    extremes[item.index] = _extremes(graph, item.index)
                _add_check(graph, node, item, extremes[item.index])
        if (by := _divisor(node)) is not None:
            with graph.inserting_before(node):
                _add_divisor_check(graph, node, by)
        node.meta[_CHECKED] = True
    return fx.GraphModule(module, graph)


def _unchecked(node: fx.Node) -> list[Bounds]:
    if node.op != "call_function" or _CHECKED in node.meta:
        return []
    return list(bounds(node))


def _divisor(node: fx.Node) -> fx.Node | None:
    return None if node.op != "call_function" or _CHECKED in node.meta else divisor(node)


def _extremes(graph: fx.Graph, index: fx.Node) -> tuple[fx.Node, fx.Node]:
    with graph.inserting_after(index):
        found = [
            graph.call_function(operator, (index,))
            for operator in (torch.ops.aten.amin.default, torch.ops.aten.amax.default)
        ]
    scalar = compat.fake_scalar(graph, compat.promise(index).dtype)
    for node in found:
        node.meta = _meta(index, scalar)
    return found[0], found[1]


def _add_check(
    graph: fx.Graph, node: fx.Node, item: Bounds, extremes: tuple[fx.Node, fx.Node]
) -> None:
    operator = torch.ops.pjrt_bridge.check_indices.default
    check = graph.call_function(operator, (*extremes, item.low, item.high, _where(node)))
    check.meta = _meta(node, None)


def _add_divisor_check(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    without_zero = graph.call_function(torch.ops.aten.all.default, (by,))
    without_zero.meta = _meta(by, compat.fake_scalar(graph, torch.bool))
    operator = torch.ops.pjrt_bridge.check_divisors.default
    check = graph.call_function(operator, (without_zero, _where(node)))
    check.meta = _meta(node, None)


def _where(node: fx.Node) -> str:
    line = source_line(node)
    return compat.label(node.target) + (f" at {line}" if line else "")


def _meta(source: fx.Node, value: Any) -> dict[str, Any]:
    return {**source.meta, "val": value}
