"""Results that are views: made by PyTorch of the memory that they are views of.

AOTAutograd promises for each result what it is: a tensor of its own, an argument, a view of an
argument or a view of another result. It makes a view of an argument anew from the geometry of the
tensor that the graph returns, and expects two views of one intermediate to share its memory. So
there is one rule, for sizes that are known and for symbolic ones: a compiled graph computes the
tensors that own memory, and the operators that only view them run in PyTorch after it, on the
arguments and on these tensors.

    before: graph(x, n) -> slice(x, n), permute(exp(x)), exp(x)
    after:  graph(x, n) -> exp(x)            epilogue(x, n, e) -> slice(x, n), permute(e), e

A view of an argument that the graph writes into is a view of the old value, which is copied first;
where AOTAutograd says that a result is a view of the new value, it is one of the argument.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.placement import is_mutation

_WHOLE = frozenset(
    f"aten.{name}"
    for name in (
        "_reshape_alias.default",
        "alias.default",
        "detach.default",
        "permute.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
        "view.dtype",
        "view_as_complex.default",
        "view_as_real.default",
    )
)
"""Views of all elements of a tensor: alone, they may as well be tensors of their own."""


@dataclass(frozen=True)
class Resolved:
    """A graph without the views that it returned, and what makes them.

    Attributes:
        module: the graph; it returns what owns memory, and numbers that the epilogue reads.
        epilogue: takes some arguments of the graph and then its results; gives the results of the
            original graph.
        positions: of these arguments.
        detached: indices of the epilogue's results that PyTorch must not know to be views, so that
            the user may write into them as into those of eager; each with that of the first result
            which is the same tensor.
    """

    module: fx.GraphModule
    epilogue: fx.GraphModule
    positions: tuple[int, ...]
    detached: tuple[tuple[int, int], ...]


def resolve_aliases(module: fx.GraphModule, returned: compat.Returned) -> Resolved | None:
    """Take views out of the results of a functional graph; None where there are none."""
    return _Resolver(module, returned).run()


def resolved(run: Callable[[list[Any]], Any], found: Resolved) -> Callable[[list[Any]], Any]:
    """A function that gives the results which a graph had before its views were taken out."""
    view = found.epilogue.forward

    def run_with_views(arguments: list[Any]) -> list[Any]:
        viewed = [arguments[position] for position in found.positions]
        results = run(arguments)
        if torch.is_grad_enabled():
            with torch.no_grad():
                outputs = list(view(*viewed, *results))
        else:
            outputs = list(view(*viewed, *results))
        for index, first in found.detached:
            outputs[index] = _detached(outputs[index]) if index == first else outputs[first]
        return outputs

    return run_with_views


def _detached(view: torch.Tensor) -> torch.Tensor:
    if view.is_conj() or view.is_neg():
        return view
    made = torch.empty(0, dtype=view.dtype)
    return made.set_(view.untyped_storage(), view.storage_offset(), view.size(), view.stride())


@dataclass(frozen=True)
class _Chain:
    """A result as a view of a root, by the operators between them; none for the root itself."""

    root: fx.Node
    views: tuple[fx.Node, ...]

    @property
    def last(self) -> fx.Node:
        """The result itself."""
        return self.views[-1] if self.views else self.root

    @property
    def whole(self) -> bool:
        """Whether the result has each element of the root once."""
        names = (compat.operator_name(node.target) for node in self.views)
        return all(name in _WHOLE for name in names)


class _Resolver:
    def __init__(self, module: fx.GraphModule, returned: compat.Returned) -> None:
        self._module = module
        self._returned = returned
        (end,) = module.graph.find_nodes(op="output")
        self._outputs: Sequence[Any] = end.args[0]
        # The last value of each argument that the graph writes into.
        self._written: dict[Any, Any] = {
            node.args[0]: node.args[1] for node in module.graph.nodes if is_mutation(node)
        }
        self._chains = [
            _chain(item) if isinstance(item, fx.Node) else None for item in self._outputs
        ]
        self._in_memory_of = self._count()

    def run(self) -> Resolved | None:
        bases = [self._base(at, chain) for at, chain in enumerate(self._chains)]
        if not any(bases):
            return None
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self._module.graph, copies)
        epilogue = _Epilogue(graph, copies)
        outputs: list[Any] = []
        detached: dict[int, int] = {}
        first: dict[fx.Node, int] = {}
        for at, (item, chain, base) in enumerate(
            zip(self._outputs, self._chains, bases, strict=True)
        ):
            if chain is None:
                outputs.append(item)
            elif base is None:
                outputs.append(epilogue.result(item))
            elif chain.root is base and base in self._written:
                outputs.append(epilogue.view(chain, epilogue.old_value(base)))
            elif base.op == "placeholder":
                outputs.append(epilogue.view(chain, epilogue.argument(base)))
            else:
                outputs.append(epilogue.view(chain, epilogue.result(base)))
                if self._returned.inference and chain.views:
                    detached[at] = first.setdefault(item, at)
        return epilogue.finish(self._module, outputs, tuple(detached.items()))

    def _base(self, at: int, chain: _Chain | None) -> fx.Node | None:
        """The node in whose memory a result lies that is not simply a tensor of its own."""
        if chain is None or not isinstance(compat.promise(chain.root), torch.Tensor):
            return None
        root = chain.root
        if root.op == "placeholder":
            # What is written into is copied first, also where it is returned as it is.
            return root if chain.views or root in self._written else None
        if self._is_visible(at) and at in self._returned.of_arguments:
            for argument, value in self._written.items():
                if value is root and _alike(compat.promise(argument), compat.promise(root)):
                    return argument  # type: ignore[no-any-return]
        if compat.storage_identity(compat.promise(root)) is None:
            return None
        shared = len(self._in_memory_of.get(root, ())) > 1
        return root if self._has_place(at, chain) and (shared or not chain.whole) else None

    def _count(self) -> dict[fx.Node, set[fx.Node]]:
        """For each root the different results that lie in its memory."""
        found: dict[fx.Node, set[fx.Node]] = {}
        for at, chain in enumerate(self._chains):
            if chain is not None and self._has_place(at, chain):
                found.setdefault(chain.root, set()).add(chain.last)
        return found

    def _is_visible(self, at: int) -> bool:
        return self._returned.visible is None or at < self._returned.visible

    def _has_place(self, at: int, chain: _Chain) -> bool:
        """Whether a result lies in the memory of its root.

        A part that is saved for backward does not, and keeps no more memory than it needs.
        """
        return chain.whole or self._is_visible(at)


class _Epilogue:
    """The graph that makes views, while it is written, and what it needs of the other graph.

    Args:
        graph: returns, in the end, what is asked for by `result`.
        copies: its nodes, by those of the original graph.
    """

    def __init__(self, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> None:
        self._graph = graph
        self._copies = copies
        self._positions = {node: at for at, node in enumerate(graph.find_nodes(op="placeholder"))}
        # Placeholders stand where they were asked for, until all are known.
        self._body = fx.Graph()
        self._arguments: dict[fx.Node, fx.Node] = {}
        self._results: dict[fx.Node, fx.Node] = {}
        self._old_values: dict[fx.Node, fx.Node] = {}
        self._views: dict[tuple[fx.Node, fx.Node], fx.Node] = {}
        self._numbers: dict[fx.Node, fx.Node] = {}

    def argument(self, node: fx.Node) -> fx.Node:
        """An argument of the graph, by its node in the original graph."""
        copy = self._copies[node]
        if copy not in self._arguments:
            self._arguments[copy] = self._body.placeholder(f"argument_{self._positions[copy]}")
        return self._arguments[copy]

    def result(self, node: fx.Node) -> fx.Node:
        """A value that the graph returns, by its node in the original graph."""
        return self._result(self._copies[node])

    def old_value(self, node: fx.Node) -> fx.Node:
        """The value that an argument had before the graph wrote into it."""
        if node not in self._old_values:
            argument = self._copies[node]
            clone = compat.operator("aten.clone.default")
            assert clone is not None
            first = next(item for item in self._graph.nodes if item.op != "placeholder")
            with self._graph.inserting_before(first):
                copy = self._graph.call_function(clone, (argument,))
            copy.meta["val"] = compat.promise(node)
            self._old_values[node] = copy
        return self._result(self._old_values[node])

    def _result(self, copy: fx.Node) -> fx.Node:
        if copy not in self._results:
            self._results[copy] = self._body.placeholder(f"result_{len(self._results)}")
        return self._results[copy]

    def view(self, chain: _Chain, source: fx.Node) -> fx.Node:
        """The views of a chain, of a source that takes the place of its root."""
        made = {chain.root: source}

        def used_by(node: fx.Node) -> fx.Node:
            return made[node] if node in made else self._number(node)

        for node in chain.views:
            key = (node, source)
            if key not in self._views:
                self._views[key] = self._body.node_copy(node, used_by)
            made[node] = self._views[key]
        return made[chain.last]

    def _number(self, node: fx.Node) -> fx.Node:
        """A size that a view is made with: calculated of arguments, or given by the graph."""
        if node not in self._numbers:
            if node.op == "placeholder":
                self._numbers[node] = self.argument(node)
            elif _is_calculated_of_arguments(node):
                self._numbers[node] = self._body.node_copy(node, self._number)
            else:
                self._numbers[node] = self.result(node)
        return self._numbers[node]

    def finish(
        self,
        module: fx.GraphModule,
        outputs: Sequence[Any],
        detached: tuple[tuple[int, int], ...],
    ) -> Resolved:
        """Both graphs."""
        self._graph.output(tuple(self._results))
        for node in reversed(list(self._graph.nodes)):
            if not node.users and node.op == "call_function" and nodes.is_cheap(node):
                self._graph.erase_node(node)
        self._body.output(tuple(outputs))
        body = fx.Graph()
        given = [*self._arguments.values(), *self._results.values()]
        placed = {node: body.placeholder(node.name) for node in given}
        body.output(body.graph_copy(self._body, placed))
        return Resolved(
            module=fx.GraphModule(module, self._graph),
            epilogue=fx.GraphModule(module, body),
            positions=tuple(self._positions[copy] for copy in self._arguments),
            detached=detached,
        )


def _chain(node: fx.Node) -> _Chain:
    views: tuple[fx.Node, ...] = ()
    while True:
        steps = (node.args[0], node) if node.target is operator.getitem else (node,)
        seen = _seen_by(steps)
        if seen is None:
            return _Chain(node, views)
        node, views = seen, (*steps, *views)


def _seen_by(steps: Sequence[Any]) -> fx.Node | None:
    """What an operator, and the choice of one of its results, view; None where they do not."""
    source, view = steps[0], steps[-1]
    if not isinstance(source, fx.Node) or not isinstance(source.target, compat.OpOverload):
        return None
    seen = source.args[0] if source.target.is_view else None
    if not isinstance(seen, fx.Node):
        return None
    promises = compat.promise(seen), compat.promise(view)
    if not all(isinstance(promise, torch.Tensor) for promise in promises):
        return None
    # Torch hands the fakes of one call of a subgraph out again for the next: that two fakes share
    # memory means something only between a view and what it is a view of.
    identity = compat.storage_identity(promises[0])
    shares = identity is not None and identity == compat.storage_identity(promises[1])
    return seen if shares else None


def _is_calculated_of_arguments(node: fx.Node) -> bool:
    """Whether a number depends on nothing but numbers and sizes among the arguments."""
    return node.op == "placeholder" or (
        nodes.is_size_computation(node)
        and all(map(_is_calculated_of_arguments, node.all_input_nodes))
    )


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a view of one promised tensor can be made of the other."""
    return (
        [*map(compat.expression, one.shape)] == [*map(compat.expression, other.shape)]
        and one.dtype == other.dtype
        and (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    )
