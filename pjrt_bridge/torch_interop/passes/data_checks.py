"""Checks of data that eager makes and a device cannot make, added to the graph.

With `options={"check_indices": True}` the device computes the smallest and largest number of each
tensor of positions, and whether a tensor of integer divisors has a zero. The probabilities of
`multinomial`, numbers that are counted between their extremes, and how many values are written
with a mask, are always checked.
`defer_assertions.py` moves the checks behind the graph, so that
it is not divided; where the graph writes into arguments, those of positions and divisors, which
the user asked for, stay in it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import computed, label_with_line, mark_inserted
from pjrt_bridge.torch_interop.passes.data_bounds import (
    Bounds,
    Hits,
    bounds,
    counted,
    divisor,
    hits,
    is_checked,
    mark_checked,
    out_of_range,
    probabilities,
)

_OPERATOR = f"{compat.OWN_NAMESPACE}::check_indices"
_OF_DIVISORS = f"{compat.OWN_NAMESPACE}::check_divisors"
_OF_PROBABILITIES = f"{compat.OWN_NAMESPACE}::check_probabilities"


def _check(smallest: torch.Tensor, largest: torch.Tensor, low: int, high: int, where: str) -> None:
    found = int(smallest), int(largest)
    if found[0] < low or found[1] > high:
        raise IndexError(f"{where}: {out_of_range(*found, low, high)}")


def _check_divisors(without_zero: torch.Tensor, where: str) -> None:
    if not without_zero:
        raise RuntimeError(f"{where}: ZeroDivisionError: an integer is divided by zero")


def _check_probabilities(proper: torch.Tensor, possible: torch.Tensor, where: str) -> None:
    if not proper:
        raise RuntimeError(
            f"{where}: probability tensor contains either `inf`, `nan` or element < 0"
        )
    if not possible:
        raise RuntimeError(f"{where}: invalid multinomial distribution (sum of probabilities <= 0)")


torch.library.define(
    _OPERATOR, "(Tensor smallest, Tensor largest, int low, int high, str where) -> ()"
)
torch.library.impl(_OPERATOR, "cpu", _check)
torch.library.register_fake(_OPERATOR, lambda *_: None)
torch.library.define(_OF_DIVISORS, "(Tensor without_zero, str where) -> ()")
torch.library.impl(_OF_DIVISORS, "cpu", _check_divisors)
torch.library.register_fake(_OF_DIVISORS, lambda *_: None)
torch.library.define(_OF_PROBABILITIES, "(Tensor proper, Tensor possible, str where) -> ()")
torch.library.impl(_OF_PROBABILITIES, "cpu", _check_probabilities)
torch.library.register_fake(_OF_PROBABILITIES, lambda *_: None)


def check_data(module: fx.GraphModule, *, indices: bool) -> fx.GraphModule | None:
    """The graph with checks of its data; None where there is nothing to check.

    Args:
        module: a functional graph with known sizes.
        indices: also check positions and integer divisors; the others always are.
    """

    def needs_check(node: fx.Node) -> bool:
        if not _is_unchecked(node):
            return False
        if any(find(node) is not None for find in (probabilities, counted, hits)):
            return True
        return indices and (any(bounds(node)) or divisor(node) is not None)

    if not any(map(needs_check, module.graph.nodes)):
        return None
    graph = fx.Graph()
    end = graph.output(graph.graph_copy(module.graph, {}))
    extremes: dict[tuple[fx.Node, bool], tuple[fx.Node, fx.Node]] = {}
    for node in list(graph.nodes):
        if node is end:
            break
        if not _is_unchecked(node):
            continue
        with graph.inserting_before(node):
            if (weights := probabilities(node)) is not None:
                _add_probability_check(graph, node, weights)
            if (numbers := counted(node)) is not None:
                _add_range_check(graph, node, numbers)
            if (written := hits(node)) is not None:
                _add_hits_check(graph, node, written)
            if indices:
                for item in bounds(node):
                    key = item.index, item.first
                    if key not in extremes:
                        extremes[key] = _extremes(graph, *key)
                    _add_check(graph, node, item, extremes[key])
                if (by := divisor(node)) is not None:
                    _add_divisor_check(graph, node, by)
        mark_checked(node)
    return fx.GraphModule(module, graph)


def _is_unchecked(node: fx.Node) -> bool:
    return node.op == "call_function" and not is_checked(node)


def _extremes(graph: fx.Graph, index: fx.Node, first: bool) -> tuple[fx.Node, fx.Node]:
    if first:
        one = computed(graph, torch.ops.aten.select.int, index, 0, 0)
        return one, one
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
    check = graph.call_function(operator, (*extremes, item.low, item.high, label_with_line(node)))
    check.meta = _meta(node, None)


def _add_divisor_check(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    without_zero = graph.call_function(torch.ops.aten.all.default, (by,))
    without_zero.meta = _meta(by, compat.fake_scalar(graph, torch.bool))
    operator = torch.ops.pjrt_bridge.check_divisors.default
    check = graph.call_function(operator, (without_zero, label_with_line(node)))
    check.meta = _meta(node, None)


def _add_range_check(graph: fx.Graph, node: fx.Node, numbers: fx.Node) -> None:
    aten = torch.ops.aten
    # False for NaN.
    finite = computed(graph, aten.lt.Scalar, computed(graph, aten.abs.default, numbers), math.inf)
    message = f"{label_with_line(node)}: the range of what it counts is not finite"
    everywhere = computed(graph, aten.all.default, finite)
    _add_default(graph, node, aten._assert_async.msg, everywhere, message)


def _add_hits_check(graph: fx.Graph, node: fx.Node, written: Hits) -> None:
    aten = torch.ops.aten
    found = computed(graph, aten.sum.default, written.mask)
    if written.exactly:
        right = computed(graph, aten.eq.Scalar, found, written.values)
        reason = (
            f"shape mismatch: there are {written.values} values to be written, "
            "and the mask selects another number of elements"
        )
    else:
        right = computed(graph, aten.le.Scalar, found, written.values // written.times)
        reason = "Number of elements of source < number of ones in mask"
    _add_default(graph, node, aten._assert_async.msg, right, f"{label_with_line(node)}: {reason}")


def _add_probability_check(graph: fx.Graph, node: fx.Node, weights: fx.Node) -> None:
    aten = torch.ops.aten
    # Both comparisons are False for NaN.
    proper = computed(
        graph,
        aten.logical_and.default,
        computed(graph, aten.ge.Scalar, weights, 0),
        computed(graph, aten.lt.Scalar, weights, math.inf),
    )
    sums = computed(graph, aten.sum.dim_IntList, weights, [-1])
    possible = computed(graph, aten.gt.Scalar, sums, 0)
    found = [computed(graph, aten.all.default, item) for item in (proper, possible)]
    operator = torch.ops.pjrt_bridge.check_probabilities.default
    _add_default(graph, node, operator, *found, label_with_line(node))


def _add_default(graph: fx.Graph, node: fx.Node, operator: Any, *args: Any) -> None:
    """A check that is made unless the user asks for more, and never divides a graph."""
    check = graph.call_function(operator, args)
    check.meta = _meta(node, None)
    mark_inserted(check)


def _meta(source: fx.Node, value: Any) -> dict[str, Any]:
    return {**source.meta, "val": value}
