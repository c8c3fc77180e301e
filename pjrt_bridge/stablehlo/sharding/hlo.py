"""Shapes on one device, from the text of `mhlo.sharding` attributes (`HloSharding::ToString`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pjrt_bridge.errors import ProgramError

_WHOLE = re.compile(r"\{(replicated|manual|unreduced|unknown|maximal device=\d+)\b.*\}", re.DOTALL)
_NO_TILES = re.compile(rb"devices\s*=\s*\[(?:\s*\d+\s*,)*\s*0+\s*[,\]]")
_TILED = re.compile(r"\{devices=\[([\d,]*)\]")
_LAST_DIMS = re.compile(r"last_tile_dims=\{([^}]*)\}")


def shard_shape(shape: Sequence[int], sharding: str) -> tuple[int, ...]:
    """Shape on one device of an array with an HLO sharding.

    Args:
        shape: global shape.
        sharding: such as `{replicated}`, `{maximal device=0}`, `{devices=[2,1]<=[2]}` or
            `{devices=[1,2,2]<=[4] last_tile_dim_replicate}`.

    Raises:
        ProgramError: another notation, or tiles that do not fit the rank.
    """
    text = sharding.strip()
    if _WHOLE.fullmatch(text):
        return tuple(shape)
    tiled = _TILED.match(text)
    if tiled is None:
        raise ProgramError(f"sharding: cannot read {sharding!r} as the sharding of one tensor")
    tiles = [int(size) for size in tiled[1].split(",") if size]
    subgroups = _LAST_DIMS.search(text)
    if subgroups is not None:
        tiles = tiles[: len(tiles) - len(subgroups[1].split(","))]
    elif "last_tile_dim_replicate" in text:
        tiles = tiles[:-1]
    return divided(shape, tiles, sharding)


def divided(shape: Sequence[int], tiles: Sequence[int], sharding: str) -> tuple[int, ...]:
    """A shape with each dimension divided into a number of tiles, rounded up.

    Raises:
        ProgramError: as many tiles as dimensions are expected, each from 1 up.
    """
    if len(tiles) != len(shape) or any(tile < 1 for tile in tiles):
        raise ProgramError(
            f"sharding: {sharding!r} tiles {len(tiles)} dimensions, "
            f"the tensor has {len(shape)}: {list(shape)}"
        )
    return tuple(-(-size // tile) for size, tile in zip(shape, tiles, strict=True))


def check_tiles(code: bytes) -> None:
    """Refuse programs with a sharding, of whatever operation, that divides into no tiles.

    Compilers divide by the number of tiles, which ends the process.

    Args:
        code: bytecode or a portable artifact.

    Raises:
        ProgramError: there is one.
    """
    if b"devices" in code and (found := _NO_TILES.search(code)):
        text = found[0].decode()
        raise ProgramError(f"sharding: found {text!r}, expected one tile or more in each dimension")
