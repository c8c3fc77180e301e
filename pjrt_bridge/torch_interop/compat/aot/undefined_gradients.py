"""Gradients of arguments that no used result depends on: None, as in eager mode, and no zeros.

A compiled function has one node in autograd. Where some of its results are not used, autograd gives
the node zeros for their gradients, and what the node makes of them are zeros, too, for arguments
that only these results depend on. An optimizer moves a parameter whose gradient is zero, by weight
decay and momentum, and leaves one alone that has none: the second head of a model, in a step that
trains the first.

So each call has the node note which gradients it is given, before autograd puts zeros there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.utils import _pytree as pytree

_NODE = "CompiledFunctionBackward"


@dataclass(frozen=True)
class GradientPaths:
    """Which gradients of results the gradients of arguments are made of.

    Attributes:
        given: how many gradients of results the graph is given.
        needed: for each of its outputs a bit for each of those that it depends on.
    """

    given: int
    needed: tuple[int, ...]

    @classmethod
    def of(cls, graph: fx.Graph) -> GradientPaths:
        """Those of a backward or a joint graph of AOTAutograd."""
        inputs = graph.find_nodes(op="placeholder")
        given = [node for node in inputs if node.target.startswith("tangents")]
        reached = {node: 1 << bit for bit, node in enumerate(given)}
        for node in graph.nodes:
            found = reached.get(node, 0)
            for source in node.all_input_nodes:
                found |= reached[source]
            reached[node] = found
        outputs = pytree.tree_leaves(graph.output_node().args)
        return cls(len(given), tuple(reached.get(item, 0) for item in outputs))

    @property
    def matter(self) -> bool:
        """Whether an argument depends on some of the results only."""
        return any(bits not in (0, (1 << self.given) - 1) for bits in self.needed)


class UndefinedGradients:
    """What autograd knows, of each call of one compiled function, of unused results.

    Attributes:
        results: positions of those results of the node whose gradients backward is given, in their
            order; None until they are known to matter.
    """

    def __init__(self) -> None:
        self.results: tuple[int, ...] | None = None
        self._node_type: type | None = None
        self._noted = threading.local()

    def noting(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function, each call of which has its node note undefined gradients."""
        if self.results is None:
            return compiled

        def call(*args: Any) -> Any:
            earlier = set() if self._node_type else set(map(id, _nodes(args)))
            found = compiled(*args)
            for node in _nodes(found):
                known = self._node_type is None and id(node) not in earlier
                if type(node) is self._node_type or known:
                    self._node_type = type(node)
                    node.register_prehook(self._note)
                    break
            return found

        return call

    def _note(self, gradients: Sequence[Any]) -> None:
        assert self.results is not None
        self._noted.bits = sum(
            1 << bit for bit, at in enumerate(self.results) if gradients[at] is None
        )

    def backward(
        self, compiled: Callable[[list[Any]], Any], paths: GradientPaths
    ) -> Callable[[list[Any]], Any]:
        """A compiled backward graph that gives None where all that it is made of is undefined."""
        if self.results is None or len(self.results) != paths.given:
            return compiled

        def run(arguments: list[Any]) -> Any:
            undefined = getattr(self._noted, "bits", 0)
            self._noted.bits = 0
            found = compiled(arguments)
            if not undefined:
                return found
            return [
                None if bits and not bits & ~undefined else gradient
                for bits, gradient in zip(paths.needed, found, strict=True)
            ]

        return run


def _nodes(tensors: Sequence[Any]) -> Iterator[Any]:
    """The nodes of compiled functions that made tensors, or what they are views of."""
    for tensor in tensors:
        own = tensor.grad_fn if isinstance(tensor, Tensor) else None
        if own is not None:
            for node in (own, *(source for source, _ in own.next_functions)):
                if type(node).__name__ == _NODE:
                    yield node
