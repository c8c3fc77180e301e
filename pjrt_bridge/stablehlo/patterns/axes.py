"""Axes: which dimensions of several values are the same, through transpositions and reshapes.

A dimension is a sequence of axes, outermost first, none where it has one element; an axis is a
number. Reshapes that join dimensions join their axes, and those that part one part an axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.known_numbers import maker
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

DimsOfSides = tuple[tuple[int, ...], ...]
"""The axes of each dimension."""

_DEPTH = 60
"""Operations that are followed from a value to one whose axes are known."""


class Axes:
    """The axes of values."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._known: dict[Any, DimsOfSides | None] = {}

    def begin(self, value: Any) -> DimsOfSides:
        """Give each dimension of a value an axis of its own."""
        return self.state(value, [self.new(size) for size in shape_of(value)])

    def state(self, value: Any, dims: Iterable[tuple[int, ...]]) -> DimsOfSides:
        """Say what the axes of a value are."""
        found = tuple(dims)
        self._known[value] = found
        return found

    def size(self, axes: Iterable[int]) -> int:
        """Elements along axes."""
        return math.prod(self._sizes[axis] for axis in axes)

    def of(self, value: Any, depth: int = _DEPTH) -> DimsOfSides | None:
        """The axes of a value that follows from one that has some.

        Of an operation that goes element by element they are those of its first operand that has
        some: whether the others fit is for the caller to see.
        """
        if value not in self._known and depth:
            self._known[value] = None
            found = self._follow(value, depth - 1)
            self._known[value] = found
        return self._known.get(value)

    def _follow(self, value: Any, depth: int) -> DimsOfSides | None:
        made = maker(value)
        if made is None or len(made.results) != 1:
            return None
        shape, operands = shape_of(value), list(made.operands)
        name = made.name.removeprefix("stablehlo.")
        if name == "dot_general":
            return None
        if name in _MOVED:
            if self.of(operands[0], depth) is None:
                return None
            return _MOVED[name](self, made, operands[0], shape)
        for operand in operands:
            if shape_of(operand) == shape and self.of(operand, depth) is not None:
                return self._known[operand]
        return None

    def _transpose(self, made: Any, source: Any, shape: tuple[int, ...]) -> DimsOfSides:
        dims = self._dims(source)
        return tuple(dims[dim] for dim in integers(made, "permutation"))

    def _broadcast_in_dim(self, made: Any, source: Any, shape: tuple[int, ...]) -> DimsOfSides:
        places = dict(zip(integers(made, "broadcast_dimensions"), self._dims(source), strict=True))
        return tuple(places.get(dim) or self.new(size) for dim, size in enumerate(shape))

    def _reduce(self, made: Any, source: Any, shape: tuple[int, ...]) -> DimsOfSides:
        dropped = integers(made, "dimensions")
        return tuple(axes for dim, axes in enumerate(self._dims(source)) if dim not in dropped)

    def _reshape(self, made: Any, source: Any, shape: tuple[int, ...]) -> DimsOfSides | None:
        rest = [axis for axes in self._dims(source) for axis in axes]
        found = []
        for size in shape:
            taken: list[int] = []
            while (missing := size // self.size(taken)) > 1:
                if not rest or size % self.size(taken):
                    return None
                first = rest.pop(0)
                if self._sizes[first] > missing:
                    if self._sizes[first] % missing:
                        return None
                    first, second = self._part(first, missing)
                    rest.insert(0, second)
                taken.append(first)
            if self.size(taken) != size:
                return None
            found.append(tuple(taken))
        return tuple(found)

    def _dims(self, value: Any) -> DimsOfSides:
        found = self._known[value]
        assert found is not None
        return found

    def new(self, size: int) -> tuple[int, ...]:
        """A dimension that no other value has."""
        if size == 1:
            return ()
        self._sizes.append(size)
        return (len(self._sizes) - 1,)

    def _part(self, axis: int, outer: int) -> tuple[int, int]:
        """Part an axis in two, in all values."""
        (first,) = self.new(outer)
        (second,) = self.new(self._sizes[axis] // outer)
        for value, dims in self._known.items():
            if dims is not None:
                self._known[value] = tuple(_parted(axes, axis, (first, second)) for axes in dims)
        return first, second


_MOVED: Mapping[str, Callable[[Axes, Any, Any, tuple[int, ...]], DimsOfSides | None]] = {
    "broadcast_in_dim": Axes._broadcast_in_dim,
    "reduce": Axes._reduce,
    "reshape": Axes._reshape,
    "transpose": Axes._transpose,
}


def _parted(axes: tuple[int, ...], axis: int, parts: tuple[int, int]) -> tuple[int, ...]:
    return tuple(new for old in axes for new in (parts if old == axis else (old,)))


def arrange(
    b: Builder, axes: Axes, x: Value, dims: DimsOfSides, groups: Sequence[Sequence[int]]
) -> Value:
    """A value with a dimension for each group of axes; of one element where it has none of them.

    Args:
        b: to emit into.
        axes: their sizes.
        x: the value.
        dims: its axes, all of which are in the groups.
        groups: of axes; where a value has some of a group alone, it is repeated along the others.
    """
    own = [axis for dim in dims for axis in dim]
    wanted = [list(group) if set(group) & set(own) else [] for group in groups]
    order = [axis for group in wanted for axis in group if axis in own]
    single = tuple(axes.size((axis,)) for axis in own)
    if x.shape != single:
        x = b.reshape(x, single)
    if order != own:
        x = b.transpose(x, [own.index(axis) for axis in order])
    whole = [axis for group in wanted for axis in group]
    if whole != order:
        places = [whole.index(axis) for axis in order]
        x = b.broadcast_in_dim(x, [axes.size((axis,)) for axis in whole], places)
    shape = tuple(axes.size(group) for group in wanted)
    return x if x.shape == shape else b.reshape(x, shape)
