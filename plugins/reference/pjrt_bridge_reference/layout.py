"""Layouts: the order in which the elements of an array lie in memory.

An order lists dimensions from the fastest to the slowest varying, as PJRT's `minor_to_major` does;
row-major is `(rank - 1, ..., 0)`.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge_reference.caller_arguments import int64s, invalid, struct, unimplemented

Order = tuple[int, ...]

_TILED, _STRIDES = 0, 1


def row_major(rank: int) -> Order:
    """The order of C arrays."""
    return tuple(reversed(range(rank)))


def byte_strides(shape: tuple[int, ...], order: Order, itemsize: int) -> tuple[int, ...]:
    """Bytes from one element to the next in each dimension, of a dense array."""
    strides = [0] * len(shape)
    step = itemsize
    for dimension in order:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


def read_order(layout: int | None, shape: tuple[int, ...], itemsize: int, what: str) -> Order:
    """The order that a PJRT_Buffer_MemoryLayout describes; row-major for NULL.

    Raises:
        Status: UNIMPLEMENTED for tiles, INVALID_ARGUMENT for what is no dense layout of the shape.
    """
    if not layout:
        return row_major(len(shape))
    found = struct("PJRT_Buffer_MemoryLayout", layout)
    if found.type == _TILED:
        return _tiled(found.layout, len(shape), what)
    strides = _strided(found, len(shape), what)
    # Of dimensions with equal strides (those of one element) the last is the fastest.
    order = tuple(sorted(range(len(shape)), key=lambda dim: (strides[dim], shape[dim], -dim)))
    dense = byte_strides(shape, order, itemsize)
    if any(size > 1 and a != b for size, a, b in zip(shape, strides, dense, strict=True)):
        raise invalid(f"{what}: strides {strides} are not dense for shape {shape}")
    return order


def read_strides(layout: int, shape: tuple[int, ...], itemsize: int, what: str) -> tuple[int, ...]:
    """The byte strides that a PJRT_Buffer_MemoryLayout gives an array in host memory.

    Raises:
        Status: as `read_order`; strides may leave gaps here.
    """
    found = struct("PJRT_Buffer_MemoryLayout", layout)
    if found.type == _TILED:
        return byte_strides(shape, _tiled(found.layout, len(shape), what), itemsize)
    strides = _strided(found, len(shape), what)
    if any(stride < 0 for stride in strides):
        raise invalid(f"{what}: strides {strides} would write in front of the array")
    return strides


def _tiled(tiled: Any, rank: int, what: str) -> Order:
    if tiled.num_tiles:
        raise unimplemented(f"{what}: {tiled.num_tiles} tiles; this plugin has no tiled layouts")
    order = int64s(tiled.minor_to_major, tiled.minor_to_major_size, f"{what}: minor_to_major")
    if sorted(order) != list(range(rank)):
        raise invalid(f"{what}: minor_to_major is {order}, no order of {rank} dimensions")
    return order


def _strided(found: Any, rank: int, what: str) -> tuple[int, ...]:
    if found.type != _STRIDES:
        raise invalid(f"{what}: layout type {found.type} is neither tiled (0) nor strides (1)")
    strides = STRUCTS["PJRT_Buffer_MemoryLayout_Strides"].ctype.from_address(
        ctypes.addressof(found) + STRUCTS["PJRT_Buffer_MemoryLayout"].offset("layout")
    )
    steps = int64s(strides.byte_strides, strides.num_byte_strides, f"{what}: byte_strides")
    if len(steps) != rank:
        raise invalid(f"{what}: {len(steps)} strides for {rank} dimensions")
    return steps


def write_order(layout: Any, order: Order, keep: Keep) -> None:
    """Fill a PJRT_Buffer_MemoryLayout; `keep` has to live as long as it is read."""
    layout.type = _TILED
    tiled = layout.layout
    tiled.struct_size = STRUCTS["PJRT_Buffer_MemoryLayout_Tiled"].size
    tiled.minor_to_major = keep.int64s(order)
    tiled.minor_to_major_size = len(order)
    tiled.num_tiles = 0
