"""Splitting a graph into segments that run on the device or on the host.

Every node gets a level: the number of changes between device and host on the longest path to it,
over data and order constraints. Nodes of one level form a segment. Levels alternate between device
and host, so a segment reads only from segments before it: there can be no cycle, and no split
alternates less often than the longest alternating path. Linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pjrt_bridge.mixed.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that run together.

    Attributes:
        on_device: where.
        nodes: indices into the graph, in running order; a cheap node may be in several segments.
        inputs: values that come from before, in the order of their first use.
        outputs: values that later segments or the caller need.
    """

    on_device: bool
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def partition(graph: Graph) -> list[Segment]:
    """Split a graph into the fewest alternating segments, in running order."""
    maker = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    settled = _settled(graph, maker)
    groups = min(
        (_levels(graph, maker, settled, device_first) for device_first in (True, False)), key=len
    )
    return _connect(graph, [_with_cheap(graph, maker, settled, group) for group in groups])


def _settled(graph: Graph, maker: Mapping[int, int]) -> list[bool]:
    """Which nodes have one place of their own: all but cheap ones that only other nodes read."""
    settled = [not node.cheap or not node.on_device for node in graph.nodes]
    for value in graph.outputs:
        if value in maker:
            settled[maker[value]] = True
    return settled


def _levels(
    graph: Graph, maker: Mapping[int, int], settled: Sequence[bool], device_first: bool
) -> list[list[int]]:
    """Settled nodes by level; the first level runs on the device or on the host as asked."""
    levels: list[int] = []
    groups: list[list[int]] = [[]]
    for index, node in enumerate(graph.nodes):
        level = max((levels[before] for before in _before(node, maker)), default=0)
        # A cheap node has no level of its own: who reads it waits only for what it reads.
        if settled[index]:
            level += (level % 2 == 0) != (node.on_device == device_first)
            if level == len(groups):
                groups.append([])
            groups[level].append(index)
        levels.append(level)
    return [group for group in groups if group]


def _before(node: Node, maker: Mapping[int, int]) -> Iterable[int]:
    yield from (maker[value] for value in node.inputs if value in maker)
    yield from node.after


def _with_cheap(
    graph: Graph, maker: Mapping[int, int], settled: Sequence[bool], group: Sequence[int]
) -> tuple[bool, list[int]]:
    """Where a group runs, and its nodes with the unsettled ones that it reads."""
    chosen = set(group)
    waiting = list(group)
    while waiting:
        for value in graph.nodes[waiting.pop()].inputs:
            source = maker.get(value)
            if source is not None and source not in chosen and not settled[source]:
                chosen.add(source)
                waiting.append(source)
    return graph.nodes[group[0]].on_device, sorted(chosen)


def _connect(graph: Graph, placed: Sequence[tuple[bool, list[int]]]) -> list[Segment]:
    """Find what each segment reads from before, and what it has to hand on."""
    needed = set(graph.outputs)
    segments = []
    for on_device, indices in reversed(placed):
        nodes = [graph.nodes[index] for index in indices]
        made = [value for node in nodes for value in node.outputs]
        read = dict.fromkeys(value for node in nodes for value in node.inputs)
        inputs = tuple(value for value in read if value not in set(made))
        outputs = tuple(value for value in made if value in needed)
        segments.append(Segment(on_device, tuple(indices), inputs, outputs))
        needed.update(inputs)
    return segments[::-1]
