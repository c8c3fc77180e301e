"""An ATen graph as the neutral graph of mixed execution, and its segments as ATen graphs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import Segment, partition
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.placement import COPY_INTO_INPUT


@dataclass(frozen=True)
class Part:
    """One segment of a graph.

    Attributes:
        module: a graph whose placeholders are the segment's inputs and which returns a tuple of
            its outputs.
        on_device: where it runs.
        arguments: for each placeholder its position among the whole graph's arguments, or None
            where it comes from another segment.
    """

    module: fx.GraphModule
    on_device: bool
    arguments: tuple[int | None, ...]

    def inputs_among(self, positions: frozenset[int]) -> frozenset[int]:
        """Which placeholders are arguments of the whole graph at these positions."""
        return frozenset(index for index, at in enumerate(self.arguments) if at in positions)


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
    outputs: tuple[int | tuple[Any], ...]
    mutations: tuple[tuple[int, int], ...]


def split(module: fx.GraphModule, refused: Mapping[str, str]) -> Split:
    """Split a functional graph by where its nodes can run.

    Args:
        module: functional but for the new values of arguments at its end.
        refused: for nodes that cannot run on the device, by name, the reason.
    """
    return _Splitter(module, refused).run()


class _Splitter:
    def __init__(self, module: fx.GraphModule, refused: Mapping[str, str]) -> None:
        self._module = module
        self._refused = refused
        # Each value is a node of torch's graph; a tuple is known by the nodes that take it apart.
        self._values: list[fx.Node] = []
        self._number: dict[fx.Node, int] = {}
        self._nodes: list[Node] = []
        self._sources: list[fx.Node] = []

    def run(self) -> Split:
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
            elif compat.operator_name(node.target) == COPY_INTO_INPUT:
                mutations.append(node.args[:2])
            elif node.target is not operator.getitem:
                ordered = compat.has_effect(node)
                self._add_node(node, effects if ordered else ())
                if ordered:
                    effects = (len(self._nodes) - 1,)
        positions = {node: position for position, node in enumerate(placeholders)}
        # Who reads a mutation reads the argument, after it: the caller's own tensor.
        results: dict[fx.Node, int] = {}
        returned = tuple(
            results.setdefault(item, len(results)) if isinstance(item, fx.Node) else (item,)
            for item in outputs
        )
        updates = tuple(
            (positions[target], results.setdefault(value, len(results)))
            for target, value in mutations
        )
        graph = Graph(
            tuple(range(len(placeholders))),
            self._nodes,
            tuple(self._number[node] for node in results),
        )
        segments = partition(graph)
        parts = [self._part(segment, positions) for segment in segments]
        return Split(graph, segments, parts, returned, updates)

    def _add_value(self, node: fx.Node) -> int:
        self._number[node] = len(self._values)
        self._values.append(node)
        return self._number[node]

    def _add_node(self, node: fx.Node, after: tuple[int, ...]) -> None:
        taken_apart = [user for user in node.users if user.target is operator.getitem]
        inputs = tuple(self._number[used] for used in node.all_input_nodes)
        self._sources.append(node)
        self._nodes.append(
            Node(
                name=node.name,
                inputs=inputs,
                outputs=tuple(self._add_value(made) for made in taken_apart or (node,)),
                host_reason=self._refused.get(node.name),
                after=after,
                cheap=compat.is_cheap(node),
            )
        )

    def _part(self, segment: Segment, positions: Mapping[fx.Node, int]) -> Part:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for value in segment.inputs:
            node = self._values[value]
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for index in segment.nodes:
            source = self._sources[index]
            copies[source] = graph.node_copy(source, copies.__getitem__)
            for user in source.users:
                if user.target is operator.getitem:
                    copies[user] = graph.node_copy(user, copies.__getitem__)
        graph.output(tuple(copies[self._values[value]] for value in segment.outputs))
        return Part(
            fx.GraphModule(self._module, graph),
            segment.on_device,
            tuple(positions.get(self._values[value]) for value in segment.inputs),
        )
