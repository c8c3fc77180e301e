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
from pjrt_bridge.torch_interop.passes.padding.multiplications import multiplications

LAUNCH = 100_000
"""What starting a program costs."""
_MULTIPLICATIONS = 8
"""How many take as long as moving an element."""
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
    found = multiplications(node)
    return made if found is None else [*made, (found, 1 / _MULTIPLICATIONS)]
