"""Checks of values that a graph makes: taken out of it, and made when its results are there.

An assertion on a tensor, as `torch.linalg.inv` and `torch._assert_async` bring one, can only raise
where the values are known, so it would end a device program and begin a host segment. What it looks
at, often one number, becomes a result of the graph instead; PyTorch's own operator looks at that
after the call and raises what it raises in eager.
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

_CHECKS = frozenset(
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
_MAY_ALWAYS_WAIT = frozenset((CHECK_PROBABILITIES,))
"""Checks that are always made: a host segment for each would cost more than they are worth."""

_WITH_EFFECTS = "higher_order.with_effects"
_NUMBER_OF = "aten._local_scalar_dense.default"


@dataclass(frozen=True)
class DeferredAssertions:
    """A graph whose checks were taken out.

    Attributes:
        module: the graph; what the checks look at are results after its own.
        checks: takes these, and raises what the checks raise.
        results: how many results are the graph's own.
    """

    module: fx.GraphModule
    checks: fx.GraphModule
    results: int

    def prologue(self, arguments: list[Any]) -> None:
        """Nothing happens to the arguments."""

    def epilogue(self, state: None, outputs: list[Any]) -> list[Any]:
        """Make the checks; the other results."""
        with torch.no_grad():
            self.checks.forward(*outputs[self.results :])
        return outputs[: self.results]


def defer_assertions(
    module: fx.GraphModule, *, kinds: Set[str] | None = None
) -> DeferredAssertions | None:
    """Take checks of values out of a graph; None where there are none that may wait.

    A check may not wait where the graph writes into an argument, which would hold the new value
    although eager would have raised before, or has other effects; those of `_MAY_ALWAYS_WAIT` may.

    Args:
        module: a functional graph.
        kinds: names of the checks to take out, whatever the graph writes: for callers that drop
            what it wrote when a check fails. By default all that may wait.
    """
    found = list(module.graph.nodes)
    if kinds is None:
        kinds = _MAY_ALWAYS_WAIT if any(map(_may_not_wait, found)) else _CHECKS
    if not any(_is_check(node, kinds) for node in found):
        return None
    graph = fx.Graph()
    outputs = graph.graph_copy(module.graph, {})
    assert isinstance(outputs, tuple | list)
    end = graph.output(tuple(outputs))
    _take_tokens(graph, kinds)
    taken = _for_checks_alone(graph, kinds)
    if not any(_is_check(node, kinds) for node in taken):
        return None
    checks, looked_at = _graph_of(taken)
    end.args = ((*end.args[0], *looked_at),)
    for node in reversed(taken):
        graph.erase_node(node)
    return DeferredAssertions(
        fx.GraphModule(module, graph), fx.GraphModule(module, checks), len(outputs)
    )


def _checked_operator(node: fx.Node) -> object:
    """What a node calls, also where it has to keep its place among others with effects."""
    return node.args[1] if compat.name_of(node.target) == _WITH_EFFECTS else node.target


def _is_check(node: fx.Node, kinds: Set[str] = _CHECKS) -> bool:
    return compat.operator_name(_checked_operator(node)) in kinds


def _may_not_wait(node: fx.Node) -> bool:
    return is_mutation(node) or (nodes.has_effect(node) and not _is_check(node))


def _take_tokens(graph: fx.Graph, kinds: Set[str]) -> None:
    """Make plain calls of the checks that hand on a token of their order."""
    for node in list(graph.nodes):
        if not _is_check(node, kinds) or compat.name_of(node.target) != _WITH_EFFECTS:
            continue
        token, check, *args = node.args
        with graph.inserting_before(node):
            made = graph.call_function(check, tuple(args), node.kwargs)
        made.meta = node.meta | {"val": None}
        for taker in list(node.users):
            # A check gives nothing: only the token is ever used.
            if taker.args[1] == 0:
                taker.replace_all_uses_with(token)
            graph.erase_node(taker)
        graph.erase_node(node)


def _for_checks_alone(graph: fx.Graph, kinds: Set[str]) -> list[fx.Node]:
    """The checks that look at tensors, and the numbers made for nothing else, in graph order."""
    taken: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        made_for_checks = bool(node.users) and taken.issuperset(node.users)
        if _is_check(node, kinds) or (_gives_number(node) and made_for_checks):
            taken.add(node)
    # A number that others need too is made where they are, and so is what is calculated with it.
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
    """Nodes as a graph of their own, and the tensors that it takes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed = dict.fromkeys(item for node in taken for item in node.all_input_nodes)
    looked_at = [node for node in needed if node not in taken]
    for node in looked_at:
        copies[node] = graph.placeholder(node.name)
    for node in taken:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(())
    return graph, looked_at
