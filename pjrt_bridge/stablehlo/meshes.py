"""Shapes on one device, from the text of sharding attributes.

A sharding splits a global tensor into equal shards; a dimension that does not divide is padded, so
a shard's size is rounded up. Two notations exist: HLO's (`mhlo.sharding`, a string) and Shardy's
(`sdy.sharding`, axes of a mesh).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pjrt_bridge.errors import ProgramError

_WHOLE = re.compile(r"\{(replicated|manual|unreduced|unknown|maximal device=\d+)\b.*\}", re.DOTALL)
_NO_TILES = re.compile(rb"devices\s*=\s*\[(?:\s*\d+\s*,)*\s*0+\s*[,\]]")
_TILED = re.compile(r"\{devices=\[([\d,]*)\]")
_LAST_DIMS = re.compile(r"last_tile_dims=\{([^}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(?::\(\d+\)(\d+))?')
_MESH_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_SHARDY = re.compile(
    r"#sdy\.sharding<(?:@([\w.$-]+|\"[^\"]+\")|mesh<(.*?)>),\s*\[(.*?)\]", re.DOTALL
)
_SHARDY_DIM = re.compile(r"\{([^}]*)\}")


def shard_shape(shape: Sequence[int], sharding: str) -> tuple[int, ...]:
    """Shape on one device of a tensor with an HLO sharding.

    Args:
        shape: global shape.
        sharding: such as `{replicated}`, `{maximal device=0}`, `{devices=[2,1]<=[2]}` or
            `{devices=[1,2,2]<=[4] last_tile_dim_replicate}` (`HloSharding::ToString` in XLA).

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
    return _split(shape, tiles, sharding)


def sdy_shard_shape(
    shape: Sequence[int], sharding: str, meshes: Mapping[str, Mapping[str, int]]
) -> tuple[int, ...]:
    """Shape on one device of a tensor with a Shardy sharding.

    Args:
        shape: global shape.
        sharding: text of the attribute, such as `#sdy.sharding<@mesh, [{"x"}, {}]>`.
        meshes: per mesh symbol the sizes of its axes.

    Raises:
        ProgramError: another notation, an unknown mesh or axis, or too few dimensions.
    """
    match = _SHARDY.match(sharding)
    if match is None:
        raise ProgramError(f"sharding: cannot read {sharding!r} as a Shardy sharding")
    if match[1] is None:
        axes = mesh_axes(match[2])
    else:
        name = match[1].strip('"')
        if name not in meshes:
            raise ProgramError(f"sharding: {sharding!r} names a mesh that the module does not have")
        axes = dict(meshes[name])
    tiles = []
    for dim in _SHARDY_DIM.findall(match[3]):
        tile = 1
        for axis, part in _AXIS.findall(dim):
            if axis not in axes:
                raise ProgramError(
                    f"sharding: {sharding!r} names axis {axis!r}; the mesh has {sorted(axes)}"
                )
            tile *= int(part) if part else axes[axis]
        tiles.append(tile)
    return _split(shape, tiles, sharding)


def mesh_axes(mesh: str) -> dict[str, int]:
    """Sizes of a mesh's axes from the text of its attribute: `#sdy.mesh<["x"=2, "y"=4]>`."""
    return {name: int(size) for name, size in _MESH_AXIS.findall(mesh)}


def _split(shape: Sequence[int], tiles: Sequence[int], sharding: str) -> tuple[int, ...]:
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
