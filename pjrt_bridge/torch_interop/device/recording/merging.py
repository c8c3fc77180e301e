"""Graphs of operators that were recorded, as one graph."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from pjrt_bridge.mixed.adapter import Constant, SegmentInput
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo.precision import Precisions
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.graphs import PlainGraph
from pjrt_bridge.torch_interop.compiler import Compiler
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.options import BackendOptions
from pjrt_bridge.torch_interop.resident.client.chosen import client
from pjrt_bridge.torch_interop.resident.storages.storage import ResultForm
from pjrt_bridge.torch_interop.tensors import result_spec

Reference = tuple[int, int]
"""Result b of operator a; b of what the program is given, where a is `GIVEN`."""

GIVEN: Final = -1
NOTHING: Reference = (-2, 0)
"""A number in a call, of which the graph uses other arguments."""

UNREAD: Reference = (-3, 0)
"""An array that the graph does not read."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Recordable:
    """The graph of an operator, as a part of a larger graph.

    Attributes:
        name: of the operator.
        module: the graph.
        number: no other has it.
        settings: how exact its products have to be.
        results: the nodes that compute what it gives and writes.
        forms: how these results lie.
        reads: for each argument whether the graph reads it.
        outputs: what it gives: the index of a result, an argument, or a constant.
        written: for each argument that it writes into its position and what it becomes.
    """

    name: str
    module: fx.GraphModule
    number: int
    settings: Precisions
    results: tuple[fx.Node, ...]
    forms: tuple[ResultForm, ...]
    reads: tuple[bool, ...]
    outputs: tuple[int | SegmentInput | Constant, ...]
    written: tuple[tuple[int, int | SegmentInput], ...]

    def unread(self, place: int) -> torch.Tensor:
        """Anything for an argument that the graph does not read: zeros on the host."""
        promise = compat.promise(self.module.graph.find_nodes(op="placeholder")[place])
        return torch.zeros(promise.shape, dtype=promise.dtype, device="cpu")

    @staticmethod
    def of(name: str, module: fx.GraphModule, settings: Precisions) -> Recordable | None:
        """The parts of a graph; None where something else than its results tells of its end."""
        placeholders = {
            node: at for at, node in enumerate(module.graph.find_nodes(op="placeholder"))
        }
        results: dict[fx.Node, int] = {}

        def place(item: Any) -> int | SegmentInput | Constant:
            if not isinstance(item, fx.Node):
                return Constant(item)
            if item in placeholders:
                return SegmentInput(placeholders[item])
            return results.setdefault(item, len(results))

        (output,) = module.graph.find_nodes(op="output")
        outputs = tuple(map(place, output.args[0]))
        written = []
        for node in module.graph.nodes:
            if is_mutation(node):
                target, value = node.args[:2]
                became = place(value)
                if target not in placeholders or isinstance(became, Constant):
                    return None
                # A storage holds a row-major array.
                if isinstance(became, int) and not compat.promise(value).is_contiguous():
                    return None
                written.append((placeholders[target], became))
            elif node.op == "call_function" and _has_effects(node):
                return None
        promises = [compat.promise(node) for node in results]
        if not all(isinstance(promise, torch.Tensor) for promise in promises):
            return None
        return Recordable(
            name,
            module,
            next(_numbers),
            settings,
            tuple(results),
            tuple(ResultForm(result_spec(promise)) for promise in promises),
            tuple(any(map(_is_computed, node.users)) for node in placeholders),
            outputs,
            tuple(written),
        )


def _has_effects(node: fx.Node) -> bool:
    # What lowers and is called random takes keys, or draws nothing for such arguments.
    return node.is_impure(impure_random=False)


def _is_computed(node: fx.Node) -> bool:
    return node.op != "output" and not is_mutation(node)


