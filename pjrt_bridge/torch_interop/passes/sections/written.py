"""Values that are written section by section: these are joined, and read where they come from.

A loop in Python that writes the result of each step into its place becomes a chain of writes. A
compiler that fuses these asks of each element which of the steps wrote it.

Before: `%a = select_scatter(%x, %p, 1, 0); %b = select_scatter(%a, %q, 1, 1)`, where `%x` has two
columns. After: `cat([unsqueeze(%p, 1), unsqueeze(%q, 1)], 1)` in the place of `%b`. What was read
of `%a` is read of `%p` or `%x`.
"""

from __future__ import annotations

from bisect import bisect

from torch import fx

from pjrt_bridge.torch_interop.addressing import addressed_storages
from pjrt_bridge.torch_interop.passes.sections.section import (
    READS,
    WRITES,
    Section,
    joined,
    rank,
    section_of,
)


class _Sections:
    """What the nodes of a graph read and write, each looked at once."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, Section | None] = {}

    def written(self, node: fx.Node) -> Section | None:
        """See `section_of`."""
        if node not in self._known:
            self._known[node] = section_of(node, WRITES)
        return self._known[node]

    def replace(self, node: fx.Node, other: fx.Node) -> None:
        """Have all readers of a node read another one."""
        for user in node.users:
            self._known.pop(user, None)
        node.replace_all_uses_with(other)


def join_written_sections(graph: fx.Graph) -> None:
    """Join sections that are written into one value along one dimension, in place.

    They are joined where nothing else reads the value between, and where they are at least half of
    it: the rest is copied.

    Args:
        graph: a functional graph of known sizes.
    """
    sections = _Sections()
    _read_sources(graph, sections)
    seen: set[fx.Node] = set()
    for node in list(reversed(graph.nodes)):
        if node in seen or sections.written(node) is None:
            continue
        writers, base, row = _chain(node, sections)
        seen.update(writers)
        with graph.inserting_before(node):
            made = joined(graph, base, row)
        if made is not None:
            made.meta = dict(node.meta)
            sections.replace(node, made)
            for writer in writers:
                graph.erase_node(writer)


def _read_sources(graph: fx.Graph, sections: _Sections) -> None:
    """Read what was written where it comes from, and all else of the value before."""
    addressed = addressed_storages(graph)
    for node in list(graph.nodes):
        read = section_of(node, READS)
        # What addresses the storage of a section sees the rest of the value, too.
        if read is None or node in addressed or any(user.op == "output" for user in node.users):
            continue
        whole = read.whole
        while (written := sections.written(whole)) is not None and written.dim == read.dim:
            source = written.source
            assert source is not None
            if written.places == read.places and rank(source) == rank(node):
                sections.replace(node, source)
                break
            if not written.is_apart(read):
                break
            whole = written.whole
        if node.users:
            node.replace_input_with(read.whole, whole)
        else:
            graph.erase_node(node)


def _chain(node: fx.Node, sections: _Sections) -> tuple[list[fx.Node], fx.Node, list[Section]]:
    """The writes into a value that end in a node, from there on, the value, and its sections.

    Sections have one step, no place in common, and the order of their places. One that is written
    over is left out.
    """
    written = sections.written(node)
    assert written is not None
    writers, row, starts = [node], [written], [written.places.start]
    while True:
        base = written.whole
        found = sections.written(base)
        if found is None or found.dim != written.dim or len(base.users) > 1:
            return writers, base, row
        written = found
        places, where = written.places, bisect(starts, written.places.start)
        near = row[max(where - 1, 0) : where + 1]
        if all(section.places != places for section in near):
            if any(
                section.places.step != places.step or not section.is_apart(written)
                for section in near
            ):
                return writers, base, row
            starts.insert(where, places.start)
            row.insert(where, written)
        writers.append(base)
