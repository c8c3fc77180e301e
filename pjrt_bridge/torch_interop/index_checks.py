"""`options={"check_indices": True}`: positions out of range raise, as they do in eager.

For each tensor of positions in a graph its smallest and largest number are computed on the device,
and a check of them is put into the graph. It is one of those that `checks.py` makes after the call,
so the program stays whole; where the graph writes into arguments the check comes before that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.index_bounds import Bounds, bounds, out_of_range
from pjrt_bridge.torch_interop.placement import source_line

_OPERATOR = f"{compat.OWN_NAMESPACE}::check_indices"
_CHECKED = "pjrt_bridge_indices_checked"
"""Marks nodes in their `meta`, so that a part of a graph is not checked once more."""


def _check(smallest: torch.Tensor, largest: torch.Tensor, low: int, high: int, where: str) -> None:
    found = int(smallest), int(largest)
    if found[0] < low or found[1] > high:
        raise IndexError(f"{where}: {out_of_range(*found, low, high)}")


torch.library.define(
    _OPERATOR, "(Tensor smallest, Tensor largest, int low, int high, str where) -> ()"
)
torch.library.impl(_OPERATOR, "cpu", _check)
torch.library.register_fake(_OPERATOR, lambda *_: None)


def with_index_checks(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with a check of every tensor of positions whose sizes are known."""
    if not any(_unchecked(node) for node in module.graph.nodes):
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
        node.meta[_CHECKED] = True
    return fx.GraphModule(module, graph)


def _unchecked(node: fx.Node) -> list[Bounds]:
    if node.op != "call_function" or _CHECKED in node.meta:
        return []
    return list(bounds(node))


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
    line = source_line(node)
    where = compat.label(node.target) + (f" at {line}" if line else "")
    operator = torch.ops.pjrt_bridge.check_indices.default
    check = graph.call_function(operator, (*extremes, item.low, item.high, where))
    check.meta = _meta(node, None)


def _meta(source: fx.Node, value: Any) -> dict[str, Any]:
    return {**source.meta, "val": value}
