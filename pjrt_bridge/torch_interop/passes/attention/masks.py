"""One mask of all that attention adds to scores, or hides them by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.attention.elements import has_shape_at_end, shape
from pjrt_bridge.torch_interop.passes.attention.scores import ScoreStep, Written
from pjrt_bridge.torch_interop.passes.constant_tensors import constant_tensor

_FAR_BELOW = -1e30
"""Stands for all finite numbers that hide a score: added to one, it is this number."""

_LOW = -1_000.0
"""A number that scores of a model are above."""


@dataclass(frozen=True)
class AddedMask:
    """What attention adds to scores.

    Attributes:
        added: a tensor (batch, heads, queries, keys), of which the first three may be 1.
        empty: true for queries that see no key, of which a softmax makes NaN: (batch, heads,
            queries, 1). None where there are none.
        even: the same for queries all of whose scores are replaced by one number: they have the
            mean of all values, and no gradient.
        has_gradients: gradients are those of torch's operator, but for empty and even queries.
    """

    added: fx.Node
    empty: fx.Node | None
    even: fx.Node | None
    has_gradients: bool


def mask_of(graph: fx.Graph, written: Written) -> AddedMask | None:
    """Insert the mask of attention that has one; None where no kernel takes it."""
    total = None
    for step in written.masks:
        value = _value(graph, step, written)
        if step.condition is not None:
            total = _hidden(graph, value, step, total)
        else:
            total = value if total is None else _call(graph, "add.Tensor", total, value)
    if total is None or not has_shape_at_end(total, shape(written.weights)[-1:]):
        return None
    known = constant_tensor(total)
    by_numbers = any(step.hides_by_a_number for step in written.masks)
    empty = even = None
    may_be_empty = not _leaves_keys(known, lambda elements: elements > -math.inf)
    may_be_even = by_numbers and not _leaves_keys(known, lambda elements: elements > _FAR_BELOW)
    if may_be_empty or may_be_even:
        most = _call(graph, "amax.default", total, [-1], True)
        empty = _call(graph, "eq.Scalar", most, -math.inf) if may_be_empty else None
        even = _call(graph, "eq.Scalar", most, _FAR_BELOW) if may_be_even else None
    # The kernel computes weights again from the logarithm of their sum, which has no digits left
    # for it where all that is added to a row is a large negative number.
    is_seen = _leaves_keys(known, lambda elements: elements > _LOW)
    is_hidden = all(step.condition is not None for step in written.masks)
    is_simple = even is None or len(written.masks) == 1
    return AddedMask(total, empty, even, is_seen or (is_hidden and is_simple))


def _value(graph: fx.Graph, step: ScoreStep, written: Written) -> fx.Node:
    """What a step adds, or its condition, in four dimensions."""
    value = _small(step.condition if step.added is None else step.added)
    if step.added is not None and not _is_taken(value, written):
        value = _call(graph, "_to_copy.default", value, dtype=torch.float32)
    for _ in range(len(shape(step.node)) - len(shape(value))):
        value = _call(graph, "unsqueeze.default", value, 0)
    while len(shape(value)) < 4:
        value = _call(graph, "unsqueeze.default", value, len(shape(value)) - 2)
    return value


def _small(value: Any) -> fx.Node:
    """A tensor before it was repeated."""
    while compat.operator_name(value.target) in ("aten.expand.default", "aten.alias.default"):
        value = value.args[0]
    found: fx.Node = value
    return found


def _hidden(graph: fx.Graph, condition: fx.Node, step: ScoreStep, total: fx.Node | None) -> fx.Node:
    """What was added before, but where scores are hidden."""
    is_number = step.hides_by_a_number and not _leaves_keys(
        constant_tensor(condition), lambda elements: elements == step.is_kept
    )
    device = compat.promise(condition).device
    hidden, zero = (
        _call(graph, "full.default", [], number, dtype=torch.float32, device=device)
        for number in (_FAR_BELOW if is_number else -math.inf, 0.0)
    )
    seen = zero if total is None else total
    chosen = (seen, hidden) if step.is_kept else (hidden, seen)
    return _call(graph, "where.self", condition, *chosen)


def _leaves_keys(known: torch.Tensor | None, seen: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a mask, of known elements or not, is known to leave a key to each query."""
    if known is None:
        return False
    with compat.real_tensors():
        return bool(seen(known).any(-1).all())


def _is_taken(value: fx.Node, written: Written) -> bool:
    dtype = compat.promise(value).dtype
    return dtype in (torch.float32, compat.promise(written.query).dtype)


def _call(graph: fx.Graph, name: str, *args: Any, **kwargs: Any) -> fx.Node:
    return compat.insert_call(graph, f"aten.{name}", *args, **kwargs)
