"""Splitting a graph into segments that run on the device or on the host.

Every node gets a level: the number of changes between device and host on the longest path to it,
over data and order constraints. Nodes of one level form a segment. Levels alternate between device
and host, so a segment reads only from segments before it: there can be no cycle, and no split
alternates less often than the longest alternating path. Linear in nodes and edges.

A device segment that does too little to be worth a launch is moved to the host, which joins its
neighbours; then the levels are found again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.overlap import overlapped
from pjrt_bridge.report.fallback_reason import FallbackReason


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


@dataclass(frozen=True, slots=True)
class Partition:
    """A graph in segments.

    Attributes:
        graph: as it was given, with a fallback reason at each node that was moved to the host.
        segments: in running order, device and host alternating.
    """

    graph: Graph
    segments: Sequence[Segment]


def partition(graph: Graph, *, min_segment: int = 1) -> Partition:
    """Split a graph into the fewest alternating segments.

    Args:
        graph: what to split.
        min_segment: the least work (see `Node.work`) for which a device segment is launched.
    """
    maker = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    before = [_before(node, maker) for node in graph.nodes]
    on_device = [node.on_device for node in graph.nodes]
    cheap = [node.cheap and node.on_device for node in graph.nodes]
    settled = _settled(graph, maker, cheap)
    any_waits = any(node.waits for node in graph.nodes)
    moved: dict[int, int] = {}
    while True:
        levels = _fewest_levels(before, settled, cheap, on_device)
        if any_waits:
            levels = overlapped(graph, before, levels, on_device, least=min_segment)
        groups = _groups(levels)
        small = {
            index: work
            for group in groups
            if on_device[group[0]]
            and (work := sum(graph.nodes[index].work for index in group)) < min_segment
            for index in group
        }
        if not small:
            break
        moved.update(small)
        for index in small:
            on_device[index] = False
    needed = set(graph.outputs)
    segments = []
    some_cheap = any(cheap)
    for group in reversed(groups):
        indices = _with_cheap(graph, maker, cheap, group) if some_cheap else group
        segments.append(_segment(graph, on_device[group[0]], group, indices, needed))
    return Partition(_with_fallback_reasons(graph, moved, min_segment), segments[::-1])


def _before(node: Node, maker: Mapping[int, int]) -> Sequence[int]:
    # A tuple of numbers, which the garbage collector does not visit again and again.
    return (*[maker[value] for value in node.inputs if value in maker], *node.after)


def _settled(graph: Graph, maker: Mapping[int, int], cheap: Sequence[bool]) -> list[bool]:
    """Which nodes belong to one segment: all but cheap ones that only other nodes read."""
    settled = [not item for item in cheap]
    for value in graph.outputs:
        if value in maker:
            settled[maker[value]] = True
    return settled


def _fewest_levels(
    before: Sequence[Sequence[int]],
    settled: Sequence[bool],
    cheap: Sequence[bool],
    on_device: Sequence[bool],
) -> list[int]:
    """The level of each node, where the first one is on that side with which there are fewer."""
    found = [_levels(before, settled, cheap, on_device, first) for first in (True, False)]
    # A level may be empty when it is the first one: no node of that side comes before the others.
    return min(found, key=lambda levels: len(set(levels)))


def _groups(levels: Sequence[int]) -> list[list[int]]:
    """The nodes of each level that has some."""
    groups: list[list[int]] = [[] for _ in range(max(levels, default=-1) + 1)]
    for index, level in enumerate(levels):
        if level >= 0:
            groups[level].append(index)
    return [group for group in groups if group]


def _levels(
    before: Sequence[Sequence[int]],
    settled: Sequence[bool],
    cheap: Sequence[bool],
    on_device: Sequence[bool],
    device_first: bool,
) -> list[int]:
    """The level of each node, -1 for one that is not settled.

    The first level runs on the device or on the host as asked.
    """
    levels: list[int] = []
    reached: list[int] = []
    # Even levels run where the first one does.
    wanted = [place == device_first for place in on_device]
    for index, earlier in enumerate(before):
        level = 0
        for other in earlier:
            if reached[other] > level:
                level = reached[other]
        if not settled[index]:
            levels.append(-1)
            reached.append(level)
            continue
        own = level if (level % 2 == 0) == wanted[index] else level + 1
        levels.append(own)
        # A reader of a cheap node computes it anew, and waits only for what the node reads.
        reached.append(level if cheap[index] else own)
    return levels


def _with_cheap(
    graph: Graph, maker: Mapping[int, int], cheap: Sequence[bool], group: Sequence[int]
) -> list[int]:
    """The nodes of a group with the cheap ones that it reads."""
    chosen = set(group)
    waiting = list(group)
    while waiting:
        for value in graph.nodes[waiting.pop()].inputs:
            source = maker.get(value)
            if source is not None and source not in chosen and cheap[source]:
                chosen.add(source)
                waiting.append(source)
    return sorted(chosen)


def _with_fallback_reasons(graph: Graph, moved: Mapping[int, int], min_segment: int) -> Graph:
    if not moved:
        return graph
    nodes = list(graph.nodes)
    for index, work in moved.items():
        if work:
            reason = (
                f"its segment would have {work} operators, fewer than min_segment={min_segment}"
            )
        else:
            reason = "views and scalars alone are not worth a launch"
        small = FallbackReason(nodes[index].name, reason, "small")
        nodes[index] = replace(nodes[index], fallback_reason=small)
    return Graph(graph.inputs, nodes, graph.outputs)


def _segment(
    graph: Graph, on_device: bool, group: Sequence[int], indices: Sequence[int], needed: set[int]
) -> Segment:
    """A group with the cheap nodes that it reads; what it reads from before is needed then."""
    made: set[int] = set()
    read: dict[int, None] = {}
    for index in indices:
        node = graph.nodes[index]
        for value in node.inputs:
            if value not in made:
                read[value] = None
        made.update(node.outputs)
    outputs = tuple(
        [value for index in group for value in graph.nodes[index].outputs if value in needed]
    )
    needed.update(read)
    return Segment(on_device, tuple(indices), tuple(read), outputs)
