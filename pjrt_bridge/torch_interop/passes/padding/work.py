"""An estimate of the cost of a call by its sizes, to judge what padding adds.

The unit is about the time to read or write one element. It counts results of operators, arguments
once, arguments and results that are padded twice more, and multiplications.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from math import inf, prod
from typing import Any

import torch
from torch import fx

from pjrt_bridge.mixed.padded_sizes import COMPILES
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.extents import Size, Symbol

LAUNCH = 100_000
"""What starting a program costs."""
_MULTIPLICATIONS = 8
"""How many take as long as moving an element."""
_INNER = {
    "aten.mm": ("self", -1),
    "aten.bmm": ("self", -1),
    "aten.addmm": ("mat1", -1),
    "aten.baddbmm": ("batch1", -1),
    "aten.mv": ("self", -1),
}
"""Products: an argument, and its dimension that is summed over."""


_COMPILES_OPERATOR = 1e7
"""About what takes as long as compiling one operator."""


def compiling(graph: fx.Graph) -> float:
    """The work that takes as long as making a program of a graph."""
    calls = len([node for node in graph.nodes if node.op == "call_function"])
    return max(COMPILES, _COMPILES_OPERATOR * calls)


def estimate(
    graph: fx.Graph, symbols: Sequence[Symbol], padded: Container[int]
) -> Callable[[Sequence[int]], float]:
    """A function from sizes to the work of a call; infinite for sizes that none can have.

    Args:
        graph: with symbolic sizes.
        symbols: in the order in which the function takes their values.
        padded: positions of arguments that are copied where they are padded.
    """
    weights: dict[Size, float] = defaultdict(float)
    placeholders = graph.find_nodes(op="placeholder")
    for position, node in enumerate(placeholders):
        for size in _elements(compat.promise(node)):
            weights[size] += 3 if position in padded else 1
    for node in graph.nodes:
        if node.op == "call_function":
            for size, weight in _work(node):
                weights[size] += weight
    known = set(symbols)
    terms = {
        size: weight
        for size, weight in weights.items()
        if getattr(size, "free_symbols", set()) <= known
    }
    numbers = compat.compiled_numbers(list(terms), symbols)
    factors = list(map(float, terms.values()))

    def work(sizes: Sequence[int]) -> float:
        try:
            counts = numbers(sizes)
        except ZeroDivisionError:
            # No call can have these sizes: an operator divides by what is none then.
            return inf
        return float(LAUNCH + sum(map(operator.mul, counts, factors)))

    return work


def _elements(promise: Any) -> list[Size]:
    several = promise if isinstance(promise, (tuple, list)) else [promise]
    return [
        prod(map(compat.expression, item.shape))
        for item in several
        if isinstance(item, torch.Tensor)
    ]


def _work(node: fx.Node) -> list[tuple[Size, float]]:
    made: list[tuple[Size, float]] = [(size, 1.0) for size in _elements(compat.promise(node))]
    name = compat.operator_name(node.target) or ""
    base = name.rpartition(".")[0]
    arguments = compat.bound_arguments(node)
    if base in _INNER:
        operand, dim = _INNER[base]
        shape = _shape(arguments[operand])
        made += [(size * shape[dim], 1 / _MULTIPLICATIONS) for size, _ in made]
    elif base == "aten.convolution":
        made += [(made[0][0] * prod(_shape(arguments["weight"])[1:]), 1 / _MULTIPLICATIONS)]
    elif base.startswith("aten._scaled_dot_product_flash_attention"):
        queries, keys = _shape(arguments["query"]), _shape(arguments["key"])
        made += [(prod(queries) * keys[-2], 2 / _MULTIPLICATIONS)]
    return made


def _shape(node: fx.Node) -> list[Size]:
    return [compat.expression(size) for size in compat.promise(node).shape]
