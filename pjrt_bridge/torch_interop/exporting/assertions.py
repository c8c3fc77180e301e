"""Assertions of a model: the tensors that they read become results, which an exported model checks.

Each asserts that all elements of a tensor are zero, or that none is, so PyTorch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import source_line
from pjrt_bridge.torch_interop.passes.data_bounds import CHECK_PROBABILITIES
from pjrt_bridge.torch_interop.passes.defer_assertions import defer_assertions


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


def lift_assertions(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[Assertion, ...]]:
    """The graph without its assertions: what they look at are its last results.

    A loaded model drops what a call wrote when an assertion fails, so all of them may wait.
    """
    found = defer_assertions(module, kinds=_ASSERTIONS.keys())
    if found is None:
        return module, ()
    places = {
        node: at for at, node in enumerate(found.assertions.graph.find_nodes(op="placeholder"))
    }
    assertions = [
        Assertion(places[tensor], holds, message, source_line(node))
        for node in found.assertions.graph.nodes
        if (describe := _ASSERTIONS.get(compat.operator_name(node.target) or "")) is not None
        for tensor, holds, message in describe(node)
    ]
    return found.module, tuple(assertions)


_Described = Sequence[tuple[fx.Node, Literal["nonzero", "zero"], str]]


def _of_a_tensor(node: fx.Node) -> _Described:
    return [(_tensor(node, 0), "nonzero", "an assertion of the model does not hold")]


def _with_a_message(node: fx.Node) -> _Described:
    return [(_tensor(node, 0), "nonzero", str(node.args[1]))]


def _of_linear_algebra(node: fx.Node) -> _Described:
    # LAPACK's convention: 0, or what element of a factor stands in the way.
    message = f"{node.args[1]}: the matrix is singular or not of the kind that it takes"
    return [(_tensor(node, 0), "zero", message)]


def _of_probabilities(node: fx.Node) -> _Described:
    where = node.args[2]
    return [
        (_tensor(node, 0), "nonzero", f"{where}: found a probability that is inf, nan or negative"),
        (_tensor(node, 1), "nonzero", f"{where}: found probabilities whose sum is not positive"),
    ]


def _tensor(node: fx.Node, position: int) -> fx.Node:
    found = node.args[position]
    assert isinstance(found, fx.Node)
    return found


_ASSERTIONS: Mapping[str, Callable[[fx.Node], _Described]] = {
    "aten._assert_async.default": _of_a_tensor,
    "aten._assert_async.msg": _with_a_message,
    "aten._linalg_check_errors.default": _of_linear_algebra,
    CHECK_PROBABILITIES: _of_probabilities,
}
