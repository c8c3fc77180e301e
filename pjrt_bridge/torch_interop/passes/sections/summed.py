"""Sums of sections with zeros around them, joined.

The gradient of a value that is read section by section, as by the steps of a loop or by halves of
its last dimension, is a sum of as many values of its own size, each zero but for one section.

Before: `%a = slice_scatter(%zeros, %p, 1, 0, 2); %b = slice_scatter(%zeros, %q, 1, 2, 4);
add(%a, %b)`, where `%zeros` has four columns. After: `cat([%p, %q], 1)`. Sections at the same
places are added. An element that only one section has keeps its sign where it is zero: in the sum
with zeros -0 would become 0.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import computed
from pjrt_bridge.torch_interop.passes.sections.section import (
    WRITES,
    Section,
    joined,
    rank,
    section_of,
)

_ADD = torch.ops.aten.add.Tensor

ADD = "aten.add.Tensor"
"""Name of the operator that sums."""

_ZEROS = ("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
_FULL = ("aten.full.default", "aten.full_like.default")

_Summands = dict[range, Section]
"""Sections along one dimension of a value, by their places."""


def join_summed_sections(graph: fx.Graph) -> None:
    """Join the sections of sums, in place.

    Args:
        graph: a functional graph of known sizes.
    """
    # What is joined may be a section of what is joined next, along another dimension.
    while _join(graph):
        pass


def _join(graph: fx.Graph) -> bool:
    """Join the sums that are known by now, and say whether there were any."""
    sums = _Sums(graph)
    for node in list(graph.nodes):
        sums.look_at(node)
    found = False
    for node, summands in sums.known.items():
        sections = sorted(summands.values(), key=lambda section: section.places.start)
        if all(one.is_apart(two) for one, two in pairwise(sections)):
            with graph.inserting_before(node):
                made = joined(graph, sections[0].whole, sections)
            if made is not None:
                made.meta = dict(node.meta)
                node.replace_all_uses_with(made)
                found = True
    for node in reversed(sums.terms):
        if not node.users:
            graph.erase_node(node)
    return found


class _Sums:
    """The sums of a graph whose terms are zero but for one section each.

    Attributes:
        known: those that are no terms of others.
        terms: what they are made of, in the order of the graph.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.known: dict[fx.Node, _Summands] = {}
        self.terms: list[fx.Node] = []
        self._graph = graph

    def look_at(self, node: fx.Node) -> None:
        """Take in a node, after those before it."""
        name = compat.operator_name(node.target)
        found = self._added(node) if name == ADD else _written(node)
        if found is not None:
            self.known[node] = found
            self.terms.append(node)

    def _added(self, node: fx.Node) -> _Summands | None:
        """The sections of a sum of two sums, which nothing else reads."""
        left, right = (self._term(side) for side in node.args[:2])
        if left is None or right is None or left is right or node.kwargs.get("alpha", 1) != 1:
            return None
        found, others = self.known[left], self.known[right]
        one, two = (next(iter(side.values())) for side in (found, others))
        if one.dim != two.dim or not _is_alike(node, one.whole) or not _is_alike(node, two.whole):
            return None
        both = found.keys() & others.keys()
        if any(rank(found[at].source) != rank(others[at].source) for at in both):
            return None
        del self.known[left], self.known[right]
        # Of the longer one no copy is made, so that the time is linear in the number of terms.
        longer, shorter = (found, others) if len(found) > len(others) else (others, found)
        with self._graph.inserting_before(node):
            for at in both:
                term = computed(self._graph, _ADD, found[at].source, others[at].source)
                self.terms.append(term)
                shorter[at] = replace(shorter[at], source=term)
        longer.update(shorter)
        return longer

    def _term(self, side: Any) -> fx.Node | None:
        """A side of a sum, if it is one of these sums, and nothing else reads it."""
        is_one = isinstance(side, fx.Node) and side in self.known and len(side.users) == 1
        return side if is_one else None


def _is_alike(node: fx.Node, other: fx.Node) -> bool:
    """Whether both have one shape and element type."""
    one, two = compat.promise(node), compat.promise(other)
    return one.shape == two.shape and one.dtype is two.dtype


def _written(node: fx.Node) -> _Summands | None:
    """The section that a node writes into zeros."""
    section = section_of(node, WRITES)
    return {section.places: section} if section is not None and _is_zero(section.whole) else None


def _is_zero(node: fx.Node) -> bool:
    name = compat.operator_name(node.target)
    return name in _ZEROS or (name in _FULL and compat.bound_arguments(node)["fill_value"] == 0)
