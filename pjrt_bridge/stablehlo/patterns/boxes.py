"""Boxes of arrays, followed through operations that move elements.

Each function has the boxes of an operation's result from those of its operand. See
`kernel_attributes.AssemblyBox`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pjrt_bridge.stablehlo.builder.orders import row_major_steps
from pjrt_bridge.stablehlo.kernel_attributes import AssemblyBox


class TooManyBoxes(Exception):
    """An array would consist of more boxes than it may have."""


MOST = 1 << 10
"""Boxes of a value on the way, at most."""


def whole(source: int, shape: Sequence[int]) -> AssemblyBox:
    """All of a row-major array."""
    return AssemblyBox(source, (0,) * len(shape), tuple(shape), 0, row_major_steps(shape))


def filled(source: int, shape: Sequence[int]) -> AssemblyBox:
    """The first element of an array everywhere."""
    zeros = (0,) * len(shape)
    return AssemblyBox(source, zeros, tuple(shape), 0, zeros)


def moved(box: AssemblyBox, by: Sequence[int]) -> AssemblyBox:
    """A box at another place."""
    return replace(box, begin=tuple(a + b for a, b in zip(box.begin, by, strict=True)))


def cut(box: AssemblyBox, dim: int, begin: int, end: int) -> AssemblyBox:
    """The part of a box between two indices of a dimension."""
    skipped = begin - box.begin[dim]
    return replace(
        box,
        begin=_with(box.begin, dim, begin),
        sizes=_with(box.sizes, dim, end - begin),
        first=box.first + skipped * box.steps[dim],
    )


def without(box: AssemblyBox, begin: Sequence[int], sizes: Sequence[int]) -> Iterator[AssemblyBox]:
    """The parts of a box that are outside a region."""
    for dim, (start, size) in enumerate(zip(begin, sizes, strict=True)):
        first, last = box.begin[dim], box.begin[dim] + box.sizes[dim]
        low, high = max(first, min(start, last)), min(last, max(start + size, first))
        if low >= high:
            yield box
            return
        if first < low:
            yield cut(box, dim, first, low)
        if high < last:
            yield cut(box, dim, high, last)
        box = cut(box, dim, low, high)


def sliced(
    box: AssemblyBox, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> AssemblyBox | None:
    """What of a box is in a slice; None: nothing.

    Args:
        box: of the array.
        starts: the slice's first index of each dimension.
        sizes: of the slice.
        strides: from one index to the next.
    """
    for dim, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
        offset = box.begin[dim] - start
        first = max(0, -(-offset // stride))
        last = min(size, (offset + box.sizes[dim] - 1) // stride + 1)
        if first >= last:
            return None
        box = replace(
            box,
            begin=_with(box.begin, dim, first),
            sizes=_with(box.sizes, dim, last - first),
            first=box.first + (first * stride - offset) * box.steps[dim],
            steps=_with(box.steps, dim, stride * box.steps[dim]),
        )
    return box


def reversed_along(box: AssemblyBox, shape: Sequence[int], dims: Sequence[int]) -> AssemblyBox:
    """A box of an array that is reversed along dimensions."""
    for dim in dims:
        box = replace(
            box,
            begin=_with(box.begin, dim, shape[dim] - box.begin[dim] - box.sizes[dim]),
            first=box.first + (box.sizes[dim] - 1) * box.steps[dim],
            steps=_with(box.steps, dim, -box.steps[dim]),
        )
    return box


def transposed(box: AssemblyBox, permutation: Sequence[int]) -> AssemblyBox:
    """A box whose dimension i is dimension permutation[i] of the array."""
    return replace(
        box,
        begin=tuple(box.begin[dim] for dim in permutation),
        sizes=tuple(box.sizes[dim] for dim in permutation),
        steps=tuple(box.steps[dim] for dim in permutation),
    )


def repeated(
    box: AssemblyBox, shape: Sequence[int], result: Sequence[int], dims: Sequence[int]
) -> AssemblyBox:
    """A box of an array that is repeated along dimensions.

    Args:
        box: of the array.
        shape: of the array.
        result: shape of the result.
        dims: of the result, for each dimension of the array; one that has one element is repeated.
    """
    begin, sizes, steps = [0] * len(result), list(result), [0] * len(result)
    for own, dim in enumerate(dims):
        if shape[own] == result[dim]:
            begin[dim], sizes[dim], steps[dim] = box.begin[own], box.sizes[own], box.steps[own]
    return replace(box, begin=tuple(begin), sizes=tuple(sizes), steps=tuple(steps))


def contiguous(box: AssemblyBox) -> tuple[int, ...] | None:
    """The shape of an array from which all elements are read, one behind the other; else None."""
    # Nothing is stepped along a dimension of one element.
    steps = (
        step if size > 1 else own
        for step, size, own in zip(box.steps, box.sizes, row_major_steps(box.sizes), strict=True)
    )
    is_all = replace(box, steps=tuple(steps)) == whole(box.source, box.sizes)
    return box.sizes if is_all else None


def reshaped(
    boxes: Sequence[AssemblyBox], shape: Sequence[int], result: Sequence[int]
) -> list[AssemblyBox] | None:
    """The boxes of an array of another shape; None where the dimensions have no common parts.

    Raises:
        TooManyBoxes: see there.
    """
    if list(boxes) == [whole(boxes[0].source, shape)]:
        return [whole(boxes[0].source, result)]
    parts = _common_parts(shape, result)
    if parts is None:
        return None
    found: list[AssemblyBox] = []
    for box in boxes:
        for divided in _divided(box, shape, parts):
            found += _merged(divided, parts, result)
            if len(found) > MOST:
                raise TooManyBoxes
    return found


def _with(numbers: Sequence[int], at: int, number: int) -> tuple[int, ...]:
    return (*numbers[:at], number, *numbers[at + 1 :])


def _common_parts(shape: Sequence[int], result: Sequence[int]) -> list[int] | None:
    """The sizes that the dimensions of both shapes are products of; None where there are none."""
    ends = {math.prod(sizes[dim:]) for sizes in (shape, result) for dim in range(len(sizes))}
    ordered = sorted({1, *ends}, reverse=True)
    parts = []
    for outer, inner in itertools.pairwise(ordered):
        if outer % inner:
            return None
        parts.append(outer // inner)
    return parts


def _parts_of(sizes: Sequence[int], parts: Sequence[int]) -> list[list[int]]:
    """For each dimension the parts, by index, that it is the product of; those of size 1: none."""
    found, at = [], 0
    for size in sizes:
        own: list[int] = []
        while size > 1:
            own.append(at)
            size //= parts[at]
            at += 1
        found.append(own)
    return found


def _divided(box: AssemblyBox, shape: Sequence[int], parts: Sequence[int]) -> list[AssemblyBox]:
    """A box with its dimensions divided into parts, in several where it begins within a part."""
    found = [AssemblyBox(box.source, (), (), box.first, ())]
    for dim, own in enumerate(_parts_of(shape, parts)):
        ways = _ranges(box.begin[dim], box.begin[dim] + box.sizes[dim], [parts[at] for at in own])
        found = [
            _appended(done, way, box, dim, [parts[at] for at in own])
            for done in found
            for way in ways
        ]
        if len(found) > MOST:
            raise TooManyBoxes
    return found


def _appended(
    done: AssemblyBox,
    way: Sequence[tuple[int, int]],
    box: AssemblyBox,
    dim: int,
    parts: Sequence[int],
) -> AssemblyBox:
    """A box with the parts of one more dimension.

    Args:
        done: with those before it.
        way: for each part where it begins and ends.
        box: the box that is divided.
        dim: the dimension of that.
        parts: its sizes.
    """
    step = box.steps[dim]
    steps = [step * math.prod(parts[at + 1 :]) for at in range(len(parts))]
    first = sum(begin * own for (begin, _), own in zip(way, steps, strict=True))
    return AssemblyBox(
        done.source,
        (*done.begin, *(begin for begin, _ in way)),
        (*done.sizes, *(end - begin for begin, end in way)),
        done.first + first - (box.begin[dim] * step),
        (*done.steps, *steps),
    )


def _ranges(begin: int, end: int, parts: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The ranges of parts that together are a range of their product."""
    if len(parts) < 2:
        return [[(begin, end)] * len(parts)]
    inner = math.prod(parts[1:])
    first, last = -(-begin // inner), end // inner
    if first > last:
        # It begins and ends within one.
        return [
            [(last, last + 1), *way]
            for way in _ranges(begin - last * inner, end - last * inner, parts[1:])
        ]
    found = []
    if begin < first * inner:
        before = _ranges(begin - (first - 1) * inner, inner, parts[1:])
        found += [[(first - 1, first), *way] for way in before]
    if first < last:
        found.append([(first, last), *((0, size) for size in parts[1:])])
    if last * inner < end:
        found += [[(last, last + 1), *way] for way in _ranges(0, end - last * inner, parts[1:])]
    return found


def _merged(box: AssemblyBox, parts: Sequence[int], result: Sequence[int]) -> list[AssemblyBox]:
    """A box with its parts merged to dimensions, in several where what they read does not lie so.

    Raises:
        TooManyBoxes: see there.
    """
    found = [AssemblyBox(box.source, (), (), box.first, ())]
    for own in _parts_of(result, parts):
        ways = _runs([(parts[at], box.begin[at], box.sizes[at], box.steps[at]) for at in own])
        if len(ways) * len(found) > MOST:
            raise TooManyBoxes
        found = [
            AssemblyBox(
                done.source,
                (*done.begin, begin),
                (*done.sizes, size),
                done.first + first,
                (*done.steps, step),
            )
            for done in found
            for begin, size, first, step in ways
        ]
    return found


def _runs(parts: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Parts of a dimension as ranges of it.

    Args:
        parts: of each its size, and where a box begins in it, how many elements it has along it,
            and how far these are from each other in the source.

    Returns:
        Of each range where it begins, how many elements it has, what is added to the first element
        of the source, and how far they are from each other.

    Raises:
        TooManyBoxes: see there.
    """
    if not parts:
        return [(0, 1, 0, 0)]
    (_, begin, size, step), *behind = parts
    if not behind:
        return [(begin, size, 0, step)]
    inner = _runs(behind)
    whole_size = math.prod(part[0] for part in behind)
    if len(inner) == 1:
        ((at, count, first, own),) = inner
        if size == 1:
            return [(begin * whole_size + at, count, first, own)]
        if count == whole_size and (step == own * count or count == 1):
            return [(begin * whole_size, size * count, first, step if count == 1 else own)]
        if count == 1 and whole_size == 1:
            return [(begin, size, first, step)]
    if size * len(inner) > MOST:
        raise TooManyBoxes
    return [
        ((begin + index) * whole_size + at, count, first + index * step, own)
        for index in range(size)
        for at, count, first, own in inner
    ]
