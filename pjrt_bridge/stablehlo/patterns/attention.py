"""Attention, as frameworks write it: a product, a scale, a mask, a softmax and a product.

A kernel gives zeros for a query that sees no key, where a softmax gives NaN, or the mean of all
values if masked scores are a large negative number. So the program looks at the logarithms of the
sums that come with the result, and computes attention as it was written where one is out of range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge.stablehlo.known_numbers import dtype_of, maker, number
from pjrt_bridge.stablehlo.patterns import softmax
from pjrt_bridge.stablehlo.patterns.axes import Axes, DimsOfSides, arrange
from pjrt_bridge.stablehlo.patterns.masks import Mask, combined, hides
from pjrt_bridge.stablehlo.patterns.reading import (
    Product,
    are_floats,
    between,
    laid_out,
    operands,
    product_of,
    shape_of,
)

_UNDERFLOW = 110.0
"""The exponential of a number that is so much below another adds nothing to its, in float32."""


@dataclass(frozen=True)
class _Scores:
    """`scale * query @ key^T + masks`, in the order of the program."""

    product: Product
    scale: float
    masks: tuple[Mask, ...]


def _scores(value: Any, depth: int = 20) -> _Scores | None:
    """How the scores of a softmax are computed; None where they are none of attention."""
    value = laid_out(value, converted=are_floats)
    found = product_of(value)
    made = maker(value)
    if found is not None:
        return _Scores(found, 1.0, ())
    if made is None or not depth:
        return None
    name, sides = made.name.removeprefix("stablehlo."), list(made.operands)
    if name in ("multiply", "divide"):
        for one, other in ((0, 1), (1, 0))[: 1 if name == "divide" else 2]:
            factor = number(sides[other])
            inner = None if factor is None else _scores(sides[one], depth - 1)
            if factor and inner is not None and not inner.masks and math.isfinite(factor):
                scale = inner.scale * factor if name == "multiply" else inner.scale / factor
                return _Scores(inner.product, scale, ())
    elif name == "add":
        for one, other in ((0, 1), (1, 0)):
            inner = _scores(sides[one], depth - 1)
            if inner is not None:
                return _with(inner, Mask("add", sides[other], made.results[0]))
    elif name == "select":
        for seen in (1, 2):
            hidden = number(sides[3 - seen])
            inner = None if hidden is None else _scores(sides[seen], depth - 1)
            if hidden is not None and inner is not None and hides(hidden):
                mask = Mask("keep" if seen == 1 else "drop", sides[0], made.results[0], hidden)
                return _with(inner, mask)
    return None


def _with(scores: _Scores, mask: Mask) -> _Scores | None:
    # What is added to a hidden score that is a number makes it another number.
    if any(other.is_finite for other in scores.masks):
        return None
    return _Scores(scores.product, scores.scale, (*scores.masks, mask))


def divided_first(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`softmax(scores) @ value`."""
    last = product_of(operation.handle.results[0])
    if last is None:
        return None
    for side in (0, 1):
        weights = laid_out(operation.handle.operands[side], converted=are_floats)
        sides = operands(weights, "stablehlo.divide")
        powers = None if sides is None else softmax.powers(sides[0])
        match = None if powers is None else _find(powers, last, side, operation)
        if match is None or sides is None:
            continue
        rows = softmax.rows(match.axes, match.powers, sides[1])
        if rows is not None and softmax.repeats(match.axes, sides[0], sides[1], rows.axes):
            return _emit(kernels, b, match, rows)
    return None


