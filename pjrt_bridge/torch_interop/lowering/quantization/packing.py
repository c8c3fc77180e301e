"""The order in which ATen packs 4-bit weights for the CPU, found by having it pack numbers.

It depends on the processor: blocks of 32 or 64 rows, and what remains, lie one after the other; in
each, for each column, a byte holds two rows.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import NamedTuple

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable

_UINT8 = dtypes.of("uint8")


class _Blocks(NamedTuple):
    """Blocks of rows that follow each other and are packed alike.

    Attributes:
        blocks: how many.
        rows: of each.
        paired: whether a byte holds neighbours; else one row of each half of the block. The first
            is in the low bits.
    """

    blocks: int
    rows: int
    paired: bool


def unpack(c: Context, packed: Value) -> Value:
    """(n, k / 2) bytes as (n, k) of uint8, each of 0 to 15."""
    b = c.b
    columns = packed.shape[1] * 2
    flat = c.reshape(packed, (packed.size,))
    four, low_bits = (c.full(flat.shape, number, _UINT8) for number in (4, 15))
    nibbles = (b.and_(flat, low_bits), b.shift_right_logical(flat, four))
    parts, start = [], 0
    for count, rows, paired in _order(packed.shape[0]):
        stop = start + count * rows * columns // 2
        low, high = (
            c.reshape(b.slice(item, (start,), (stop,)), (count, columns, rows // 2))
            for item in nibbles
        )
        if paired:
            pair = [c.reshape(item, (*item.shape, 1)) for item in (low, high)]
            block = c.reshape(b.concatenate(pair, 3), (count, columns, rows))
        else:
            block = b.concatenate((low, high), 2)
        parts.append(c.reshape(b.transpose(block, (0, 2, 1)), (count * rows, columns)))
        start = stop
    return parts[0] if len(parts) == 1 else b.concatenate(parts, 0)


def pack(c: Context, weight: Value) -> Value:
    """What `unpack` undoes: (n, k) of integers, each of 0 to 15, as (n, k / 2) bytes."""
    b = c.b
    total, columns = weight.shape
    parts, start = [], 0
    for count, rows, paired in _order(total):
        block = b.slice(b.convert(weight, _UINT8), (start, 0), (start + count * rows, columns))
        block = b.transpose(c.reshape(block, (count, rows, columns)), (0, 2, 1))
        half = (count, columns, rows // 2)
        if paired:
            pairs = c.reshape(block, (*half, 2))
            sides = [
                c.reshape(b.slice(pairs, (0, 0, 0, at), (*half, at + 1)), half) for at in (0, 1)
            ]
        else:
            sides = [
                b.slice(block, (0, 0, at), (count, columns, at + rows // 2))
                for at in (0, rows // 2)
            ]
        low, high = sides
        high = b.shift_left(high, c.full(half, 4, _UINT8))
        parts.append(c.reshape(b.or_(low, high), (low.size,)))
        start += count * rows
    flat = parts[0] if len(parts) == 1 else b.concatenate(parts, 0)
    return c.reshape(flat, c.output.shape)


@cache
def _order(rows: int) -> tuple[_Blocks, ...]:
    """How ATen packs this many rows.

    Raises:
        NotLowerable: in an order that is not known.
    """
    blocks = list(_blocks(*_packed_numbers(rows)))
    if [row for first, (size, _) in blocks for row in range(first, first + size)] != [*range(rows)]:
        raise NotLowerable("this PyTorch packs 4-bit weights in an unknown order")
    found = [
        _Blocks(len(list(group)), *kind) for kind, group in groupby(kind for _, kind in blocks)
    ]
    return tuple(found)


def _packed_numbers(rows: int) -> tuple[list[tuple[int, int]], list[int]]:
    """For each byte of two packed columns the rows of its low and high bits, and its column."""
    pack_rows = torch.ops.aten._convert_weight_to_int4pack_for_cpu
    with compat.untraced():
        number = torch.arange(rows, dtype=torch.int32, device="cpu")[:, None].repeat(1, 2)
        shifts = range(0, rows.bit_length(), 4)
        bytes_of = [pack_rows((number >> by) & 15, 1).flatten().tolist() for by in shifts]
        column = torch.arange(2, dtype=torch.int32, device="cpu").repeat(rows, 1)
        columns = pack_rows(column, 1).flatten().tolist()
    pairs = [
        (
            sum((byte & 15) << (4 * at) for at, byte in enumerate(held)),
            sum((byte >> 4) << (4 * at) for at, byte in enumerate(held)),
        )
        for held in zip(*bytes_of, strict=True)
    ]
    return pairs, [byte & 15 for byte in columns]


def _blocks(pairs: list[tuple[int, int]], columns: list[int]) -> list[tuple[int, tuple[int, bool]]]:
    """The first row of each block, its number of rows, and whether a byte holds neighbours."""
    found = []
    runs = [list(run) for _, run in groupby(range(len(pairs)), key=lambda at: columns[at])]
    for run, other in zip(runs[::2], runs[1::2], strict=True):
        held = [pairs[at] for at in run]
        if held != [pairs[at] for at in other]:
            return []
        size = 2 * len(held)
        first = min(low for low, _ in held)
        neighbours = [(first + at, first + at + 1) for at in range(0, size, 2)]
        halves = [(first + at, first + at + size // 2) for at in range(size // 2)]
        if held not in (neighbours, halves):
            return []
        found.append((first, (size, held == neighbours)))
    return found
