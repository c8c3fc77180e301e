"""ValueSpec: shape, element type and strides of one array where it crosses to or from a device.

Programs know row-major arrays. An array whose memory is dense in another order of its dimensions
crosses as the row-major array that its memory is; the program permutes it. A result may repeat
elements (stride 0); the program computes each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.transfers.dlpack import is_row_major
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.types import TensorType


@dataclass(frozen=True)
class ValueSpec:
    """One array, as a framework's graph sees it and as it lies in memory.

    Attributes:
        type: shape and element type as the graph sees them.
        strides: of these dimensions, in elements; dense in some order but for repeated dimensions,
            whose stride is 0.
    """

    type: TensorType
    strides: tuple[int, ...]

    @staticmethod
    def row_major(type: TensorType) -> ValueSpec:
        """An array in row-major order."""
        return ValueSpec(type, _row_major_strides(type.shape))

    @staticmethod
    def ordered(type: TensorType, order: Sequence[int]) -> ValueSpec:
        """A dense array.

        Args:
            type: shape and element type as the graph sees them.
            order: dimensions from the slowest to the fastest varying.
        """
        steps = _row_major_strides([type.shape[dim] for dim in order])
        return ValueSpec(type, tuple(steps[at] for at in inverse_order(order)))

    @staticmethod
    def argument(type: TensorType, strides: Sequence[int]) -> ValueSpec:
        """An argument that lies so; row-major where its memory has gaps or repeats."""
        order = dense_order(type.shape, strides)
        return ValueSpec.row_major(type) if order is None else ValueSpec.ordered(type, order)

    @staticmethod
    def result(type: TensorType, strides: Sequence[int]) -> ValueSpec:
        """A result with these strides; row-major but for repeats where its memory has gaps."""
        return ValueSpec(type, result_strides(type.shape, strides))

    @cached_property
    def once(self) -> TensorType:
        """The type with one element for each that is repeated: what the program computes."""
        return TensorType(_once(self.type.shape, self.strides), self.type.dtype)

    @cached_property
    def order(self) -> tuple[int, ...] | None:
        """Dimensions from the slowest to the fastest varying; None is row-major."""
        found = dense_order(self.once.shape, self.strides)
        return None if found == tuple(range(self.type.rank)) else found

    @cached_property
    def inverse(self) -> tuple[int, ...] | None:
        """The permutation from the array in memory to the graph's dimensions; None: none."""
        return None if self.order is None else inverse_order(self.order)

    @cached_property
    def memory(self) -> TensorType:
        """Shape and type of the row-major array in memory, which is what the program knows."""
        if self.order is None:
            return self.once
        return TensorType(tuple(self.once.shape[dim] for dim in self.order), self.type.dtype)

    @cached_property
    def dense_strides(self) -> tuple[int, ...]:
        """Strides of `once`, in elements; those of dimensions of size 1 follow the order."""
        return ValueSpec.ordered(self.once, self.order or range(self.type.rank)).strides

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return self.memory.nbytes

    def lies_as(self, other: ValueSpec) -> bool:
        """Whether the memory of one is that of the other."""
        return (self.once, self.order) == (other.once, other.order)


def result_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """These strides; row-major ones but for repeats where memory has gaps."""
    once = _once(shape, strides)
    if dense_order(once, strides) is not None:
        return tuple(strides)
    steps = zip(once, shape, _row_major_strides(once), strict=True)
    return tuple(0 if one != size else step for one, size, step in steps)


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Dimensions from the slowest to the fastest varying; None where memory has gaps or repeats."""
    rank = len(shape)
    if is_row_major(shape, strides):
        return tuple(range(rank))
    order = tuple(sorted(range(rank), key=lambda dim: (-strides[dim], dim)))
    if is_row_major([shape[dim] for dim in order], [strides[dim] for dim in order]):
        return order
    return None


def has_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether an array's elements lie apart from each other in memory, each once."""
    if 0 in shape or any(size > 1 and not step for size, step in zip(shape, strides, strict=True)):
        return False
    return dense_order(shape, strides) is None


def _once(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    if 0 in shape:
        return tuple(shape)
    pairs = zip(shape, strides, strict=True)
    return tuple(1 if stride == 0 and size > 1 else size for size, stride in pairs)


def _row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return Layout.default(len(shape)).strides(tuple(shape))
