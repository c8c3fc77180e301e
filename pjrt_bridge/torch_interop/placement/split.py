"""An ATen graph as the neutral graph of mixed execution, and its segments as ATen graphs."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import Segment, partition
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.nodes import is_mutation, source_line


@dataclass(frozen=True)
class Part:
    """One segment of a graph.

    Attributes:
        module: a graph whose placeholders are the segment's inputs and which returns a tuple of
            its outputs.
        on_device: where it runs.
        arguments: for each placeholder its position among the whole graph's arguments, or None
            where it comes from another segment.
        fallback_reasons: why it is on the host, once for each node that cannot leave it.
        reads: indices of the parts whose results it takes.
        gives_results: whether the whole graph returns results of it.
    """

    module: fx.GraphModule
    on_device: bool
    arguments: tuple[int | None, ...]
    fallback_reasons: tuple[FallbackReason, ...]
    reads: tuple[int, ...]
    gives_results: bool

    def inputs_among(self, positions: frozenset[int]) -> frozenset[int]:
        """Which placeholders are arguments of the whole graph at these positions."""
        return frozenset(index for index, at in enumerate(self.arguments) if at in positions)

    @property
    def symbolic(self) -> bool:
        """Whether sizes in it are known only when it runs."""
        return any(compat.is_symbolic(compat.promise(node)) for node in self.module.graph.nodes)


def operators(graph: fx.Graph) -> Counter[str]:
    """The number of calls of each operator in a graph."""
    calls = (node for node in graph.nodes if node.op == "call_function")
    return Counter(nodes.label(node) for node in calls if node.target is not _TAKE)


def node_names(graph: fx.Graph) -> tuple[str, ...]:
    """The names of a graph's calls of operators."""
    calls = (node for node in graph.nodes if node.op == "call_function")
    return tuple(node.name for node in calls if node.target is not _TAKE)


@dataclass(frozen=True)
class Split:
    """A graph in parts.

    Attributes:
        graph: the neutral graph; its outputs are those of the user, then the new values of mutated
            arguments.
        segments: of the neutral graph, in running order.
        parts: the same as graphs of torch.
        outputs: for each output of the user the index among the neutral graph's, or a constant
            in a one-element tuple.
        mutations: (position of an argument, index of its new value among the neutral outputs).
    """

    graph: Graph
    segments: Sequence[Segment]
    parts: Sequence[Part]
    outputs: tuple[int | tuple[Any, ...], ...]
    mutations: tuple[tuple[int, int], ...]


def split(
    module: fx.GraphModule, reasons: Mapping[str, FallbackReason], *, min_segment: int = 1
) -> Split:
    """Split a functional graph by where its nodes can run.

    Args:
        module: functional but for the new values of arguments at its end.
        reasons: for nodes that cannot run on the device, by name, the reason.
        min_segment: the least number of operators for which the device is used.
    """
    return _Splitter(module, reasons).run(min_segment)


_EXCHANGE = 1 << 30
"""Work of a collective operation: where it is in a program, its wait is, too."""


def _work(node: fx.Node) -> int:
    """See `Node.work`."""
    if nodes.exchanges(node) or nodes.waits(node):
        return _EXCHANGE
    return 0 if nodes.is_light(node) else 1


_TAKE = operator.getitem
"""Selects one of several results; it is placed with the node that computes them."""


def _takers(node: fx.Node) -> Iterator[fx.Node]:
    """The `getitem` nodes of a node's results, and those of nested results."""
    for user in node.users:
        if user.target is _TAKE:
            yield user
            yield from _takers(user)


def _results(node: fx.Node) -> list[fx.Node]:
    """The nodes that are the single results of a node."""
    takers = list(_takers(node))
    taken_apart = {taker.args[0] for taker in takers}
    return [taker for taker in takers if taker not in taken_apart] or [node]