@dataclass(frozen=True)
class Recorded:
    """Operators that become one program, all of one `settings`.

    Attributes:
        operators: each with its arguments.
        wanted: the results that the program gives.
    """

    operators: tuple[tuple[Recordable, tuple[Reference, ...]], ...]
    wanted: tuple[Reference, ...]

    def change(self, last: Recorded | None) -> str | None:
        """What differs from what was recorded before it; None where there was nothing."""
        if last is None:
            return None
        pairs = zip(self.operators, last.operators, strict=False)
        for at, ((part, arguments), (before, given)) in enumerate(pairs, 1):
            if part.number != before.number:
                same = part.name == before.name
                what = f"{part.name} of other arguments" if same else part.name
                return f"operator {at} is {what}, where it was {before.name}"
            if arguments != given:
                return f"operator {at}, {part.name}, takes results of other operators"
        if len(self.operators) != len(last.operators):
            return (
                f"there are {len(self.operators)} operators, where there were {len(last.operators)}"
            )
        return "other results are referred to"


def compiled(recorded: Recorded, index: int, trigger: str | None = None) -> PlainGraph:
    """The program of operators that were recorded.

    Args:
        recorded: the operators.
        index: of the device.
        trigger: why it is compiled, where others were compiled before.

    Raises:
        PjrtBridgeError: there is no such program.
    """
    found = client()
    name = f"fused_{len(recorded.operators)}_operators"
    record = GraphRecord("inference", name, found.plugin.name, trigger=trigger)
    settings = recorded.operators[0][0].settings
    options = BackendOptions(placement="device")
    compiler = Compiler(found, options, ledger=EAGER, settings=settings)
    return compiler.compile_rewritten(merged(recorded), record, index)


def merged(recorded: Recorded) -> fx.GraphModule:
    """One graph of the graphs of operators."""
    graph = fx.Graph()
    root = torch.nn.Module()
    values: dict[Reference, fx.Node] = {}
    count = 1 + max(
        (at for _, arguments in recorded.operators for owner, at in arguments if owner == GIVEN),
        default=-1,
    )
    for at in range(count):
        values[GIVEN, at] = graph.placeholder(f"given_{at}")
    for position, (part, arguments) in enumerate(recorded.operators):
        copies: dict[fx.Node, fx.Node] = {}
        taken = iter(arguments)
        for node in part.module.graph.nodes:
            if node.op == "placeholder":
                reference = next(taken)
                if reference[0] >= GIVEN:
                    copies[node] = values[reference]
                    values[reference].meta.setdefault("val", compat.promise(node))
            elif node.op == "get_attr":
                name = f"held_{position}_{str(node.target).replace('.', '_')}"
                setattr(root, name, _held(part.module, str(node.target)))
                copies[node] = graph.get_attr(name)
                copies[node].meta = dict(node.meta)
            elif _is_computed(node):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        for at, (node, form) in enumerate(zip(part.results, part.forms, strict=True)):
            values[position, at] = _in_memory(graph, copies[node], form.spec)
    graph.output(tuple(values[reference] for reference in recorded.wanted))
    graph.eliminate_dead_code(is_impure_node=_has_effects)
    return fx.GraphModule(root, graph)


def _in_memory(graph: fx.Graph, node: fx.Node, spec: ValueSpec) -> fx.Node:
    """The row-major array that a result is in its storage, which is what operators are given."""
    promise = compat.promise(node)
    if promise.is_contiguous():
        return node
    aten = torch.ops.aten
    for dim, (size, once) in enumerate(zip(spec.type.shape, spec.once.shape, strict=True)):
        if size != once:
            node = graph.call_function(aten.slice.Tensor, (node, dim, 0, 1))
            promise = promise.narrow(dim, 0, 1)
            node.meta["val"] = promise
    order = range(spec.type.rank) if spec.order is None else spec.order
    node = graph.call_function(aten.permute.default, (node, list(order)))
    # What the promise has of gaps is closed.
    with promise.fake_mode:
        node.meta["val"] = torch.empty(spec.memory.shape, dtype=promise.dtype, device="cpu")
    return node


def _held(module: fx.GraphModule, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found
