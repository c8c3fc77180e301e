"""Masks of attention: what is added to scores, and what takes their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernels import convert
from pjrt_bridge.stablehlo.known_numbers import maker, number
from pjrt_bridge.stablehlo.patterns.axes import Axes, arrange
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

_LARGE = -1_000.0
"""A number from which on down it hides a score: no scores of a model are so low."""

_DEPTH = 12


@dataclass(frozen=True)
class Mask:
    """A step of scores.

    Attributes:
        kind: `add` of a value to scores; `keep` where a value is true, or `drop` there.
        value: the value.
        result: of the step.
        hidden: what takes the place of scores; 0 where something is added.
    """

    kind: Literal["add", "keep", "drop"]
    value: Any
    result: Any
    hidden: float = 0.0

    @property
    def is_finite(self) -> bool:
        """Whether hidden scores are a number, so that those of a row can be compared."""
        return self.kind != "add" and math.isfinite(self.hidden)


def hides(hidden: float) -> bool:
    """Whether scores of this value count as hidden."""
    return hidden <= _LARGE


def combined(
    b: Builder,
    axes: Axes,
    masks: Sequence[Mask],
    value: Callable[[Any], Value],
    groups: Sequence[Sequence[int]],
) -> Value | None:
    """One mask of the shape that groups of axes have, as `Kernels.attention` takes it.

    Args:
        b: to emit into.
        axes: of the steps' results.
        masks: the steps, first to last.
        value: what a handle is in the builder.
        groups: axes of batches, heads, queries and keys.
    """
    found = [_arranged(b, axes, mask, value, groups) for mask in masks]
    if len(found) < 2:
        return found[0] if found else None
    total = None
    for item in found:
        added = _added(b, item)
        total = added if total is None else _sum(b, total, added)
    return total


def _arranged(
    b: Builder,
    axes: Axes,
    mask: Mask,
    value: Callable[[Any], Value],
    groups: Sequence[Sequence[int]],
) -> Value:
    x, dims = value(mask.value), axes.of(mask.result)
    assert dims is not None
    own = varying(mask.value)
    kept = [size if dim in own else 1 for dim, size in enumerate(x.shape)]
    if tuple(kept) != x.shape:
        x = b.slice(x, [0] * x.rank, kept)
    small = tuple(its if dim in own else () for dim, its in enumerate(dims))
    x = arrange(b, axes, x, small, groups)
    return b.not_(x) if mask.kind == "drop" else x


def _added(b: Builder, mask: Value) -> Value:
    float32 = dtypes.of("float32")
    if not mask.dtype.is_bool:
        return convert(b, mask, float32)
    zero, never = (b.full(mask.shape, item, float32) for item in (0.0, -math.inf))
    return b.select(mask, zero, never)


def _sum(b: Builder, x: Value, y: Value) -> Value:
    shape = tuple(max(pair) for pair in zip(x.shape, y.shape, strict=True))
    every = range(len(shape))
    sides = [
        side if side.shape == shape else b.broadcast_in_dim(side, shape, every) for side in (x, y)
    ]
    return b.add(*sides)


def varying(value: Any, depth: int = _DEPTH) -> frozenset[int]:
    """The dimensions along which elements of a value may differ."""
    shape = shape_of(value)
    every = frozenset(dim for dim, size in enumerate(shape) if size != 1)
    made = maker(value)
    if made is None or not depth or not every:
        return every
    name, sources = made.name.removeprefix("stablehlo."), list(made.operands)
    if name == "iota":
        return every & {int(made.attributes["iota_dimension"])}
    if name == "constant":
        return frozenset() if made.attributes["value"].is_splat else every
    if number(value) is not None:
        return frozenset()
    if name == "broadcast_in_dim":
        own, places = varying(sources[0], depth - 1), integers(made, "broadcast_dimensions")
        return every & {places[dim] for dim in own}
    if name == "transpose":
        own, order = varying(sources[0], depth - 1), integers(made, "permutation")
        return every & {at for at, dim in enumerate(order) if dim in own}
    if name == "reshape":
        return every & _reshaped(sources[0], shape, varying(sources[0], depth - 1), every)
    if name in _ELEMENTWISE:
        # What is one number for all, such as the condition of a select, varies along nothing.
        whole = [source for source in sources if shape_of(source) == shape]
        return frozenset(dim for source in whole for dim in varying(source, depth - 1))
    return every


def _reshaped(
    source: Any, shape: tuple[int, ...], own: frozenset[int], every: frozenset[int]
) -> frozenset[int]:
    """Where only dimensions of one element are new or gone, the others are as they were."""
    before = [dim for dim, size in enumerate(shape_of(source)) if size != 1]
    after = [dim for dim, size in enumerate(shape) if size != 1]
    if [shape_of(source)[dim] for dim in before] != [shape[dim] for dim in after]:
        return every
    return frozenset(new for old, new in zip(before, after, strict=True) if old in own)


_ELEMENTWISE = frozenset(
    (
        *("abs", "add", "and", "compare", "convert", "divide", "maximum", "minimum", "multiply"),
        *("negate", "not", "or", "select", "subtract", "xor"),
    )
)
