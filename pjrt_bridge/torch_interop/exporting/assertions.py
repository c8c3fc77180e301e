"""Assertions of a model: the tensors that they read become results, which an exported model checks.

Each asserts that all elements of a tensor are zero, or that none is, so PyTorch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import source_line


@dataclass(frozen=True)
class Assertion:
    """An assertion on a tensor of a graph.

    Attributes:
        holds: what all elements of the tensor have to be.
        message: of the exception.
        source: the user's line, where it is known.
    """

    holds: Literal["nonzero", "zero"]
    message: str
    source: str | None


def lift_assertions(graph: fx.Graph) -> tuple[Assertion, ...]:
    """Move assertions out of a graph; the tensors that they read become its last results.

    The graph is changed in place.
    """
    taken = []
    inputs = []
    for node in list(graph.nodes):
        describe = _ASSERTIONS.get(compat.operator_name(node.target) or "")
        if describe is not None:
            holds, message = describe(node)
            taken.append(Assertion(holds, message, source_line(node)))
            inputs.append(node.args[0])
            graph.erase_node(node)
    (end,) = graph.find_nodes(op="output")
    end.args = ((*end.args[0], *inputs),)
    return tuple(taken)


_Described = tuple[Literal["nonzero", "zero"], str]


def _of_a_tensor(node: fx.Node) -> _Described:
    return "nonzero", "an assertion of the model does not hold"


def _with_a_message(node: fx.Node) -> _Described:
    return "nonzero", str(node.args[1])


def _of_linear_algebra(node: fx.Node) -> _Described:
    # LAPACK's `info`: 0, or the index of the element of a factor that is zero.
    return "zero", f"{node.args[1]}: the matrix is singular or not of the kind that it takes"


_ASSERTIONS: Mapping[str, Callable[[fx.Node], _Described]] = {
    "aten._assert_async.default": _of_a_tensor,
    "aten._assert_async.msg": _with_a_message,
    "aten._linalg_check_errors.default": _of_linear_algebra,
}
