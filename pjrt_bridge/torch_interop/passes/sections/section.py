"""What nodes read and write of a value along one dimension, and values joined of such sections."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import computed

_aten = torch.ops.aten

READS = ("aten.select.int", "aten.slice.Tensor")
WRITES = ("aten.select_scatter.default", "aten.slice_scatter.default")
"""Names of the operators of which `section_of` knows what they read and write."""


@dataclass(frozen=True)
class Section:
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

    def is_apart(self, other: Section) -> bool:
        """Whether both are known to have no element in common."""
        one, two = self.places, other.places
        between = one[-1] < two[0] or two[-1] < one[0]
        return between or (one.step == two.step and (one[0] - two[0]) % one.step != 0)


def section_of(node: fx.Node, kinds: Collection[str]) -> Section | None:
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
    # Those of one step are apart where their first places are others, and before the second ones.
    if not places or places.start >= places.step > 1:
        return None
    if source is not None and not _fits(compat.promise(source), value, dim, places):
        return None
    return Section(whole, dim, size, places, source)


def _fits(source: torch.Tensor, value: torch.Tensor, dim: int, places: range) -> bool:
    """Whether what is written needs no conversion and no repetition."""
    before, behind = value.shape[:dim], value.shape[dim + 1 :]
    shapes = [(*before, len(places), *behind)] + [(*before, *behind)] * (len(places) == 1)
    return source.dtype is value.dtype and tuple(source.shape) in shapes


def rank(node: fx.Node | None) -> int:
    """The number of dimensions of a node's value."""
    assert node is not None
    return len(compat.promise(node).shape)


def joined(graph: fx.Graph, base: fx.Node, sections: Sequence[Section]) -> fx.Node | None:
    """A value with these sections, as a concatenation.

    Args:
        graph: where new nodes are inserted, at its place for them.
        base: has the elements of the value that no section has.
        sections: by their first place; no two have a place in common.

    Returns:
        None where there is none, or it does not pay: of one section, or with most of the base.
    """
    if len({section.places.step for section in sections}) > 1:
        return None
    return _in_a_row(graph, base, sections) or _in_turn(graph, base, sections)


def _in_a_row(graph: fx.Graph, base: fx.Node, sections: Sequence[Section]) -> fx.Node | None:
    """Sections that lie one behind the other, joined with what is between them of the base."""
    dim, size = sections[0].dim, sections[0].size
    covered = sum(len(section.places) for section in sections)
    if len(sections) == 1 or sections[0].places.step > 1 or 2 * covered < size:
        return None
    pieces, at = [], 0
    for section in sections:
        if at < section.places.start:
            pieces.append(computed(graph, _aten.slice.Tensor, base, dim, at, section.places.start))
        source = section.source
        assert source is not None
        is_whole = rank(source) == rank(base)
        pieces.append(source if is_whole else computed(graph, _aten.unsqueeze.default, source, dim))
        at = section.places.stop
    if at < size:
        pieces.append(computed(graph, _aten.slice.Tensor, base, dim, at, size))
    return graph.call_function(_aten.cat.default, (pieces, dim))


def _in_turn(graph: fx.Graph, base: fx.Node, sections: Sequence[Section]) -> fx.Node | None:
    """Sections that have every n-th place each, joined where these are all."""
    dim, size, step = sections[0].dim, sections[0].size, sections[0].places.step
    all_there = all(len(section.places) * step == size for section in sections)
    if len(sections) == 1 or len(sections) < step or not all_there:
        return None
    pieces = []
    for section in sections:
        assert section.source is not None
        pieces.append(computed(graph, _aten.unsqueeze.default, section.source, dim + 1))
    made = graph.call_function(_aten.cat.default, (pieces, dim + 1))
    value = _aten.cat.default([compat.promise(piece) for piece in pieces], dim + 1)
    made.meta = {**base.meta, "val": value}
    return computed(graph, _aten.view.default, made, compat.promise(base).shape)