class _Splitter:
    def __init__(self, module: fx.GraphModule, reasons: Mapping[str, FallbackReason]) -> None:
        self._module = module
        self._fallback_reasons = reasons
        # Each value is a node of torch's graph; a tuple is known by the nodes that read its items.
        self._values: list[fx.Node] = []
        self._number: dict[fx.Node, int] = {}
        self._nodes: list[Node] = []
        self._sources: list[fx.Node] = []

    def run(self, min_segment: int) -> Split:
        # Users of a mutation read the argument after it, which is the caller's own tensor.
        written: dict[fx.Node, fx.Node] = {}
        mutations: list[tuple[fx.Node, fx.Node]] = []
        outputs: Sequence[Any] = ()
        placeholders: list[fx.Node] = []
        effects: tuple[int, ...] = ()
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                placeholders.append(node)
                self._add_value(node)
            elif node.op == "output":
                outputs = node.args[0]
            elif is_mutation(node):
                mutations.append(node.args[:2])
                written[node] = node.args[0]
            elif node.target is not _TAKE:
                ordered = nodes.has_effect(node)
                self._add_node(node, effects if ordered else ())
                if ordered:
                    effects = (len(self._nodes) - 1,)
        results: dict[fx.Node, int] = {}
        returned = tuple(
            results.setdefault(written.get(item, item), len(results))
            if isinstance(item, fx.Node)
            else (item,)
            for item in outputs
        )
        positions = {node: position for position, node in enumerate(placeholders)}
        updates = tuple(
            (positions[target], results.setdefault(value, len(results)))
            for target, value in mutations
        )
        graph = Graph(
            tuple(range(len(placeholders))),
            self._nodes,
            tuple(self._number[node] for node in results),
        )
        found = partition(graph, min_segment=min_segment)
        maker = {
            value: index
            for index, segment in enumerate(found.segments)
            for value in segment.outputs
        }
        parts = [self._part(found.graph, segment, maker) for segment in found.segments]
        return Split(found.graph, found.segments, parts, returned, updates)

    def _add_value(self, node: fx.Node) -> int:
        self._number[node] = len(self._values)
        self._values.append(node)
        return self._number[node]

    def _add_node(self, node: fx.Node, after: tuple[int, ...]) -> None:
        inputs = tuple(self._number[used] for used in node.all_input_nodes)
        self._sources.append(node)
        self._nodes.append(
            Node(
                name=node.name,
                inputs=inputs,
                outputs=tuple(self._add_value(made) for made in _results(node)),
                fallback_reason=self._fallback_reasons.get(node.name),
                after=after,
                cheap=nodes.is_cheap(node),
                work=_work(node),
                waits=nodes.waits(node),
            )
        )

    def _part(self, neutral: Graph, segment: Segment, maker: Mapping[int, int]) -> Part:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for value in segment.inputs:
            node = self._values[value]
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for index in segment.nodes:
            source = self._sources[index]
            copies[source] = graph.node_copy(source, copies.__getitem__)
            for user in _takers(source):
                copies[user] = graph.node_copy(user, copies.__getitem__)
        graph.output(tuple(copies[self._values[value]] for value in segment.outputs))
        count = len(neutral.inputs)
        return Part(
            module=fx.GraphModule(self._module, graph),
            on_device=segment.on_device,
            arguments=tuple(value if value < count else None for value in segment.inputs),
            fallback_reasons=() if segment.on_device else self._host_reasons(neutral, segment),
            reads=tuple(sorted({maker[value] for value in segment.inputs if value >= count})),
            gives_results=not set(neutral.outputs).isdisjoint(segment.outputs),
        )

    def _host_reasons(self, neutral: Graph, segment: Segment) -> tuple[FallbackReason, ...]:
        found = []
        for index in segment.nodes:
            reason, source = neutral.nodes[index].fallback_reason, self._sources[index]
            if reason is not None and reason.kind == "small":
                # The partition knows the node's name only.
                label = nodes.label(source)
                found.append(FallbackReason(label, reason.reason, "small", source_line(source)))
            elif reason is not None:
                found.append(reason)
        return tuple(found)
