"""What nodes read and write of a value along one dimension, and values that are joined of parts."""

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
"""Names of the operators of which `part_of` knows what they read and write."""


@dataclass(frozen=True)
class Part:
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

    def is_apart(self, other: Part) -> bool:
        """Whether both are known to have no element in common."""
        one, two = self.places, other.places
        between = one[-1] < two[0] or two[-1] < one[0]
        return between or (one.step == two.step and (one[0] - two[0]) % one.step != 0)


def part_of(node: fx.Node, kinds: Collection[str]) -> Part | None:
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
    return Part(whole, dim, size, places, source)


def _fits(source: torch.Tensor, value: torch.Tensor, dim: int, places: range) -> bool:
    """Whether what is written needs no conversion and no repetition."""
    before, behind = value.shape[:dim], value.shape[dim + 1 :]
    shapes = [(*before, len(places), *behind)] + [(*before, *behind)] * (len(places) == 1)
    return source.dtype is value.dtype and tuple(source.shape) in shapes


def rank(node: fx.Node | None) -> int:
    """The number of dimensions of a node's value."""
    assert node is not None
    return compat.promise(node).dim()


def joined(graph: fx.Graph, base: fx.Node, parts: Sequence[Part]) -> fx.Node | None:
    """A value with these parts, as a concatenation.

    Args:
        graph: where new nodes are inserted, at its place for them.
        base: has the elements of the value that no part has.
        parts: of one step, by their first place; no two have a place in common.

    Returns:
        None where a concatenation does not pay: of one part, or where much of the base is copied.
    """
    return _in_a_row(graph, base, parts) or _in_turn(graph, base, parts)


def _in_a_row(graph: fx.Graph, base: fx.Node, parts: Sequence[Part]) -> fx.Node | None:
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
        is_whole = rank(source) == rank(base)
        pieces.append(source if is_whole else computed(graph, _aten.unsqueeze.default, source, dim))
        at = part.places.stop
    if at < size:
        pieces.append(computed(graph, _aten.slice.Tensor, base, dim, at, size))
    return graph.call_function(_aten.cat.default, (pieces, dim))


def _in_turn(graph: fx.Graph, base: fx.Node, parts: Sequence[Part]) -> fx.Node | None:
    """Parts that have every n-th place each, joined where these are all."""
    dim, size, places = parts[0].dim, parts[0].size, parts[0].places
    if len(parts) == 1 or len(parts) < places.step or len(places) * places.step != size:
        return None
    pieces = []
    for part in parts:
        assert part.source is not None
        pieces.append(computed(graph, _aten.unsqueeze.default, part.source, dim + 1))
    made = graph.call_function(_aten.cat.default, (pieces, dim + 1))
    value = _aten.cat.default([compat.promise(piece) for piece in pieces], dim + 1)
    made.meta = {**base.meta, "val": value}
    return computed(graph, _aten.view.default, made, compat.promise(base).shape)
