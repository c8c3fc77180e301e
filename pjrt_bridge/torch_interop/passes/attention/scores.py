"""Attention in a graph: a product, what is done to its scores, a softmax, and a product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.attention.elements import (
    behind,
    has_shape,
    has_shape_at_end,
    origin,
    shape,
)

PRODUCTS = ("aten.bmm.default", "aten.mm.default")

_SCALING: Mapping[str, Literal["product", "quotient"]] = {
    "aten.mul.Tensor": "product",
    "aten.mul.Scalar": "product",
    "aten.div.Tensor": "quotient",
    "aten.div.Scalar": "quotient",
}
_DEPTH = 8
"""Steps between a product and a softmax, at most."""

_HIDING = -1e8
"""A number from which on down it hides a score: no scores of a model are so low."""


@dataclass(frozen=True)
class ScoreStep:
    """What is done to scores.

    Attributes:
        node: the scores behind it.
        scale: a number that they are multiplied by.
        added: a tensor that is added to them.
        condition: where it holds, or where it does not, scores are hidden.
        is_kept: scores stay where the condition holds.
        hidden: what takes the place of hidden scores.
    """

    node: fx.Node
    scale: float = 1.0
    added: fx.Node | None = None
    condition: fx.Node | None = None
    is_kept: bool = False
    hidden: float = 0.0

    @property
    def is_mask(self) -> bool:
        """Whether it is more than a scale."""
        return self.added is not None or self.condition is not None

    @property
    def hides_by_a_number(self) -> bool:
        """Whether hidden scores are a finite number, so that a row of these alone has a softmax."""
        return self.condition is not None and math.isfinite(self.hidden)


@dataclass(frozen=True)
class Written:
    """Attention as a graph has it.

    Attributes:
        first: the product of queries and transposed keys.
        steps: from it to the softmax.
        softmax: the softmax over keys.
        last: the product of that and the values.
        nodes: all nodes from the first product to the last one, except those two, which may have
            other users.
    """

    first: fx.Node
    steps: tuple[ScoreStep, ...]
    softmax: fx.Node
    last: fx.Node
    nodes: tuple[fx.Node, ...]

    @property
    def query(self) -> fx.Node:
        """The left side of the first product: (batches, queries, size)."""
        return side_of(self.first, 0)

    @property
    def turned_key(self) -> fx.Node:
        """Its right side: (batches, size, keys)."""
        return side_of(self.first, 1)

    @property
    def weights(self) -> fx.Node:
        """The left side of the last product: (batches, queries, keys)."""
        return side_of(self.last, 0)

    @property
    def value(self) -> fx.Node:
        """Its right side: (batches, keys, size)."""
        return side_of(self.last, 1)

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return math.prod(step.scale for step in self.steps)

    @property
    def masks(self) -> tuple[ScoreStep, ...]:
        """The steps that add to scores, or hide them."""
        return tuple(step for step in self.steps if step.is_mask)


def side_of(product: fx.Node, at: int) -> fx.Node:
    """A factor of a product: the left one, 0, or the right one."""
    side = product.args[at]
    assert isinstance(side, fx.Node)
    return side


def attention_ending_with(last: fx.Node) -> Written | None:
    """The attention whose last product a node is; None where it is none, or was erased."""
    if compat.operator_name(last.target) not in PRODUCTS or not last.all_input_nodes:
        return None
    weights = behind(side_of(last, 0))
    softmax = weights.same[-1]
    if compat.operator_name(softmax.target) != "aten._softmax.default":
        return None
    scores, dim, _ = softmax.args
    sizes = shape(softmax)
    if not isinstance(scores, fx.Node) or dim not in (-1, len(sizes) - 1):
        return None
    found = _scores(scores)
    if found is None:
        return None
    nodes = (*weights.nodes, *found.nodes)
    written = Written(found.first, found.steps, softmax, last, nodes)
    return written if _fits(written) else None


class _ScoredSides(NamedTuple):
    """The product that scores are computed from, the steps behind it, and all nodes of these."""

    first: fx.Node
    steps: tuple[ScoreStep, ...]
    nodes: tuple[fx.Node, ...]


def _scores(node: fx.Node, depth: int = _DEPTH) -> _ScoredSides | None:
    """How scores are computed; None where they are none of attention."""
    found = behind(node)
    made = found.same[-1]
    if compat.operator_name(made.target) in PRODUCTS:
        return _ScoredSides(made, (), tuple(found.nodes[:-1]))
    if not depth:
        return None
    for step, inner in (*_scaled(made), *_added(made), *_hidden(made)):
        known = _scores(inner, depth - 1) if has_shape(inner, shape(made)) else None
        if known is not None and all(_may_follow(step, other) for other in known.steps):
            return _ScoredSides(known.first, (*known.steps, step), (*known.nodes, *found.nodes))
    return None


def _may_follow(step: ScoreStep, other: ScoreStep) -> bool:
    """Whether attention has both: a scale is of scores alone, and a hidden one stays as it is."""
    return not other.is_mask or (step.is_mask and not other.hides_by_a_number)


def _scaled(node: fx.Node) -> Iterator[tuple[ScoreStep, fx.Node]]:
    kind = _SCALING.get(compat.operator_name(node.target) or "")
    if kind is None or len(node.args) != 2 or node.kwargs:
        return
    for at in (0, 1) if kind == "product" else (0,):
        inner, factor = node.args[at], number_of(node.args[1 - at])
        if isinstance(inner, fx.Node) and factor and math.isfinite(factor):
            yield ScoreStep(node, scale=factor if kind == "product" else 1 / factor), inner


def _added(node: fx.Node) -> Iterator[tuple[ScoreStep, fx.Node]]:
    if compat.operator_name(node.target) != "aten.add.Tensor" or node.kwargs:
        return
    one, other = node.args
    if isinstance(one, fx.Node) and isinstance(other, fx.Node):
        yield ScoreStep(node, added=other), one
        yield ScoreStep(node, added=one), other


def _hidden(node: fx.Node) -> Iterator[tuple[ScoreStep, fx.Node]]:
    if compat.operator_name(node.target) != "aten.where.self":
        return
    condition, chosen, rest = node.args
    assert isinstance(condition, fx.Node)
    for inner, other, is_kept in ((rest, chosen, False), (chosen, rest, True)):
        hidden = number_of(other)
        if isinstance(inner, fx.Node) and hidden is not None and hidden <= _HIDING:
            hidden = _rounded(hidden, compat.promise(node).dtype)
            yield ScoreStep(node, condition=condition, is_kept=is_kept, hidden=hidden), inner


def number_of(item: Any) -> float | None:
    """A number, or the one that a tensor is filled with; None where it is not known."""
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return float(item)
    if not isinstance(item, fx.Node):
        return None
    made = origin(item)
    place = {"aten.scalar_tensor.default": 0, "aten.full.default": 1}.get(
        compat.operator_name(made.target) or ""
    )
    if place is None or (compat.promise(made).dim() and place == 0):
        return None
    found = number_of(made.args[place])
    if found is None:
        return None
    for node in (made, item):
        found = _rounded(found, compat.promise(node).dtype)
    return found


def _rounded(number: float, dtype: torch.dtype) -> float:
    """A number as a tensor has it: the least float32 is -inf in types of 16 bits."""
    if not dtype.is_floating_point:
        return number
    with compat.real_tensors():
        return float(torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype))


def _fits(written: Written) -> bool:
    """Whether types and sizes are those of attention."""
    sides = (written.query, written.turned_key, written.value, written.last)
    if len({compat.promise(side).dtype for side in sides}) != 1:
        return False
    *batch, queries, size = shape(written.query)
    keys = shape(written.turned_key)[-1]
    rows = (*batch, queries, keys)
    if not has_shape(written.weights, rows) or not has_shape(written.value, (*batch, keys, size)):
        return False
    # Each step goes through rows of the same queries and keys.
    of_rows = (written.softmax, *(step.node for step in written.steps if step.is_mask))
    return all(
        len(shape(node)) >= 2 and has_shape_at_end(node, (queries, keys)) for node in of_rows
    )
