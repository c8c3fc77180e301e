"""Device work between the node that starts a collective operation and the one that waits.

A collective operation of torch.distributed starts in one node and is waited for in another. The
levels of `partition.py` put both into one host segment, and all device work that depends on neither
before it, so nothing overlaps. Here device work that the start does not need moves behind it:

    before: device(a, b)  host(start a, wait)             device(uses both)
    after:  device(a)     host(start a)  device(b)  host(wait)  device(uses both)

The device segment in the middle is launched and not waited for, while the processes communicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pjrt_bridge.mixed.graph import Graph, Node


def overlapped(
    graph: Graph,
    before: Sequence[Sequence[int]],
    levels: Sequence[int],
    on_device: Sequence[bool],
    *,
    least: int,
) -> list[int]:
    """The levels of nodes with device work between starts and waits, where there is enough of it.

    Args:
        graph: the nodes; a host node that `Node.waits` waits for what the nodes that it reads have
            started.
        before: for each node those that have to run before it.
        levels: of each node, see `partition`; -1 for one that is computed where it is read.
        on_device: for each node whether it runs there.
        least: work that a device segment has to have, on either side of a start.
    """
    starts = _starts(graph.nodes, before, levels, on_device)
    moving = _movable(graph.nodes, before, levels, on_device, starts, least)
    if not moving:
        return list(levels)
    late = _late(before, levels, moving, starts)
    # Two levels more behind each start: the work that moves there, and the waits.
    found = []
    for index, level in enumerate(levels):
        shifted = level + 2 * sum(at < level for at in moving) if level >= 0 else level
        if index in late or index in moving.get(level + 1, ()):
            shifted += 2
        found.append(shifted)
    return found


def _starts(
    nodes: Sequence[Node],
    before: Sequence[Sequence[int]],
    levels: Sequence[int],
    on_device: Sequence[bool],
) -> Mapping[int, set[int]]:
    """For nodes that wait the starts in the same level; others have work between already."""
    found = {}
    for index, node in enumerate(nodes):
        if node.waits and not on_device[index] and levels[index] >= 0:
            starts = {
                other
                for other in before[index]
                if levels[other] == levels[index] and not nodes[other].waits
            }
            if starts:
                found[index] = starts
    return found


def _movable(
    nodes: Sequence[Node],
    before: Sequence[Sequence[int]],
    levels: Sequence[int],
    on_device: Sequence[bool],
    starts: Mapping[int, set[int]],
    least: int,
) -> Mapping[int, set[int]]:
    """For levels of starts the device nodes before them that nothing needs until after them."""
    starting = {levels[index] for index in starts}
    # The level at which a node's results are first read; for a host reader the one before it.
    needed = [max(levels, default=0) + 2] * len(levels)
    for index in range(len(levels) - 1, -1, -1):
        level = levels[index]
        if level < 0:
            # Its readers compute it anew.
            limit = needed[index]
        elif not on_device[index]:
            limit = level - 1
        else:
            moves = level + 1 in starting and needed[index] > level + 1
            limit = level + 2 if moves else level
        for other in before[index]:
            needed[other] = min(needed[other], limit)
    found: dict[int, set[int]] = {}
    for level in sorted(starting):
        group = [index for index, own in enumerate(levels) if own == level - 1 and on_device[index]]
        moving = {index for index in group if needed[index] > level}
        work = sum(nodes[index].work for index in moving)
        kept = [nodes[index].work for index in group if index not in moving]
        if work >= max(least, 1) and (not kept or sum(kept) >= max(least, 1)):
            found[level] = moving
    return found


def _late(
    before: Sequence[Sequence[int]],
    levels: Sequence[int],
    moving: Mapping[int, set[int]],
    starts: Mapping[int, set[int]],
) -> set[int]:
    """Nodes that wait behind the work that moves, and what follows them in their level."""
    late: set[int] = set()
    # For what is computed where it is read the levels of those that it reads.
    passed: dict[int, set[int]] = {}
    for index, level in enumerate(levels):
        read = set[int]()
        for other in before[index]:
            read |= passed.get(other, set())
            if other in late:
                read.add(levels[other])
        if level < 0:
            passed[index] = read
        elif level in moving and (level in read or starts.get(index, set()) - late):
            late.add(index)
    return late
