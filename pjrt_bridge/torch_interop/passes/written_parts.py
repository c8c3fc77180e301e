"""Values that are written part by part: all parts are joined, and read where they come from.

A loop in Python that writes the result of each step into its place becomes a chain of writes. A
compiler that fuses these asks of each element which of the steps wrote it.

Before: `%a = select_scatter(%x, %p, 1, 0); %b = select_scatter(%a, %q, 1, 1)`, where `%x` has two
columns. After: `cat([unsqueeze(%p, 1), unsqueeze(%q, 1)], 1)` in the place of `%b`. What was read
of `%a` is read of `%p` or `%x`.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import computed

_aten = torch.ops.aten

_READS = ("aten.select.int", "aten.slice.Tensor")
_WRITES = ("aten.select_scatter.default", "aten.slice_scatter.default")


@dataclass(frozen=True)
class _Part:
    """What a node reads or writes of a value.

    Attributes:
        whole: the value.
        dim: the dimension that is divided, of so many elements as `size` says.
        places: along it; not empty.
        source: what is written, if it is.
    """

    whole: fx.Node
    dim: int
    size: int
    places: range
    source: fx.Node | None

    def is_apart(self, other: _Part) -> bool:
        """Whether both are known to have no element in common."""
        one, two = self.places, other.places
        between = one[-1] < two[0] or two[-1] < one[0]
        return between or (one.step == two.step and (one[0] - two[0]) % one.step != 0)


class _Parts:
    """What the nodes of a graph read and write, each looked at once."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, _Part | None] = {}

    def written(self, node: fx.Node) -> _Part | None:
        """See `_part`."""
        if node not in self._known:
            self._known[node] = _part(node, _WRITES)
        return self._known[node]

    def replace(self, node: fx.Node, other: fx.Node) -> None:
        """Have all readers of a node read another one."""
        for user in node.users:
            self._known.pop(user, None)
        node.replace_all_uses_with(other)


def join_written_parts(graph: fx.Graph, keeps: Callable[[str], bool]) -> None:
    """Join parts that are written into one value along one dimension, in place.

    They are joined where nothing else reads the value between, and where they are at least half of
    it: the rest is copied.

    Args:
        graph: a functional graph of known sizes.
        keeps: says of an operator's name that it stays as it is.
    """
    if any(keeps(name) for name in (*_READS, *_WRITES)):
        return
    parts = _Parts()
    _read_sources(graph, parts)
    seen: set[fx.Node] = set()
    for node in list(reversed(graph.nodes)):
        if node in seen or parts.written(node) is None:
            continue
        writers, base, row = _chain(node, parts)
        seen.update(writers)
        with graph.inserting_before(node):
            joined = _in_a_row(graph, base, row) or _in_turn(graph, base, row)
        if joined is not None:
            joined.meta = dict(node.meta)
            parts.replace(node, joined)
            for writer in writers:
                graph.erase_node(writer)


def _read_sources(graph: fx.Graph, parts: _Parts) -> None:
    """Read what was written where it comes from, and all else of the value before."""
    for node in list(graph.nodes):
        read = _part(node, _READS)
        if read is None or any(user.op == "output" for user in node.users):
            continue
        whole = read.whole
        while (written := parts.written(whole)) is not None and written.dim == read.dim:
            source = written.source
            assert source is not None
            if written.places == read.places and _rank(source) == _rank(node):
                parts.replace(node, source)
                break
            if not written.is_apart(read):
                break
            whole = written.whole
        if node.users:
            node.replace_input_with(read.whole, whole)
        else:
            graph.erase_node(node)


def _part(node: fx.Node, kinds: Collection[str]) -> _Part | None:
    """What a node of these operators reads or writes; None if it is none, or that is not known."""
    if compat.operator_name(node.target) not in kinds:
        return None
    given = compat.bound_arguments(node)
    whole, source = given["self"], given.get("src")
    value = compat.promise(whole)
    if compat.is_symbolic(value):
        return None
    dim = given["dim"] % value.dim()
    size = value.shape[dim]
    if "index" in given:
        at = given["index"]
        bounds = (at, None if at == -1 else at + 1, 1) if isinstance(at, int) else (at, at, 1)
    else:
        bounds = (given["start"], given["end"], given["step"])
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        return None
    places = range(*slice(*bounds).indices(size))
    if len(places) == 1:
        places = range(places[0], places[0] + 1)
    # Parts of one step are apart where their first places are others, and before the second ones.
    if not places or places.start >= places.step > 1:
        return None
    if source is not None and not _fits(compat.promise(source), value, dim, places):
        return None
    return _Part(whole, dim, size, places, source)


def _fits(source: torch.Tensor, value: torch.Tensor, dim: int, places: range) -> bool:
    """Whether what is written needs no conversion and no repetition."""
    before, behind = value.shape[:dim], value.shape[dim + 1 :]
    shapes = [(*before, len(places), *behind)] + [(*before, *behind)] * (len(places) == 1)
    return source.dtype is value.dtype and tuple(source.shape) in shapes


def _rank(node: fx.Node) -> int:
    return compat.promise(node).dim()


def _chain(node: fx.Node, parts: _Parts) -> tuple[list[fx.Node], fx.Node, list[_Part]]:
    """The writes into a value that end in a node, from there on, the value, and the parts in order.

    Parts have one step and no place in common. One that is written over is left out.
    """
    written = parts.written(node)
    assert written is not None
    writers, row, starts = [node], [written], [written.places.start]
    while True:
        base = written.whole
        found = parts.written(base)
        if found is None or found.dim != written.dim or len(base.users) > 1:
            return writers, base, row
        written = found
        places, where = written.places, bisect(starts, written.places.start)
        near = row[max(where - 1, 0) : where + 1]
        if all(part.places != places for part in near):
            if any(part.places.step != places.step or not part.is_apart(written) for part in near):
                return writers, base, row
            starts.insert(where, places.start)
            row.insert(where, written)
        writers.append(base)


def _in_a_row(graph: fx.Graph, base: fx.Node, parts: list[_Part]) -> fx.Node | None:
    """Parts that lie one behind the other, joined with what is between them of the base."""
    dim, size = parts[0].dim, parts[0].size
    covered = sum(len(part.places) for part in parts)
    if len(parts) == 1 or parts[0].places.step > 1 or 2 * covered < size:
        return None
    pieces, at = [], 0
    for part in parts:
        if at < part.places.start:
            pieces.append(computed(graph, _aten.slice.Tensor, base, dim, at, part.places.start))
        source = part.source
        assert source is not None
        is_whole = _rank(source) == _rank(base)
        pieces.append(source if is_whole else computed(graph, _aten.unsqueeze.default, source, dim))
        at = part.places.stop
    if at < size:
        pieces.append(computed(graph, _aten.slice.Tensor, base, dim, at, size))
    return graph.call_function(_aten.cat.default, (pieces, dim))


def _in_turn(graph: fx.Graph, base: fx.Node, parts: list[_Part]) -> fx.Node | None:
    """Parts that have every n-th place each, joined where these are all."""
    dim, size, places = parts[0].dim, parts[0].size, parts[0].places
    if len(parts) < places.step or len(places) * places.step != size:
        return None
    pieces = []
    for part in parts:
        assert part.source is not None
        pieces.append(computed(graph, _aten.unsqueeze.default, part.source, dim + 1))
    joined = graph.call_function(_aten.cat.default, (pieces, dim + 1))
    joined.meta = {
        **base.meta,
        "val": _aten.cat.default(list(map(compat.promise, pieces)), dim + 1),
    }
    return computed(graph, _aten.view.default, joined, compat.promise(base).shape)
