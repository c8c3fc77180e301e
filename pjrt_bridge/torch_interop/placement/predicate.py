"""Which nodes of an ATen graph a device can run: those that lower.

There is no list of supported operators. A node is lowered alone, on parameters of the promised
types, into a scratch region; if that works it can go to the device, and if not, the reason is what
the user reads. Equal nodes are tried once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.emit.node_lowering import (
    Lookup,
    lower,
    order_of_input,
    tensor_type,
    tensor_types,
)
from pjrt_bridge.torch_interop.lowering.context import MemoryOrder
from pjrt_bridge.torch_interop.lowering.registry import NoLowering, NotLowerable
from pjrt_bridge.torch_interop.passes.data_bounds import CHECK_INDICES, wrong_constant
from pjrt_bridge.torch_interop.placement import refusals, trials
from pjrt_bridge.torch_interop.placement.collectives import communication
from pjrt_bridge.torch_interop.placement.surroundings import needing_surroundings


class Placement:
    """Decides for the nodes of one graph.

    Args:
        lookup: lowerings for the plugin in question.
        host_ops: whether the user wants the operator of a name on the host.
        slower: by operator, with or without overload, the number of elements of its largest tensor
            from which on PyTorch is faster.
    """

    def __init__(
        self,
        lookup: Lookup,
        host_ops: Callable[[str], bool] = lambda _: False,
        slower: Mapping[str, int] | None = None,
    ) -> None:
        self._lookup = lookup
        self._host_ops = host_ops
        self._slower = slower or {}
        self._tried: dict[object, _Refusal | None] = {}
        self._builder = Builder()

    def fallback_reasons(self, graph: fx.Graph) -> dict[str, FallbackReason]:
        """For the names of nodes that cannot run on the device, in graph order, the reason."""
        found: dict[str, FallbackReason] = {}
        surrounded = needing_surroundings(graph)
        for node in graph.nodes:
            refused = _SURROUNDED if node in surrounded else self._refused(node)
            # On the device a wait is nothing: what it waits for has to be there, too.
            if refused is None and nodes.waits(node) and _started_on_host(node, found):
                refused = communication(node) or "", "collective"
            if refused is not None:
                label = nodes.label(node)
                found[node.name] = FallbackReason(label, *refused, source=nodes.source_line(node))
        return found

    def _refused(self, node: fx.Node) -> _Refusal | None:
        if node.op == "get_attr" and isinstance(compat.promise(node), torch.nn.Module):
            return None
        try:
            if node.op in ("placeholder", "get_attr"):
                tensor_types(_promise(node))
                return None
            if node.op != "call_function" or node.target is operator.getitem:
                return None
            name = compat.operator_name(node.target)
            within = [nodes.label(inner) for inner in nodes.nodes_within(node)]
            if name == nodes.COPY_INTO_INPUT:
                reason = _copy_reason(node)
                return None if reason is None else (reason, "refused")
            if any(map(self._host_ops, (nodes.label(node), *within))):
                return "options={'host_ops': ...} names it", "requested"
            exchanged = communication(node)
            if exchanged is not None and not self._exchanges(node):
                return exchanged, "collective"
            if nodes.is_size_computation(node):
                return None
            if nodes.is_check(node):
                return "it checks a number that Python holds", "small"
            if name == CHECK_INDICES:
                return "it has to raise before an argument is written", "requested"
            wrong = wrong_constant(node)
            if wrong is not None:
                return wrong, "refused"
            outputs = tensor_types(_promise(node))
            values = {used: _describe(_promise(used)) for used in node.all_input_nodes}
        except (NotLowerable, UnsupportedDtype) as error:
            return str(error), "refused"
        except (ValueError, *compat.DATA_DEPENDENT):
            # An argument that is a number may be read only by nodes that run on the host.
            return None if node.op == "placeholder" else (_DATA_NUMBER, "data")
        order = order_of_input(node)
        arguments = compat.substitute((node.args, node.kwargs), values)
        # Graphs within a node have no other key than the node.
        own = node.name if nodes.nested_graphs(node) else ""
        key = (node.target, repr(arguments), outputs, order, own, nodes.is_inserted(node))
        if key not in self._tried:
            refused = self._try(node, arguments, outputs, order)
            if refused is not None and exchanged is not None:
                refused = f"{exchanged}; {refused[0]}", "collective"
            self._tried[key] = refused or self._slow(node, arguments, outputs)
        return self._tried[key]

    def _exchanges(self, node: fx.Node) -> bool:
        """Whether programs may have a collective operation of a node, of sizes that are known."""
        known = not any(
            compat.is_symbolic(compat.promise(item)) for item in (node, *node.all_input_nodes)
        )
        return known and self._lookup(compat.name_of(node.target)) is not None

    def _slow(
        self,
        node: fx.Node,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        outputs: Sequence[TensorType | None],
    ) -> _Refusal | None:
        name = nodes.label(node)
        size = self._slower.get(name) or self._slower.get(name.rpartition(".")[0])
        if size is None:
            return None
        types = trials.types_in((arguments, outputs))
        largest = max((item.size for item in types), default=0)
        if largest < size:
            return None
        return f"PyTorch was measured to be faster from {size:,} elements on", "slow"

    def _try(
        self,
        node: fx.Node,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        outputs: Sequence[TensorType | None],
        order: MemoryOrder,
    ) -> _Refusal | None:
        with self._builder.scratch(trials.types_in(arguments)) as parameters:
            supply = iter(parameters)
            args, kwargs = map_aggregate(
                arguments, lambda item: next(supply) if isinstance(item, TensorType) else item
            )
            try:
                lower(self._builder, self._lookup, node, args, kwargs, outputs, order)
            except NotLowerable as refusal:
                if nodes.depends_on_data(node):
                    return _DATA_RESULT, "data"
                missing = isinstance(refusal, NoLowering)
                return refusal.reason, "unsupported" if missing else "refused"
        if nodes.is_inserted(node):
            return None
        said = refusals.refusal(node.target, arguments, outputs)
        return None if said is None else (f"PyTorch refuses it: {said}", "refused")


def _started_on_host(node: fx.Node, refused: Mapping[str, FallbackReason]) -> bool:
    """Whether a node waits for something else than a node that runs on the device."""
    source = node.args[0]
    while isinstance(source, fx.Node) and source.target is operator.getitem:
        source = source.args[0]
    return not isinstance(source, fx.Node) or source.op != "call_function" or source.name in refused


_Refusal = tuple[str, ReasonKind]
_SURROUNDED: _Refusal = (
    "as_strided reads memory around an argument, which is a part of a larger tensor",
    "refused",
)
_DATA_RESULT = "its result's shape, or its number, depends on data"
_DATA_NUMBER = "it computes with a number that depends on data"


def _promise(node: fx.Node) -> Any:
    """A promise whose sizes are numbers; raises ValueError for other numbers that are not known."""
    promise = compat.promise(node)
    return compat.stand_in(promise) if compat.is_symbolic(promise) else promise


def _copy_reason(node: fx.Node) -> str | None:
    target, source = node.args[:2]
    assert isinstance(source, fx.Node)
    if not isinstance(target, fx.Node) or target.op != "placeholder":
        return "it writes into something that is no input of the graph"
    if any(user.op != "output" for user in node.users):
        return "the result of writing into an input is used again"
    if _promise(source).shape != _promise(target).shape:
        return "it changes the size of an input"
    return None


def _describe(promise: Any) -> Any:
    """The type of a tensor; other values as they are."""
    if isinstance(promise, (tuple, list)):
        return tuple(tensor_type(item) for item in promise)
    return tensor_type(promise) or promise
