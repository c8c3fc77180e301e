"""Copies of elements to their places, by a call (`aten/native/assemble.c`).

XLA's CPU compiler makes a loop of a slice, a pad, a reversal or a concatenation, which finds for
each element by itself where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Assembly
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.assemble.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 15
"""Bytes of the result from which on it is worth a call."""

LEAST_SLAB = 1 << 10
"""Elements that are copied box by box, at least, before the next ones are."""

_MOST_DIMS = 6
_WIDTHS = (8, 16, 32, 64, 128)


class AssembledArrays(Kernels):
    """Arrays that are copied from others, row by row.

    Attributes:
        can_assemble: the client's plugin makes the custom call.
    """

    can_assemble = False

    def assemble(self, b: Builder, assembly: Assembly, sources: Sequence[Value]) -> Value | None:
        """See `Kernels.assemble`."""
        dtype = sources[0].dtype
        size = math.prod(assembly.shape) * dtype.bits // 8
        if not self.can_assemble or size < LEAST or dtype.bits not in _WIDTHS:
            return super().assemble(b, assembly, sources)
        config = _described(assembly)
        if config is None:
            return super().assemble(b, assembly, sources)
        result = TensorType(assembly.shape, dtype)
        return b.custom_call(TARGET, sources, [result], backend_config=config)[0]


def can_assemble(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "ASSEMBLE_BOXES")


class _Dim(NamedTuple):
    """A dimension that is gone through.

    Attributes:
        size: how many elements it has.
        to: how far they are from each other in the result.
        steps: and in the source of each box.
    """

    size: int
    to: int
    steps: tuple[int, ...]


def _described(assembly: Assembly) -> dict[str, np.ndarray] | None:
    """An assembly as the call takes it; None where it has too many dimensions."""
    shape, boxes = assembly.shape, assembly.boxes
    outer = _slabs(assembly)
    steps = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    slabs = _joined(
        [
            _Dim(shape[dim], steps[dim], tuple(box.steps[dim] for box in boxes))
            for dim in range(outer)
        ]
    )
    found = []
    for index, box in enumerate(boxes):
        to = sum(box.begin[dim] * steps[dim] for dim in range(outer, len(shape)))
        along = _ordered(
            _joined(
                [
                    _Dim(box.sizes[dim], steps[dim], (box.steps[dim],))
                    for dim in range(outer, len(shape))
                ]
            )
        )
        if len(along) > _MOST_DIMS or len(slabs) > _MOST_DIMS:
            return None
        found += [
            *(box.source, to, box.first, len(along)),
            *_filled([dim.steps[index] for dim in slabs], _MOST_DIMS),
            *_filled(
                [number for size, to, (step,) in along for number in (size, to, step)],
                3 * _MOST_DIMS,
            ),
        ]
    return {
        "outer": np.array([dim.size for dim in slabs] or [1], np.int64),
        "boxes": np.array(found, np.int64),
    }


def _slabs(assembly: Assembly) -> int:
    """How many dimensions are divided into slabs: of several boxes those that they have all of."""
    shape, boxes = assembly.shape, assembly.boxes
    count = 0
    while (
        len(boxes) > 1
        and math.prod(shape[count + 1 :]) >= LEAST_SLAB
        and all(box.sizes[count] == shape[count] for box in boxes)
    ):
        count += 1
    return count


def _joined(dims: Sequence[_Dim]) -> list[_Dim]:
    """The same with as few dimensions as possible."""
    found: list[_Dim] = []
    for dim in dims:
        if dim.size == 1:
            continue
        if found and _lies_in(found[-1], dim):
            found.append(_Dim(found.pop().size * dim.size, dim.to, dim.steps))
        else:
            found.append(dim)
    return found


def _lies_in(outer: _Dim, inner: _Dim) -> bool:
    """Whether two dimensions are gone through as one."""
    return outer.to == inner.size * inner.to and all(
        far == inner.size * near for far, near in zip(outer.steps, inner.steps, strict=True)
    )


def _ordered(dims: list[_Dim]) -> list[_Dim]:
    """Beside the last dimension the one along which elements lie side by side in the source."""
    if not dims or abs(dims[-1].steps[0]) <= 1:
        return dims
    for at, dim in enumerate(dims[:-1]):
        if abs(dim.steps[0]) == 1:
            return [*dims[:at], *dims[at + 1 : -1], dim, dims[-1]]
    return dims


def _filled(numbers: Sequence[int], count: int) -> list[int]:
    return [*numbers, *(0,) * (count - len(numbers))]
