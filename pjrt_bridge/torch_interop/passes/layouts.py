"""The option `layouts`: the order of elements of parameters on the device and of results in memory.

    torch.compile(model, backend="pjrt", options={"layouts": {"results": "channels-last"}})

A result is laid out by operators at the end of its graph, so it is the same wherever the graph
runs, and the device's compiler fuses them with what computes the result. A parameter of a graph
that runs on the device is transferred in the requested order; where the plugin has memory of its
own it stays there in that order, elsewhere it is copied in each call unless it has that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.tensors import argument_spec

OrderRule = str | Mapping[int, Sequence[int]]
"""`"row-major"`, `"column-major"`, `"channels-last"`, or for a rank the dimensions from slowest to
fastest varying."""

_NAMES = ("row-major", "column-major", "channels-last")
_WHAT = ("parameters", "results")


@dataclass(frozen=True)
class Orders:
    """The value of the option `layouts`.

    Attributes:
        parameters: of parameters and buffers of the model.
        results: of tensors that a compiled function returns, unless they share memory with others.
    """

    parameters: OrderRule | None = None
    results: OrderRule | None = None

    @staticmethod
    def parse(given: Any) -> Orders:
        """Check the option.

        Raises:
            OptionError: another form.
        """
        if not isinstance(given, Mapping) or not set(given) <= set(_WHAT):
            raise OptionError(
                f"option layouts: found {given!r}, expected a dict with some of {', '.join(_WHAT)}"
            )
        for what, rule in given.items():
            _check(what, rule)
        return Orders(**given)

    def parameter(self, promise: torch.Tensor) -> ValueSpec:
        """The value spec of a parameter."""
        spec = argument_spec(promise)
        order = order_of(self.parameters, spec.type.rank)
        return spec if order is None else ValueSpec.ordered(spec.type, order)

    def lay_out_results(self, graph: fx.Graph, visible: int | None) -> None:
        """Lay out what a forward or inference graph returns to the user.

        Results that share memory with arguments or with each other stay as torch promises them,
        because views of them are computed from their strides.

        Args:
            graph: of AOTAutograd.
            visible: how many of the first results the user sees, bases of views included; None for
                all.
        """
        if self.results is None:
            return
        (end,) = (node for node in graph.nodes if node.op == "output")
        outputs = list(end.args[0])
        positions = [at for at in compat.results_of_their_own() if at < len(outputs)]
        returned = {item for item in outputs[:visible] if isinstance(item, fx.Node)}
        arguments = graph.find_nodes(op="placeholder")
        holders = Counter(map(_memory, (*returned, *arguments)))
        made: dict[fx.Node, fx.Node] = {}
        for position in positions:
            node = outputs[position]
            promise = compat.promise(node) if isinstance(node, fx.Node) else None
            if not isinstance(node, fx.Node) or not isinstance(promise, torch.Tensor):
                continue
            order = order_of(self.results, promise.dim())
            if order is not None and node.op == "call_function" and holders[_memory(node)] == 1:
                if node not in made:
                    made[node] = _laid_out(graph, end, node, order)
                outputs[position] = made[node]
        if made:
            end.args = (tuple(outputs),)
            graph.lint()

    def around(self, graph: fx.GraphModule) -> Callable[..., Any]:
        """A graph of Dynamo that PyTorch runs, with its results laid out as those of other graphs.

        Args:
            graph: of which every tensor that it does not make is an argument or its own.
        """
        if self.results is None:
            return graph.forward

        def run(*arguments: Any) -> tuple[Any, ...]:
            results = graph.forward(*arguments)
            given = (*arguments, *graph.parameters(), *graph.buffers())
            kept = {id(item) for item in given}
            tensors = {id(item): item for item in (*results, *given) if _is_strided(item)}
            holders = Counter(map(compat.storage_identity, tensors.values()))
            made = {
                key: _turned(item, order)
                for key, item in tensors.items()
                if key not in kept
                and holders[compat.storage_identity(item)] == 1
                and (order := order_of(self.results, item.dim())) is not None
            }
            return tuple(made.get(id(item), item) for item in results)

        return run


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and compat.storage_identity(value) is not None


def _turned(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor whose memory has an order; the tensor itself where it has."""
    dense = tensor.permute(*order)
    if dense.is_contiguous():
        return tensor
    return dense.contiguous().permute(*inverse_order(order))


def _memory(node: fx.Node) -> object:
    """The identity of the memory of a value; the node itself where torch promises none."""
    promise = compat.promise(node)
    found = compat.storage_identity(promise) if isinstance(promise, torch.Tensor) else None
    return node if found is None else found


def order_of(rule: OrderRule | None, rank: int) -> tuple[int, ...] | None:
    """Dimensions from slowest to fastest varying; None where the rule has none for a rank."""
    if rule is None or rank < 2:
        return None
    dims = tuple(range(rank))
    if rule == "row-major":
        return dims
    if rule == "column-major":
        return dims[::-1]
    if rule == "channels-last":
        return (0, *dims[2:], 1) if rank > 2 else None
    assert isinstance(rule, Mapping)
    return tuple(rule[rank]) if rank in rule else None


def _check(what: str, rule: Any) -> None:
    good = rule in _NAMES if isinstance(rule, str) else isinstance(rule, Mapping)
    if good and isinstance(rule, Mapping):
        good = all(
            isinstance(rank, int)
            and isinstance(order, Sequence)
            and not isinstance(order, str)
            and sorted(order) == list(range(rank))
            for rank, order in rule.items()
        )
    if not good:
        raise OptionError(
            f"option layouts: {what}: found {rule!r}, expected one of {', '.join(_NAMES)}, or a "
            "dict from ranks to dimensions from slowest to fastest, such as {2: (1, 0)}"
        )


def _laid_out(graph: fx.Graph, end: fx.Node, node: fx.Node, order: Sequence[int]) -> fx.Node:
    """A copy of a value whose memory has an order; compilers fuse it with the value's operator."""
    with graph.inserting_before(end):
        turned = compat.insert_call(graph, "aten.permute.default", node, list(order))
        dense = compat.insert_call(
            graph, "aten.clone.default", turned, memory_format=torch.contiguous_format
        )
        return compat.insert_call(graph, "aten.permute.default", dense, list(inverse_order(order)))
