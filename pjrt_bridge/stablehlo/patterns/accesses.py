"""In which order the elements of a value are read, followed through operations that move elements.

An `Access` reads one element after the other of an array that is row-major. Where the array is
another one's transposition, slice or repetition, the same elements are read of that one by another
access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder.orders import row_major_steps


class NoAccess(Exception):
    """The elements have no such order in the other array."""


@dataclass(frozen=True)
class Access:
    """Elements of an array in memory, one after the other.

    Attributes:
        first: the element that is read first, in the array's row-major order.
        dims: the dimensions of the elements that are read, outermost first: how many there are, and
            how far one is from the one before it in the array.
    """

    first: int
    dims: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, shape: Sequence[int], order: Sequence[int] | None = None) -> Access:
        """All elements of an array.

        Args:
            shape: of the array.
            order: its dimensions, from the outermost to the innermost as they are read; None: as
                they are.
        """
        steps = row_major_steps(shape)
        return cls(0, tuple((shape[dim], steps[dim]) for dim in order or range(len(shape))))

    @property
    def joined(self) -> Access:
        """The same with as few dimensions as possible, but at least one."""
        dims: list[tuple[int, int]] = []
        for size, step in self.dims:
            if size == 1:
                continue
            if dims and dims[-1][1] == size * step:
                size *= dims.pop()[0]
            dims.append((size, step))
        return Access(self.first, tuple(dims) or ((1, 1),))

    def through(self, shape: Sequence[int], starts: Sequence[int], steps: Sequence[int]) -> Access:
        """The same elements, where element (i, j, ...) of an array is one of another.

        Args:
            shape: of the array.
            starts: for each dimension of the array, what is added for it to find the element of the
                other one.
            steps: for each, how far the other array's elements are from each other; 0 where they
                are repeated.

        Raises:
            NoAccess: a dimension of the access goes along several of the array, or leaves it.
        """
        own = row_major_steps(shape)
        at = [self.first // step % max(size, 1) for size, step in zip(shape, own, strict=True)]
        first = sum(
            start + index * step for start, index, step in zip(starts, at, steps, strict=True)
        )
        room = list(at)
        dims: list[tuple[int, int]] = []
        for size, step in self.joined.dims:
            dims += self._along(size, step, shape, own, steps, room)
        return Access(first, tuple(dims))

    @staticmethod
    def _along(
        size: int,
        step: int,
        shape: Sequence[int],
        own: Sequence[int],
        steps: Sequence[int],
        room: list[int],
    ) -> list[tuple[int, int]]:
        """A dimension of the access in the other array, outermost first.

        Args:
            size: of the dimension.
            step: how far its elements are from each other in the array.
            shape: of the array.
            own: how far the array's elements are from each other.
            steps: see `through`.
            room: the last index that is used in each dimension of the array.
        """
        if not step:
            return [(size, 0)]
        found: list[tuple[int, int]] = []
        for dim in reversed(range(len(shape))):
            if size == 1:
                break
            if shape[dim] == 1 or step % own[dim] or step >= own[dim] * shape[dim]:
                continue
            jump = step // own[dim]
            inside = shape[dim] // jump
            part = min(size, inside)
            if size > part and (shape[dim] % jump or size % part):
                raise NoAccess
            room[dim] += (part - 1) * jump
            if room[dim] >= shape[dim]:
                raise NoAccess
            found.append((part, jump * steps[dim]))
            size //= part
            step *= part
        if size > 1:
            raise NoAccess
        return found[::-1]

    def of_part(self, shape: Sequence[int], dim: int, parts: int) -> Access:
        """What is read of one of several equal parts that an array is joined of along a dimension.

        Where an element is in another part, that at the same place of this part is read.

        Args:
            shape: of the array.
            dim: along which its parts lie side by side.
            parts: how many there are.

        Raises:
            NoAccess: see `through`.
        """
        size = shape[dim] // parts
        parted = (*shape[:dim], parts, size, *shape[dim + 1 :])
        part = (*shape[:dim], size, *shape[dim + 1 :])
        steps = list(row_major_steps(part))
        steps.insert(dim, 0)
        return self.through(parted, [0] * len(parted), steps)


def transposed(access: Access, shape: Sequence[int], permutation: Sequence[int]) -> Access:
    """What is read of an array, where its transposition is read.

    Args:
        access: of the transposition.
        shape: of the array.
        permutation: dimension i of the transposition is dimension permutation[i] of the array.
    """
    steps = row_major_steps(shape)
    return access.through(
        [shape[dim] for dim in permutation], [0] * len(shape), [steps[dim] for dim in permutation]
    )


def repeated(
    access: Access, shape: Sequence[int], result: Sequence[int], dims: Sequence[int]
) -> Access:
    """What is read of an array that is repeated along dimensions.

    Args:
        access: of the result.
        shape: of the array.
        result: shape of the result.
        dims: of the result, for each dimension of the array; one that has one element is repeated.
    """
    steps = [0] * len(result)
    for dim, size, step in zip(dims, shape, row_major_steps(shape), strict=True):
        steps[dim] = step if size > 1 else 0
    return access.through(result, [0] * len(result), steps)


def sliced(
    access: Access,
    shape: Sequence[int],
    result: Sequence[int],
    starts: Sequence[int],
    strides: Sequence[int],
) -> Access:
    """What is read of an array, where a slice of it is read.

    Args:
        access: of the slice.
        shape: of the array.
        result: shape of the slice.
        starts: first index of each dimension.
        strides: distance of indices.
    """
    steps = row_major_steps(shape)
    return access.through(
        result,
        [start * step for start, step in zip(starts, steps, strict=True)],
        [stride * step for stride, step in zip(strides, steps, strict=True)],
    )
