"""Layout: the order of a buffer's elements in device memory; and what plugins do with one."""

from __future__ import annotations

import ctypes
import re
from enum import Enum
from typing import Any

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s, read_int64s
from pjrt_bridge.errors import DataError, PluginIncompatible, Unimplemented
from pjrt_bridge.wrong_arguments import checked_methods

_TEXT = re.compile(r"\{([\d,\s]*)(?::((?:[A-Z]\([^()]*\)|\([^()]*\)|[A-Z])*))?\}")
_TILES = re.compile(r"T((?:\([^()]*\))+)")
_COMBINED = -(2**63)


class LayoutHandling(Enum):
    """A plugin's treatment of host elements and of the layout that it is asked for."""

    REORDERS = "it brings the elements into the order of the layout"
    LABELS = "it copies the elements as they are, so they have to come in the layout's order"
    NONE = "no program can read an argument in another layout than the default"


@checked_methods
class Layout:
    """How a buffer's elements lie in device memory.

    Attributes:
        minor_to_major: dimensions from the fastest to the slowest varying; row-major is
            (rank - 1, ..., 1, 0).
        tiles: tile sizes of tiled layouts (XLA's notation), outermost tiling first; usually empty.
        rest: what else a plugin says of the layout, in XLA's notation: `E(4)` for elements of 4
            bits, `S(1)` for memory space 1.
    """

    __slots__ = ("minor_to_major", "rest", "tiles")

    def __init__(
        self,
        minor_to_major: tuple[int, ...],
        tiles: tuple[tuple[int, ...], ...] = (),
        rest: str = "",
    ) -> None:
        self.minor_to_major = minor_to_major
        self.tiles = tiles
        self.rest = rest

    @staticmethod
    def default(rank: int) -> Layout:
        """Row-major order without tiles."""
        return Layout(tuple(reversed(range(rank))))

    @staticmethod
    def parse(text: str) -> Layout:
        """Read XLA's notation, such as `{1,0}` or `{1,0:T(8,128)(2,1)}`.

        Raises:
            DataError: another text.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise DataError(f"found {text!r}, expected a layout such as {{1,0}} or {{1,0:T(8)}}")
        properties = match[2] or ""
        tiles = _TILES.search(properties)
        sizes = re.findall(r"\(([^()]*)\)", tiles[1]) if tiles else []
        return Layout(
            tuple(int(dim) for dim in match[1].split(",") if dim.strip()),
            tuple(tuple(map(_tile_size, tile.split(","))) for tile in sizes),
            _TILES.sub("", properties, count=1),
        )

    @property
    def row_major(self) -> bool:
        """Whether the dimensions are in row-major order (tiles aside)."""
        return self.minor_to_major == tuple(reversed(range(len(self.minor_to_major))))

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Strides in elements of a dense array of this layout; a size of 0 counts as 1 in them."""
        strides = [0] * len(shape)
        step = 1
        for dim in self.minor_to_major:
            strides[dim] = step
            step *= max(shape[dim], 1)
        return tuple(strides)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (self.minor_to_major, self.tiles, self.rest) == (
            other.minor_to_major,
            other.tiles,
            other.rest,
        )

    def __hash__(self) -> int:
        return hash((self.minor_to_major, self.tiles, self.rest))

    def __str__(self) -> str:
        tiles = [",".join("*" if n == _COMBINED else str(n) for n in tile) for tile in self.tiles]
        properties = ("T" if tiles else "") + "".join(f"({tile})" for tile in tiles) + self.rest
        order = ",".join(map(str, self.minor_to_major))
        return f"{{{order}{':' if properties else ''}{properties}}}"

    def __repr__(self) -> str:
        return f"Layout({self})"

    def encode(self) -> tuple[Any, list[object]]:
        """A PJRT_Buffer_MemoryLayout of the order alone, and what it points to."""
        order = int64s(self.minor_to_major)
        struct = STRUCTS["PJRT_Buffer_MemoryLayout"].new()
        struct.layout.struct_size = STRUCTS["PJRT_Buffer_MemoryLayout_Tiled"].size
        struct.layout.minor_to_major = ctypes.addressof(order)
        struct.layout.minor_to_major_size = len(order)
        return struct, [order]

    @staticmethod
    def of_buffer(
        api: Api, buffer: int | None, rank: int, *, asked: tuple[int, ...] | None = None
    ) -> Layout:
        """Ask the plugin for the layout of a PJRT_Buffer.

        Where it does not tell, the order that the program asked for, by default row-major.

        Raises:
            PluginIncompatible: what it gives is no order of so many dimensions.
        """
        try:
            found = api.call("Buffer_GetMemoryLayout", buffer=buffer).layout
        except Unimplemented:
            return Layout.default(rank) if asked is None else Layout(asked)
        layout = _tiled(found.layout) if found.type == 0 else _strided(found.layout)
        if sorted(layout.minor_to_major) != list(range(rank)):
            raise PluginIncompatible(
                f"plugin {api.plugin!r}: Buffer_GetMemoryLayout gave the order "
                f"{layout.minor_to_major} for an array of {rank} dimensions"
            )
        return layout


def _tile_size(text: str) -> int:
    return _COMBINED if text.strip() == "*" else int(text)


def _tiled(found: Any) -> Layout:
    order = read_int64s(found.minor_to_major, found.minor_to_major_size)
    sizes = read_int64s(found.tile_dim_sizes, found.num_tiles)
    dims = read_int64s(found.tile_dims, sum(sizes))
    tiles, start = [], 0
    for size in sizes:
        tiles.append(dims[start : start + size])
        start += size
    return Layout(order, tuple(tiles))


def _strided(found: Any) -> Layout:
    strides = STRUCTS["PJRT_Buffer_MemoryLayout_Strides"].ctype.from_address(
        ctypes.addressof(found)
    )
    steps = read_int64s(strides.byte_strides, strides.num_byte_strides)
    return Layout(tuple(sorted(range(len(steps)), key=lambda dim: (steps[dim], -dim))))
