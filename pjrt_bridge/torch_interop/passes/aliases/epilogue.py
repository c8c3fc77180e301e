"""The epilogue of a graph: view operators on its arguments and results, run by PyTorch after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.passes.aliases.chains import Chain
from pjrt_bridge.torch_interop.passes.aliases.gaps import with_strides
from pjrt_bridge.torch_interop.tensors import over

REPLACE = "aten.set_.source_Tensor"
"""The operator that AOTAutograd makes of `argument.data = x`."""


@dataclass(frozen=True)
class ResolvedAliases:
    """A graph without the views that it returned, and the epilogue that computes them.

    Attributes:
        module: the graph; it returns what owns memory, and numbers that the epilogue reads.
        epilogue_graph: takes some arguments of the graph and then its results; gives the
            results of the original graph.
        positions: of these arguments.
    """

    module: fx.GraphModule
    epilogue_graph: fx.GraphModule
    positions: tuple[int, ...]

    def prologue(self, arguments: list[Any]) -> list[Any]:
        """The arguments that results are views of."""
        return [arguments[position] for position in self.positions]

    def epilogue(self, state: list[Any], outputs: list[Any]) -> list[Any]:
        """The results that the graph had before its views were taken out."""
        # To turn off what is off already takes as long as a small operator.
        if torch.is_grad_enabled():
            with torch.no_grad():
                return list(self.epilogue_graph.forward(*state, *outputs))
        return list(self.epilogue_graph.forward(*state, *outputs))


def _as_promised(root: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A root with the strides that were promised, and no offset.

    An operator that PyTorch runs may return other strides than its fake implementation.
    """
    if root.stride() == strides and not root.storage_offset():
        return root
    return with_strides(root.clone(), strides)


def _differentiable(view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a view operator gives where gradients are recorded, as they are around the graph.

    AOTAutograd runs graphs where they are not. Into a view that was made there nothing with a
    gradient may be written, nor into the tensor that it is a view of.
    """
    with torch.enable_grad():
        return view(*args, **kwargs)


def _make_differentiable(view: fx.Node) -> None:
    if view.target is not getitem:
        assert isinstance(view.target, compat.OpOverload)
        view.args = (view.target, *view.args)
        view.target = _differentiable


def _detached(view: torch.Tensor) -> torch.Tensor:
    if view.is_conj() or view.is_neg():
        return view
    return over(view.untyped_storage(), view, view.storage_offset(), view.size(), view.stride())


class Epilogue:
    """The graph that makes views, while it is written, and what it needs of the other graph.

    Args:
        graph: returns, in the end, what is asked for by `result`.
        copies: its nodes, by those of the original graph.
    """

    def __init__(self, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> None:
        self._graph = graph
        self._copies = copies
        self._positions = {node: at for at, node in enumerate(graph.find_nodes(op="placeholder"))}
        # Placeholders are in any place of it; `finish` puts them first.
        self._body = fx.Graph()
        self._arguments: dict[fx.Node, fx.Node] = {}
        self._results: dict[fx.Node, fx.Node] = {}
        self._as_promised: dict[fx.Node, fx.Node] = {}
        self._old_values: dict[fx.Node, fx.Node] = {}
        self._views: dict[tuple[fx.Node, fx.Node], fx.Node] = {}
        self._without_gradient: dict[fx.Node, fx.Node] = {}
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

    def view(self, chain: Chain, source: fx.Node, *, differentiable: bool = False) -> fx.Node:
        """The views of a chain, of a source that takes the place of its root.

        Gradients of what is written into the source, or into another view of it, lead through a
        view that is `differentiable`.

        What `view(dtype)` makes forgets what it is a view of, and views of it have it for their
        base. AOTAutograd would repeat those on the source, whose elements are of another type, if
        it knew that they are views; so it views the source by their place.
        """
        made = {chain.root: source}
        reinterpreted = False

        def used_by(node: fx.Node) -> fx.Node:
            return made[node] if node in made else self._number(node)

        for node in chain.views:
            key = (node, source)
            reinterpreted |= compat.operator_name(node.target) == "aten.view.dtype"
            if key not in self._views:
                view = self._body.node_copy(node, used_by)
                if differentiable:
                    _make_differentiable(view)
                elif reinterpreted and isinstance(compat.promise(node), torch.Tensor):
                    view = self._body.call_function(_detached, (view,))
                self._views[key] = view
            made[node] = self._views[key]
        return made[chain.last]

    def without_gradient(self, view: fx.Node) -> fx.Node:
        """A view that needs no gradient where the tensor that it is a view of does.

        What `detach` gives is an `alias` in a graph, and autograd leads gradients through that.
        """
        if view not in self._without_gradient:
            detach = compat.operator("aten.detach.default")
            assert detach is not None
            self._without_gradient[view] = self._body.call_function(detach, (view,))
        return self._without_gradient[view]

    def view_of_result(self, chain: Chain, *, differentiable: bool) -> fx.Node:
        """The views of a chain whose root is a result; see `view`."""
        source, root, last = self.as_promised(chain.root), chain.root, chain.last
        if chain.detached:
            before = Chain(root, chain.views[: chain.detached])
            source = self.view(before, source)
            chain = Chain(before.last, chain.views[chain.detached :])
        one_of_several = any(node.target is getitem for node in chain.views)
        alike = compat.promise(root).dtype == compat.promise(last).dtype
        # Nothing with a gradient may be written into one of several views that an operator gives.
        if not chain.views or not chain.has_place or not alike or one_of_several:
            return self.view(chain, source, differentiable=differentiable)
        key = (last, source)
        if key not in self._views:
            # One operator in place of all.
            as_strided, view = compat.operator("aten.as_strided.default"), compat.promise(last)
            assert as_strided is not None
            place = ([*view.shape], [*view.stride()], view.storage_offset())
            self._views[key] = self._body.call_function(as_strided, (source, *place))
            if differentiable:
                _make_differentiable(self._views[key])
        return self._views[key]

    def replace(self, argument: fx.Node, source: fx.Node) -> None:
        """Give an argument the memory of another tensor, after all views of it were made."""
        operator = compat.operator(REPLACE)
        assert operator is not None
        self._body.call_function(operator, (self.argument(argument), source))

    def as_promised(self, root: fx.Node) -> fx.Node:
        """A result with the strides that are promised, where these are known, to make views of."""
        result = self.result(root)
        if not Chain(root, ()).has_place:
            return result
        if result not in self._as_promised:
            strides = compat.promise(root).stride()
            self._as_promised[result] = self._body.call_function(_as_promised, (result, strides))
        return self._as_promised[result]

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
    ) -> ResolvedAliases:
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
        return ResolvedAliases(
            module=fx.GraphModule(module, self._graph),
            epilogue_graph=fx.GraphModule(module, body),
            positions=tuple(self._positions[copy] for copy in self._arguments),
        )


def _is_calculated_of_arguments(node: fx.Node) -> bool:
    """Whether a number depends on nothing but numbers and sizes among the arguments."""
    return node.op == "placeholder" or (
        nodes.is_size_computation(node)
        and all(map(_is_calculated_of_arguments, node.all_input_nodes))
    )
