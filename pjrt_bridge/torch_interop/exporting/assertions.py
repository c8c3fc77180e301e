"""The assertions that the passes took out of a model's graph, as an exported model evaluates them.

Each asserts that all elements of a tensor are zero, or that none is, so PyTorch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import source_line
from pjrt_bridge.torch_interop.passes.data_bounds import CHECK_PROBABILITIES
from pjrt_bridge.torch_interop.passes.defer_assertions import DeferredAssertions
from pjrt_bridge.torch_interop.passes.pipeline import Step


@dataclass(frozen=True)
class Assertion:
    """An assertion on a tensor of a graph.

    Attributes:
        looks_at: index of the tensor among the results that were added to the graph.
        holds: what all elements of the tensor have to be.
        message: of the exception.
        source: the user's line, where it is known.
    """

    looks_at: int
    holds: Literal["nonzero", "zero"]
    message: str
    source: str | None


def assertions_of(steps: Iterable[Step]) -> tuple[Assertion, ...]:
    """The assertions of an exported model, from the steps that the passes made of its graph."""
    return tuple(
        found for step in steps if isinstance(step, DeferredAssertions) for found in _of_step(step)
    )


def _of_step(step: DeferredAssertions) -> Iterator[Assertion]:
    graph = step.assertions.graph
    places = {node: at for at, node in enumerate(graph.find_nodes(op="placeholder"))}
    for node in graph.nodes:
        describe = _DESCRIPTIONS.get(compat.operator_name(node.target) or "")
        for tensor, holds, message in describe(node) if describe else ():
            yield Assertion(places[tensor], holds, message, source_line(node))


_AssertedTensors = Sequence[tuple[fx.Node, Literal["nonzero", "zero"], str]]


def _of_a_tensor(node: fx.Node) -> _AssertedTensors:
    return [(_tensor(node, 0), "nonzero", "an assertion of the model does not hold")]


def _with_a_message(node: fx.Node) -> _AssertedTensors:
    return [(_tensor(node, 0), "nonzero", str(node.args[1]))]


def _of_linear_algebra(node: fx.Node) -> _AssertedTensors:
    # LAPACK's convention: 0, or what element of a factor stands in the way.
    message = f"{node.args[1]}: the matrix is singular or not of the kind that it takes"
    return [(_tensor(node, 0), "zero", message)]


def _of_probabilities(node: fx.Node) -> _AssertedTensors:
    where = node.args[2]
    return [
        (_tensor(node, 0), "nonzero", f"{where}: found a probability that is inf, nan or negative"),
        (_tensor(node, 1), "nonzero", f"{where}: found probabilities whose sum is not positive"),
    ]


def _tensor(node: fx.Node, position: int) -> fx.Node:
    found = node.args[position]
    assert isinstance(found, fx.Node)
    return found


_DESCRIPTIONS: Mapping[str, Callable[[fx.Node], _AssertedTensors]] = {
    "aten._assert_async.default": _of_a_tensor,
    "aten._assert_async.msg": _with_a_message,
    "aten._linalg_check_errors.default": _of_linear_algebra,
    CHECK_PROBABILITIES: _of_probabilities,
}
"""By name: those of `OF_TENSORS`."""
