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
from typing import Any
from weakref import ref

from torch import Tensor, fx
from torch.utils import _pytree as pytree

_NODE = "CompiledFunctionBackward"


class UndefinedGradients:
    """What autograd knows, of each call of one compiled function, of unused results.

    Args:
        graph: from Dynamo.

    Attributes:
        results: positions of those results of the node whose gradients backward is given, in their
            order; None until they are known to matter.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.results: tuple[int, ...] | None = None
        self._reached = _reached(graph)
        self._needed: dict[int, int] = {}
        self._inputs = len(self._reached)
        self._node_type: type | None = None
        self._noted = threading.local()

    def look_at(self, joint: fx.Graph) -> None:
        """Find out which arguments depend on some of the results only.

        Args:
            joint: forward and backward of the graph, as AOTAutograd traced them.
        """
        inputs = joint.find_nodes(op="placeholder")
        given = [node for node in inputs if node.target.startswith("tangents")]
        made = {node: 1 << bit for bit, node in enumerate(given)}
        for node in joint.nodes:
            found = made.get(node, 0)
            for source in node.all_input_nodes:
                found |= made[source]
            made[node] = found
        outputs = pytree.tree_leaves(joint.output_node().args)
        every = (1 << len(given)) - 1
        # Autograd has paths whose derivative is zero, which the traced graph leaves out.
        own = [getattr(_output_of(node), "idx", None) for node in given]
        if self._inputs != len(inputs) - len(given):
            return
        for at, gradient in enumerate(outputs[-self._inputs :]):
            if gradient is None:
                continue
            bits = made[gradient]
            for bit, place in enumerate(own):
                if place is None or self._reached[at] >> place & 1:
                    bits |= 1 << bit
            if bits != every:
                self._needed[at] = bits

    @property
    def matter(self) -> bool:
        """Whether there are such arguments."""
        return bool(self._needed)

    def noting(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function, each call of which has its node note undefined gradients."""
        if self.results is None:
            return compiled

        def call(*args: Any) -> Any:
            given = {at: args[at] for at in self._needed}
            # What else leads to an argument may be a hook that expects a gradient.
            ends = {at: ref(item) for at, item in given.items() if _is_end(item)}
            earlier = set() if self._node_type else set(map(id, _nodes(args)))
            found = compiled(*args)
            for node in _nodes(found):
                known = self._node_type is None and id(node) not in earlier
                if type(node) is self._node_type or known:
                    self._node_type = type(node)
                    node.register_prehook(lambda gradients: self._note(gradients, ends))
                    break
            return found

        return call

    def _note(self, gradients: Sequence[Any], ends: dict[int, Any]) -> None:
        assert self.results is not None
        undefined = sum(1 << bit for bit, at in enumerate(self.results) if gradients[at] is None)
        self._noted.without = [
            at
            for at, end in ends.items()
            if not self._needed[at] & ~undefined and not _is_watched(end())
        ]

    def backward(self, compiled: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """A compiled backward graph that gives None where all that it is made of is undefined."""

        def run(arguments: list[Any]) -> Any:
            without = getattr(self._noted, "without", ())
            self._noted.without = ()
            found = compiled(arguments)
            if not without or len(found) != self._inputs:
                return found
            found = list(found)
            for at in without:
                found[at] = None
            return found

        return run


def _reached(graph: fx.Graph) -> list[int]:
    """For each input of a graph from Dynamo a bit for each output that autograd makes of it."""
    inputs = graph.find_nodes(op="placeholder")
    outputs = pytree.tree_leaves(graph.output_node().args)
    every = (1 << len(outputs)) - 1
    found = []
    ends: dict[Any, int] = {}
    for at, node in enumerate(inputs):
        value = node.meta.get("example_value")
        # What is written into in place has another node now.
        is_known = isinstance(value, Tensor) and value.requires_grad and not value._version
        found.append(0 if is_known else every)
        if is_known:
            ends[value.grad_fn or id(value)] = at
    for place, item in enumerate(outputs):
        value = item.meta.get("example_value") if isinstance(item, fx.Node) else None
        for at in _ends_of(value, ends) if isinstance(value, Tensor) else ():
            found[at] |= 1 << place
    return found


def _ends_of(value: Tensor, ends: dict[Any, int]) -> Iterator[int]:
    """Which of some tensors autograd made one of: by their nodes, or leaves by their identity."""
    if id(value) in ends:
        yield ends[id(value)]
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        end = ends.get(node if variable is None else id(variable))
        if end is not None:
            yield end
        waiting += [source for source, _ in node.next_functions]


def _output_of(tangent: fx.Node) -> Any:
    """What AOTAutograd says of the result that a gradient is of."""
    output = getattr(tangent.meta.get("desc"), "output", None)
    return output if type(output).__name__ == "PlainAOTOutput" else None


def _is_end(item: Any) -> bool:
    """Whether only a leaf, or the node of a compiled function, would be given the gradient."""
    return isinstance(item, Tensor) and (item.is_leaf or type(item.grad_fn).__name__ == _NODE)


def _is_watched(item: Any) -> bool:
    """Whether hooks wait for a gradient."""
    return item is None or bool(item._backward_hooks)


def _nodes(tensors: Sequence[Any]) -> Iterator[Any]:
    """The nodes of compiled functions that made tensors, or what they are views of."""
    for tensor in tensors:
        own = tensor.grad_fn if isinstance(tensor, Tensor) else None
        if own is not None:
            for node in (own, *(source for source, _ in own.next_functions)):
                if type(node).__name__ == _NODE:
                    yield node
