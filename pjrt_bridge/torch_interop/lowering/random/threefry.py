"""Random words: Threefry-2x32-20, a counter-based generator, in integer operations.

An element's words are a function of a 64-bit key and of the element's position alone: no state, the
same on every plugin, and fusible with what reads them. Two words are computed for each element and
lane; operators that need more words use several lanes.

Source: Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value

UINT32 = dtypes.of("uint32")
UINT64 = dtypes.of("uint64")
INT64 = dtypes.of("int64")

NARROW = 1 << 32
"""Elements up to which positions are computed in 32 bits."""

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_ROUNDS = 20
_PARITY = 0x1BD11BDA
_LANE_BITS = 8
_LANE_SHIFT = 32 - _LANE_BITS

Words = tuple[Value, Value]


def words(b: Builder, key: Value, shape: Sequence[int], lane: int = 0) -> Words:
    """Two uniform uint32 words for each element of a shape.

    Args:
        b: where to emit.
        key: an int64 scalar, or one for each row: then its dimensions lead the shape.
        shape: of the result; an element's position in its row, row-major, is its counter.
        lane: of 256: others give other words.
    """
    shape = tuple(shape)
    row = shape[key.rank :]
    low, high = _positions(b, math.prod(row))
    if lane:
        high = b.or_(high, b.full(high.shape, lane << _LANE_SHIFT, UINT32))
    counter = b.reshape(low, row), b.reshape(high, row)
    if key.rank:
        dims = range(key.rank, len(shape))
        counter = (
            b.broadcast_in_dim(counter[0], shape, dims),
            b.broadcast_in_dim(counter[1], shape, dims),
        )
    return threefry(b, _halves(b, key), counter)


def threefry(b: Builder, key: Words, counter: Words) -> Words:
    """Threefry-2x32-20 of a counter under a key; all are uint32.

    Args:
        b: where to emit.
        key: scalars, or of the first dimensions of the counter.
        counter: of any shape.
    """
    shape, rows = counter[0].shape, key[0].shape
    parity = b.full(rows, _PARITY, UINT32)
    keys = (*key, b.xor(b.xor(*key), parity))
    shifts = {bits: b.full(shape, bits, UINT32) for r in _ROTATIONS for bits in (r, 32 - r)}

    def injected(x: Value, group: int, at: int) -> Value:
        scalar = keys[(group + at) % 3]
        if at and group:
            scalar = b.add(scalar, b.full(rows, group, UINT32))
        return b.add(x, b.broadcast_in_dim(scalar, shape, range(len(rows))))

    first, second = (injected(x, 0, at) for at, x in enumerate(counter))
    for number in range(_ROUNDS):
        rotation = _ROTATIONS[number % len(_ROTATIONS)]
        first = b.add(first, second)
        left = b.shift_left(second, shifts[rotation])
        right = b.shift_right_logical(second, shifts[32 - rotation])
        second = b.xor(b.or_(left, right), first)
        if number % 4 == 3:
            group = number // 4 + 1
            first, second = injected(first, group, 0), injected(second, group, 1)
    return first, second


def _halves(b: Builder, x: Value) -> Words:
    """The low and the high half of 64-bit integers."""
    low = b.and_(x, b.full(x.shape, (1 << 32) - 1, x.dtype))
    high = b.shift_right_logical(x, b.full(x.shape, 32, x.dtype))
    return b.convert(low, UINT32), b.convert(high, UINT32)


def _positions(b: Builder, count: int) -> Words:
    """Numbers from 0 on, in two words; the lane is in the upper bits of the high one."""
    if count > NARROW:
        return _halves(b, b.iota((count,), 0, UINT64))
    return b.iota((count,), 0, UINT32), b.full((count,), 0, UINT32)
