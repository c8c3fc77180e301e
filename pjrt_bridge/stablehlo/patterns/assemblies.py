"""Arrays whose elements are copied from arrays in memory, by any sequence of operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import memory_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Assembly, AssemblyBox
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import is_filled, maker, name_of, whole_number
from pjrt_bridge.stablehlo.patterns import boxes, donations
from pjrt_bridge.stablehlo.patterns.following import FROM_MEMORY, IN_MEMORY
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

_DEPTH = 32
"""Operations that are followed, one behind the other."""

_STEPS = 4
"""Arrays that are written one behind the other, where a shape has no boxes of another one's."""


def assembled(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """An operation that moves elements, by `Kernels.assemble`, if its result is read from memory.

    What it is copied from has to be in memory, but for an eighth of as many elements as it has;
    these are written there first, and not as the whole is computed. What moves nothing is a
    reshape.
    """
    root = operation.handle.results[0]
    origins = _origins(root)
    if origins is None:
        return None
    made = _unmoved(b, operation, root, origins)
    if made is None and _is_kept(root):
        made = _written(kernels, b, operation, root, origins, _STEPS)
    return None if made is None else [made]


class _Origins(NamedTuple):
    """What a value is copied from: its boxes, and the arrays that these are read of."""

    boxes: Sequence[AssemblyBox]
    sources: Sequence[Any]


def _origins(value: Any) -> _Origins | None:
    """What a value is copied from; None where there are too many boxes, or none."""
    followed = _CopiedParts()
    try:
        return _Origins(followed.boxes(value, _DEPTH), followed.sources)
    except (_NoBoxes, boxes.TooManyBoxes):
        return None


def _unmoved(b: Builder, operation: Operation, value: Any, origins: _Origins) -> Value | None:
    """The array whose elements a value has, if they lie one behind the other as there; else None.

    A compiler may not see that of transpositions with a reshape between them.
    """
    if len(origins.boxes) != 1:
        return None
    (box,) = origins.boxes
    source, shape = origins.sources[box.source], shape_of(value)
    is_all = math.prod(shape_of(source)) == math.prod(shape)
    if source == value or not is_all or boxes.contiguous(box) != shape:
        return None
    return b.reshape(operation.value(source), shape)


def _is_kept(root: Any) -> bool:
    """Whether a value is read from memory, and otherwise only to move its elements once more."""
    readers = list(_readers(root))
    is_product = any(reader.name == "stablehlo.dot_general" for reader in readers)
    if is_product and name_of(root) == "stablehlo.transpose":
        # A compiler makes it a part of the product.
        return False
    return any(reader.name in FROM_MEMORY for reader in readers) and all(
        reader.name in FROM_MEMORY or reader.name in ROOTS for reader in readers
    )


def _readers(value: Any) -> Iterator[Any]:
    """The operations that read a value, or a reshape of it."""
    for use in value.uses:
        user = getattr(use.owner, "operation", use.owner)
        if user.name == "stablehlo.reshape":
            yield from _readers(user.results[0])
        elif user.name != "func.return" or not donations.may_take_memory(user, use.operand_number):
            yield user


def _written(
    kernels: Kernels, b: Builder, operation: Operation, value: Any, origins: _Origins, steps: int
) -> Value | None:
    """A value as one kernel writes it; None where there is none.

    Args:
        kernels: of the target.
        b: the builder to emit into.
        operation: the place where it is written.
        value: the value.
        origins: what it is copied from.
        steps: arrays that may be written for it.
    """
    used = sorted({box.source for box in origins.boxes})
    found = [replace(box, source=used.index(box.source)) for box in origins.boxes]
    shape, sources = shape_of(value), [origins.sources[at] for at in used]
    is_repeated = all(not any(box.steps) for box in found)
    is_copy = [boxes.contiguous(box) for box in found] == [shape]
    is_large = len(sources) > Assembly.MOST_SOURCES or len(found) > Assembly.MOST_BOXES
    if is_repeated or is_copy or is_large:
        return None
    operands, computed = list[Value](), 0
    for source in sources:
        operand, is_known = _source(kernels, b, operation, source, steps)
        if memory_order(operand) != tuple(range(operand.rank)):
            return None
        operands.append(operand)
        computed += 0 if is_known else math.prod(shape_of(source))
    if computed > math.prod(shape) / 8:
        return None
    return kernels.assemble(b, Assembly(tuple(shape), tuple(found)), operands)


def _source(
    kernels: Kernels, b: Builder, operation: Operation, value: Any, steps: int
) -> tuple[Value, bool]:
    """What an array is copied from, where an operation stands, and whether it is in memory."""
    origins = _origins(value) if name_of(value) in ROOTS and steps else None
    if origins is not None:
        made = _written(kernels, b, operation, value, origins, steps - 1)
        if made is not None:
            return made, True
    found = operation.value(value)
    if is_filled(value) and found.rank:
        return b.slice(found, [0] * found.rank, [1] * found.rank), True
    made = maker(value)
    while made is not None and made.name == "stablehlo.reshape":
        made = maker(made.operands[0])
    return found, made is None or made.name in IN_MEMORY


class _NoBoxes(Exception):
    """The elements of a value are no copies of others, or too many operations lead to them."""


class _CopiedParts:
    """The boxes of values.

    Attributes:
        sources: the arrays that they are read of.
    """

    def __init__(self) -> None:
        self.sources: list[Any] = []
        self._known: dict[Any, list[AssemblyBox]] = {}

    def boxes(self, value: Any, depth: int) -> list[AssemblyBox]:
        """The boxes of a value; so many operations are followed."""
        if value not in self._known:
            if any(size < 1 for size in shape_of(value)) or not depth:
                raise _NoBoxes
            follow = _FOLLOWED.get(name_of(value))
            found = None if follow is None else follow(self, maker(value), depth - 1)
            found = [self.source(value)] if found is None else found
            if len(found) > boxes.MOST:
                raise boxes.TooManyBoxes
            self._known[value] = found
        return self._known[value]

    def source(self, value: Any, shape: Sequence[int] | None = None) -> AssemblyBox:
        """A value that is read from memory; with a shape: its only element everywhere."""
        if value not in self.sources:
            self.sources.append(value)
        at = self.sources.index(value)
        if is_filled(value) or shape is not None:
            return boxes.filled(at, shape_of(value) if shape is None else shape)
        return boxes.whole(at, shape_of(value))

    def sliced(self, made: Any, depth: int) -> list[AssemblyBox]:
        starts, strides = integers(made, "start_indices"), integers(made, "strides")
        sizes = shape_of(made.results[0])
        cut = (
            boxes.sliced(box, starts, sizes, strides) for box in self.boxes(made.operands[0], depth)
        )
        return [box for box in cut if box is not None]

    def reversed(self, made: Any, depth: int) -> list[AssemblyBox]:
        (array,) = made.operands
        dims = integers(made, "dimensions")
        return [
            boxes.reversed_along(box, shape_of(array), dims) for box in self.boxes(array, depth)
        ]

    def transposed(self, made: Any, depth: int) -> list[AssemblyBox]:
        permutation = integers(made, "permutation")
        return [boxes.transposed(box, permutation) for box in self.boxes(made.operands[0], depth)]

    def repeated(self, made: Any, depth: int) -> list[AssemblyBox]:
        (array,) = made.operands
        shape, result = shape_of(array), shape_of(made.results[0])
        dims = integers(made, "broadcast_dimensions")
        return [boxes.repeated(box, shape, result, dims) for box in self.boxes(array, depth)]

    def joined(self, made: Any, depth: int) -> list[AssemblyBox]:
        dim = int(made.attributes["dimension"])
        found, at = list[AssemblyBox](), [0] * len(shape_of(made.results[0]))
        for part in made.operands:
            if shape_of(part)[dim]:
                found += [boxes.moved(box, at) for box in self.boxes(part, depth)]
            at[dim] += shape_of(part)[dim]
        return found

    def padded(self, made: Any, depth: int) -> list[AssemblyBox]:
        array, value = made.operands
        low, high = integers(made, "edge_padding_low"), integers(made, "edge_padding_high")
        if any(integers(made, "interior_padding")):
            raise _NoBoxes
        shape, result = shape_of(array), shape_of(made.results[0])
        # Negative numbers cut.
        starts = [max(0, -size) for size in low]
        kept = [
            size - start - max(0, -end)
            for size, start, end in zip(shape, starts, high, strict=True)
        ]
        begin = [max(0, size) for size in low]
        if any(size < 1 for size in kept):
            return [self.source(value, result)]
        inside = (
            boxes.sliced(box, starts, kept, [1] * len(kept)) for box in self.boxes(array, depth)
        )
        found = [boxes.moved(box, begin) for box in inside if box is not None]
        if kept != list(result):
            found += boxes.without(self.source(value, result), begin, kept)
        return found

    def overwritten(self, made: Any, depth: int) -> list[AssemblyBox] | None:
        array, part, *starts = made.operands
        if name_of(array) not in _FOLLOWED and not is_filled(array):
            # A compiler writes the part into the array's memory.
            return None
        shape, sizes = shape_of(array), shape_of(part)
        known = [whole_number(start) for start in starts]
        begin = [
            # A part that would reach beyond the end is moved (StableHLO specification).
            min(max(start, 0), size - own)
            for start, size, own in zip(known, shape, sizes, strict=True)
            if start is not None
        ]
        if len(begin) < len(shape):
            raise _NoBoxes
        outside = (boxes.without(box, begin, sizes) for box in self.boxes(array, depth))
        found = [box for parts in outside for box in parts]
        return [*found, *(boxes.moved(box, begin) for box in self.boxes(part, depth))]

    def reshaped(self, made: Any, depth: int) -> list[AssemblyBox] | None:
        (array,) = made.operands
        if name_of(array) not in _FOLLOWED:
            return None
        found = self.boxes(array, depth)
        shape, result = shape_of(array), shape_of(made.results[0])
        try:
            other = boxes.reshaped(found, shape, result)
        except boxes.TooManyBoxes:
            other = None
        if other is None:
            # The array is written, and read in its other shape.
            return [boxes.whole(self.source(array).source, result)]
        return other


_Follow = Callable[[_CopiedParts, Any, int], "list[AssemblyBox] | None"]
_FOLLOWED: Mapping[str, _Follow] = {
    "stablehlo.broadcast_in_dim": _CopiedParts.repeated,
    "stablehlo.concatenate": _CopiedParts.joined,
    "stablehlo.dynamic_update_slice": _CopiedParts.overwritten,
    "stablehlo.pad": _CopiedParts.padded,
    "stablehlo.reshape": _CopiedParts.reshaped,
    "stablehlo.reverse": _CopiedParts.reversed,
    "stablehlo.slice": _CopiedParts.sliced,
    "stablehlo.transpose": _CopiedParts.transposed,
}
"""What moves elements; None of it: its result is read from memory."""

ROOTS = tuple(name for name in _FOLLOWED if name != "stablehlo.reshape")
"""The operations that are looked at."""