def divided_last(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`(exp(scores - max(scores)) @ value) / sum(exp(scores - max(scores)))`."""
    weighted, total = operation.handle.operands
    last = product_of(laid_out(weighted, converted=are_floats))
    if last is None:
        return None
    for side in (0, 1):
        powers = softmax.powers(last.handle.operands[side])
        match = None if powers is None else _find(powers, last, side, operation)
        if match is None:
            continue
        rows = softmax.rows(match.axes, match.powers, total)
        columns = frozenset(axis for dim in match.columns for axis in dim)
        if rows is not None and softmax.repeats(match.axes, weighted, total, columns):
            return _emit(kernels, b, match, rows)
    return None


@dataclass(frozen=True)
class _Match:
    """Two products, with exponentials of what the first gives in the second.

    Attributes:
        operation: the last one.
        axes: of all that follows from the first product.
        scores: how the first product and what follows it are written.
        powers: the exponentials.
        last: the second product.
        side: of it that the exponentials are.
    """

    operation: Operation
    axes: Axes
    scores: _Scores
    powers: softmax.Powers
    last: Product
    side: int

    def dims(self, value: Any) -> DimsOfSides:
        """The axes of a value, all of which are known."""
        found = self.axes.of(value)
        assert found is not None
        return found

    @property
    def columns(self) -> DimsOfSides:
        """The axes that the second product has from the values."""
        batch, free = len(self.last.batch[0]), len(self.last.free(0))
        found = self.dims(self.last.handle.results[0])[batch:]
        return found[free:] if self.side == 0 else found[:free]


def _find(powers: softmax.Powers, last: Product, side: int, operation: Operation) -> _Match | None:
    scores = _scores(powers.x)
    if scores is None or 0 in shape_of(powers.x):
        return None
    axes = Axes()
    axes.begin(scores.product.handle.results[0])
    weights, value = (last.handle.operands[at] for at in (side, 1 - side))
    dims = axes.of(weights)
    if dims is None:
        return None
    batch = [dims[dim] for dim in last.batch[side]]
    free = [dims[dim] for dim in last.free(side)]
    columns = [axes.new(shape_of(value)[dim]) for dim in last.free(1 - side)]
    axes.state(last.handle.results[0], [*batch, *(free + columns if side == 0 else columns + free)])
    if axes.of(operation.handle.results[0]) is None:
        return None
    return _Match(operation, axes, scores, powers, last, side)


def _emit(
    kernels: Kernels, b: Builder, match: _Match, rows: softmax.Rows
) -> Sequence[Value] | None:
    """What takes the place of the last operation; None where there is no kernel."""
    first, root = match.scores.product, match.operation.handle
    query_side = _query_side(match, rows.axes)
    if query_side is None:
        return None
    query, key = (first.handle.operands[side] for side in (query_side, 1 - query_side))
    value = match.last.handle.operands[1 - match.side]
    masks = match.scores.masks
    hidden = [mask.hidden for mask in masks if mask.is_finite]
    is_same = rows.is_guarded and not hidden
    if not is_same and not kernels.can_branch:
        return None
    inputs = [query, key, value, *(mask.value for mask in masks)]
    steps = between(root, inputs)
    if len({dtype_of(item) for item in (query, key, value)}) != 1 or steps is None:
        return None
    if first.handle not in steps or not softmax.is_alone(steps, first.handle.results[0]):
        return None
    if any(shape_of(mask.value) != shape_of(mask.result) for mask in masks):
        return None
    given = _arranged(b, match, rows.axes, query_side)
    if given is None:
        return None
    (q, k, v), groups = given
    mask = combined(b, match.axes, masks, match.operation.value, groups[:4])
    found = kernels.attention(b, q, k, v, mask, Attention(match.scores.scale, is_causal=False))
    if found is None:
        return None
    output, sums = found
    result = _back(b, match, output, groups)
    if is_same:
        return [result]
    length = match.axes.size(groups[3])
    least = max(hidden) + _UNDERFLOW + math.log(length) if hidden else -math.inf
    return b.if_(_all_within(b, sums, least), lambda: result, lambda: match.operation.again(steps))


def _query_side(match: _Match, along: frozenset[int]) -> int | None:
    """Which side of the first product has the queries: the one whose rows are not summed over."""
    dims = match.dims(match.scores.product.handle.results[0])
    batch = len(match.scores.product.batch[0])
    left = len(match.scores.product.free(0))
    free = dims[batch : batch + left], dims[batch + left :]
    for side in (0, 1):
        if {axis for dim in free[1 - side] for axis in dim} == along and along:
            return side
    return None


def _arranged(
    b: Builder, match: _Match, along: frozenset[int], query_side: int
) -> tuple[list[Value], list[list[int]]] | None:
    """Query, key and value as (batch, heads, length, size), and the axes of all five."""
    first, last, axes = match.scores.product, match.last, match.axes
    dims = match.dims(first.handle.results[0])
    batch = dims[: len(first.batch[0])]
    left = len(first.free(0))
    free = dims[len(batch) : len(batch) + left], dims[len(batch) + left :]
    sizes = [axes.new(shape_of(first.handle.operands[0])[dim]) for dim in first.summed[0]]
    stated = []
    for side in (query_side, 1 - query_side):
        places = dict(zip(first.batch[side], batch, strict=True))
        places |= dict(zip(first.summed[side], sizes, strict=True))
        places |= dict(zip(first.free(side), free[side], strict=True))
        stated.append((first.handle.operands[side], places))
    weights, other = match.side, 1 - match.side
    of = match.dims(last.handle.operands[weights])
    places = {at: of[dim] for at, dim in zip(last.batch[other], last.batch[weights], strict=True)}
    summed = list(zip(last.summed[other], last.summed[weights], strict=True))
    places |= {at: of[dim] for at, dim in summed}
    places |= dict(zip(last.free(other), match.columns, strict=True))
    stated.append((last.handle.operands[other], places))
    if {axis for _, dim in summed for axis in of[dim]} != along:
        return None
    flat = [axis for dim in batch for axis in dim]
    if {axis for dim in last.batch[weights] for axis in of[dim]} != set(flat):
        return None
    rows, keys = (
        [axis for dim in free[side] for axis in dim] for side in (query_side, 1 - query_side)
    )
    size, columns = ([axis for dim in group for axis in dim] for group in (sizes, match.columns))
    heads = [flat[:-1], flat[-1:]] if len(flat) > 1 else [flat, []]
    groups = [*heads, rows, keys, columns]
    lengths = [[*heads, rows, size], [*heads, keys, size], [*heads, keys, columns]]
    sides = [
        arrange(b, axes, match.operation.value(handle), tuple(at[dim] for dim in sorted(at)), its)
        for (handle, at), its in zip(stated, lengths, strict=True)
    ]
    return sides, groups


def _back(b: Builder, match: _Match, output: Value, groups: Sequence[Sequence[int]]) -> Value:
    """The output in the shape and type of the last operation."""
    outer, inner, rows, _, columns = groups
    own = [*outer, *inner, *rows, *columns]
    axes = match.axes
    split = b.reshape(output, [axes.size((axis,)) for axis in own])
    dims = match.dims(match.operation.handle.results[0])
    found = arrange(b, axes, split, tuple((axis,) for axis in own), dims)
    (result,) = match.operation.results
    return convert(b, found, result.dtype)


def _all_within(b: Builder, sums: Value, least: float) -> Value:
    """Whether all logarithms of sums are above a bound, and none is the 0 of a row without keys."""
    bound, zero = (b.full(sums.shape, item, sums.dtype) for item in (least, 0.0))
    seen = b.and_(b.compare(sums, bound, "GT"), b.compare(sums, zero, "NE"))
    return b.reduce_and(seen, range(sums.rank))
