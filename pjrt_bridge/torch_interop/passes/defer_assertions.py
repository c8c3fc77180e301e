"""Assertions on tensors, moved out of a graph and evaluated after it.

An assertion on a tensor, as in graphs of `torch.linalg.inv` and `torch._assert_async`, can only
raise on the host, so it would divide the graph. The tensors that it reads, often one number, become
results of the graph instead; PyTorch's own operator is called with them after the graph has run,
and raises what it raises in eager.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.passes.data_bounds import (
    CHECK_DIVISORS,
    CHECK_INDICES,
    CHECK_PROBABILITIES,
)

_ASSERTIONS = frozenset(
    (
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._linalg_check_errors.default",
        CHECK_DIVISORS,
        CHECK_INDICES,
        CHECK_PROBABILITIES,
    )
)
OF_TENSORS = frozenset(
    (
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._linalg_check_errors.default",
        CHECK_PROBABILITIES,
    )
)
"""Those that assert of whole tensors that all elements are zero, or that none is."""

_ADDED = frozenset((CHECK_PROBABILITIES,))
"""Those that are the bridge's own; it marks others that it adds by default (`mark_inserted`)."""

_WITH_EFFECTS = "higher_order.with_effects"
_NUMBER_OF = "aten._local_scalar_dense.default"


@dataclass(frozen=True)
class DeferredAssertions:
    """A graph whose assertions were moved out.

    Attributes:
        module: the graph; what the assertions read are results after its own.
        assertions: a graph that takes these, and raises what the assertions raise.
        results: how many results are the graph's own.
    """

    module: fx.GraphModule
    assertions: fx.GraphModule
    results: int

    def prologue(self, arguments: list[Any]) -> None:
        """Nothing happens to the arguments."""

    def epilogue(self, state: None, outputs: list[Any]) -> list[Any]:
        """Evaluate the assertions; the other results."""
        with torch.no_grad():
            self.assertions.forward(*outputs[self.results :])
        return outputs[: self.results]


def defer_assertions(
    module: fx.GraphModule, *, exported: bool = False
) -> DeferredAssertions | None:
    """Move assertions on tensors out of a graph; None where there are none that can be deferred.

    Where the graph has other effects, only those are that the bridge adds by default: an argument
    holds its new value then, although eager raises before it is written. A host segment for each
    would cost more than that is worth.

    Args:
        module: a functional graph.
        exported: of an exported model. Its caller evaluates assertions `OF_TENSORS` without
            PyTorch, and drops what a call wrote when one fails; so all of these are deferred,
            whatever effects the graph has, and no others.
    """
    found = list(module.graph.nodes)
    kinds = OF_TENSORS
    if not exported:
        kinds = _ADDED if any(map(_has_other_effects, found)) else _ASSERTIONS
    if not any(_is_assertion(node, kinds) for node in found):
        return None
    graph = fx.Graph()
    outputs = graph.graph_copy(module.graph, {})
    assert isinstance(outputs, tuple | list)
    end = graph.output(tuple(outputs))
    _drop_tokens(graph, kinds)
    taken = _for_assertions_alone(graph, kinds)
    if not any(_is_assertion(node, kinds) for node in taken):
        return None
    assertions, inputs = _graph_of(taken)
    end.args = ((*end.args[0], *inputs),)
    for node in reversed(taken):
        graph.erase_node(node)
    return DeferredAssertions(
        fx.GraphModule(module, graph), fx.GraphModule(module, assertions), len(outputs)
    )


def _called(node: fx.Node) -> object:
    """The operator that a node calls, also where `with_effects` calls it to keep an order."""
    return node.args[1] if compat.name_of(node.target) == _WITH_EFFECTS else node.target


def _is_assertion(node: fx.Node, kinds: Set[str] = _ASSERTIONS) -> bool:
    name = compat.operator_name(_called(node))
    return name in kinds or (name in _ASSERTIONS and nodes.is_inserted(node))


def _has_other_effects(node: fx.Node) -> bool:
    return is_mutation(node) or (nodes.has_effect(node) and not _is_assertion(node))


def _drop_tokens(graph: fx.Graph, kinds: Set[str]) -> None:
    """Replace assertions that are called with an effect token by plain calls of them."""
    for node in list(graph.nodes):
        if not _is_assertion(node, kinds) or compat.name_of(node.target) != _WITH_EFFECTS:
            continue
        token, check, *args = node.args
        with graph.inserting_before(node):
            made = graph.call_function(check, tuple(args), node.kwargs)
        made.meta = node.meta | {"val": None}
        for taker in list(node.users):
            # An assertion has no result: only the token is used.
            if taker.args[1] == 0:
                taker.replace_all_uses_with(token)
            graph.erase_node(taker)
        graph.erase_node(node)


def _for_assertions_alone(graph: fx.Graph, kinds: Set[str]) -> list[fx.Node]:
    """The assertions on tensors, and the numbers that only they read, in graph order."""
    taken: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        for_them_alone = bool(node.users) and taken.issuperset(node.users)
        if _is_assertion(node, kinds) or (_gives_number(node) and for_them_alone):
            taken.add(node)
    # A number that other nodes read, too, stays in the graph, and so does what reads it.
    settled = False
    while not settled:
        settled = True
        for node in list(taken):
            numbers = (item for item in node.all_input_nodes if not _is_tensor(item))
            if not taken.issuperset(numbers) or not taken.issuperset(node.users):
                taken.remove(node)
                settled = False
    return [node for node in graph.nodes if node in taken]


def _gives_number(node: fx.Node) -> bool:
    return nodes.is_size_computation(node) or compat.operator_name(node.target) == _NUMBER_OF


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(compat.promise(node), torch.Tensor)


def _graph_of(taken: Sequence[fx.Node]) -> tuple[fx.Graph, list[fx.Node]]:
    """Nodes as a graph of their own, and the nodes whose tensors it takes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed = dict.fromkeys(item for node in taken for item in node.all_input_nodes)
    inputs = [node for node in needed if node not in taken]
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in taken:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(())
    return graph, inputs
