"""Sharding: which axes of a mesh divide which dimensions of an array.

Text is in Shardy's notation (`docs/sharding_representation.md` of openxla/shardy):
`#sdy.sharding<@mesh, [{"dp"}, {"tp":(1)2, ?}], replicated={"x"}>`. A sub-axis `"tp":(1)2` is a part
of an axis: the axis is taken apart into (1, 2, the rest), and its middle divides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.sharding.hlo import divided
from pjrt_bridge.stablehlo.sharding.mesh import SYMBOL, Mesh, axes_in
from pjrt_bridge.wrong_arguments import checked_methods

_SHARDING = re.compile(
    r"#sdy\.sharding<(?:@([\w.$-]+|\"[^\"]+\")|mesh<(.*?)>),\s*\[(.*?)\]", re.DOTALL
)
_DIMENSION = re.compile(r"\{([^}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')

Spec = Sequence[str | Sequence[str] | None]
"""For each dimension the axes that divide it: a name, several from major to minor, or None."""


@dataclass(frozen=True)
class Axis:
    """An axis, or a part of one, that divides a dimension.

    Attributes:
        name: of the axis.
        before: product of the sizes of the parts before this one; 1 for a whole axis.
        size: parts into which it divides.
    """

    name: str
    before: int
    size: int

    def text(self, mesh: Mesh) -> str:
        """The axis in Shardy's notation."""
        whole = self.size == mesh.sizes[self.name]
        return f'"{self.name}"' if whole else f'"{self.name}":({self.before}){self.size}'


@checked_methods
@dataclass(frozen=True)
class Sharding:
    """A division of an array over a mesh; along axes that divide nothing it is replicated.

    Attributes:
        mesh: the devices.
        dimensions: for each dimension the axes that divide it, from major to minor.
    """

    mesh: Mesh
    dimensions: tuple[tuple[Axis, ...], ...]

    @staticmethod
    def of(mesh: Mesh, spec: Spec, rank: int) -> Sharding:
        """A sharding by the names of axes.

        Args:
            mesh: the devices.
            spec: see `Spec`; dimensions behind it are not divided.
            rank: number of dimensions of the array.

        Raises:
            ProgramError: more entries than dimensions, an unknown axis, or one that is used twice.
        """
        if isinstance(spec, str) or not isinstance(spec, (list, tuple)):
            raise ProgramError(
                f"sharding: found {spec!r}, expected a tuple with an axis, several or None for "
                "each dimension"
            )
        if len(spec) > rank:
            raise ProgramError(
                f"sharding: found {len(spec)} entries in {tuple(spec)}, the array has {rank} "
                "dimensions"
            )
        sizes, used = mesh.sizes, set[str]()
        dimensions = []
        for at, entry in enumerate(spec):
            names = () if entry is None else (entry,) if isinstance(entry, str) else entry
            if not isinstance(names, (list, tuple)) or not all(
                isinstance(name, str) for name in names
            ):
                raise ProgramError(
                    f"sharding: found {entry!r} for dimension {at} in {tuple(spec)}, expected an "
                    "axis, several or None"
                )
            for name in names:
                if name not in sizes:
                    raise ProgramError(
                        f"sharding: {tuple(spec)} names the axis {name!r}, {mesh} has "
                        f"{', '.join(sizes)}"
                    )
                if name in used:
                    raise ProgramError(f"sharding: {tuple(spec)} uses the axis {name!r} twice")
                used.add(name)
            dimensions.append(tuple(Axis(name, 1, sizes[name]) for name in names))
        dimensions += [()] * (rank - len(spec))
        return Sharding(mesh, tuple(dimensions))

    @staticmethod
    def replicated(mesh: Mesh, rank: int) -> Sharding:
        """The sharding of an array that each device has as a whole."""
        return Sharding(mesh, ((),) * rank)

    @staticmethod
    def of_batch(mesh: Mesh, axes: Sequence[str], shape: Sequence[int]) -> Sharding:
        """The sharding of a batch: its first dimension over all of some axes that divide it."""
        used: list[str] = []
        parts = 1
        for axis in axes:
            if shape and axis in mesh.sizes and shape[0] % (mesh.sizes[axis] * parts) == 0:
                used.append(axis)
                parts *= mesh.sizes[axis]
        return Sharding.of(mesh, (tuple(used),) if used else (), len(shape))

    @staticmethod
    def parse(text: str, meshes: Mapping[str, Mesh]) -> Sharding:
        """A sharding from its text; that a dimension is open is passed over.

        Args:
            text: of the attribute, such as `#sdy.sharding<@mesh, [{"x"}, {}]>`.
            meshes: by their symbols.

        Raises:
            ProgramError: another notation, an unknown mesh or axis.
        """
        symbol, inline, dimensions = _parts(text)
        mesh = Mesh.of(axes_in(inline)) if symbol is None else meshes.get(symbol)
        if mesh is None:
            raise ProgramError(f"sharding: {text!r} names a mesh that the module does not have")
        return Sharding(mesh, _dimensions(text, dimensions, mesh.sizes))

    def text(
        self, symbol: str = SYMBOL, *, open: Collection[int] = (), replicated: Collection[str] = ()
    ) -> str:
        """The sharding as an attribute of Shardy's.

        Args:
            symbol: of the mesh.
            open: dimensions that propagation may divide further.
            replicated: axes along which it must not divide the array.
        """
        dims = [
            "{" + ", ".join([axis.text(self.mesh) for axis in axes] + ["?"] * (at in open)) + "}"
            for at, axes in enumerate(self.dimensions)
        ]
        # Shardy takes them in the order of the mesh alone.
        whole = [f'"{name}"' for name, _ in self.mesh.axes if name in replicated]
        kept = f", replicated={{{', '.join(whole)}}}" if whole else ""
        return f"#sdy.sharding<@{symbol}, [{', '.join(dims)}]{kept}>"

    @property
    def is_replicated(self) -> bool:
        """Whether each device has the whole array."""
        return all(axis.size == 1 for axes in self.dimensions for axis in axes)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Into how many parts each dimension is divided."""
        return tuple(math.prod(axis.size for axis in axes) for axes in self.dimensions)

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape on one device of an array.

        Raises:
            ProgramError: a dimension that does not divide into equal parts, or another rank.
        """
        found = divided(shape, self.tiles, str(self))
        for at, (size, tile) in enumerate(zip(shape, self.tiles, strict=True)):
            if size % tile:
                names = ", ".join(axis.name for axis in self.dimensions[at])
                raise ProgramError(
                    f"sharding: dimension {at} of shape {list(shape)} has {size} elements, which "
                    f"do not divide into {tile} equal parts (axes {names}); pad it, or do not "
                    "divide it"
                )
        return found

    def indices(self, shape: Sequence[int], position: int) -> tuple[slice, ...]:
        """Which part of an array the device at a position of the mesh has.

        Raises:
            ProgramError: see `shard_shape`.
        """
        at = self.mesh.coordinates(position)
        sizes = self.mesh.sizes
        found = []
        for part, axes in zip(self.shard_shape(shape), self.dimensions, strict=True):
            index = 0
            for axis in axes:
                minor = sizes[axis.name] // (axis.before * axis.size)
                index = index * axis.size + at[axis.name] // minor % axis.size
            found.append(slice(index * part, (index + 1) * part))
        return tuple(found)

    def as_far_as_it_divides(self, shape: Sequence[int]) -> Sharding:
        """The same without the axes of dimensions that do not divide into equal parts.

        Raises:
            ProgramError: a shape of another rank.
        """
        divided(shape, self.tiles, str(self))
        return Sharding(
            self.mesh,
            tuple(
                () if size % tile else axes
                for axes, size, tile in zip(self.dimensions, shape, self.tiles, strict=True)
            ),
        )

    @property
    def holders(self) -> tuple[int, ...]:
        """For each position the first one that has the same part of the array."""
        first: dict[tuple[int, ...], int] = {}
        found = []
        for position in range(self.mesh.size):
            part = tuple(one.start for one in self.indices(self.tiles, position))
            found.append(first.setdefault(part, position))
        return tuple(found)

    def __str__(self) -> str:
        dims = ", ".join("+".join(axis.name for axis in axes) or "-" for axes in self.dimensions)
        return f"[{dims}] over {self.mesh}"


def shard_shape_of(
    shape: Sequence[int], text: str, meshes: Mapping[str, Mapping[str, int]]
) -> tuple[int, ...]:
    """Shape on one device of an array with a Shardy sharding of any program, rounded up.

    Args:
        shape: global shape.
        text: of the attribute.
        meshes: per mesh symbol the sizes of its axes; a mesh of one device may have none.

    Raises:
        ProgramError: another notation, an unknown mesh or axis, or another rank.
    """
    symbol, inline, dimensions = _parts(text)
    sizes = axes_in(inline) if symbol is None else meshes.get(symbol)
    if sizes is None:
        raise ProgramError(f"sharding: {text!r} names a mesh that the module does not have")
    found = _dimensions(text, dimensions, sizes)
    return divided(shape, [math.prod(axis.size for axis in axes) for axes in found], text)


def symbol_in(text: str) -> str:
    """The symbol of the mesh that a sharding names, `SYMBOL` where the mesh stands in it."""
    return _parts(text)[0] or SYMBOL


def axes_of(text: str) -> list[str]:
    """The names of the axes that divide a dimension."""
    return [match[1] for match in _AXIS.finditer(_parts(text)[2])]


def is_open(text: str) -> bool:
    """Whether propagation may divide a dimension further."""
    return "?" in _parts(text)[2]


def _parts(text: str) -> tuple[str | None, str, str]:
    """Of a sharding the symbol of its mesh, or None and the mesh, and the dimensions."""
    match = _SHARDING.match(text)
    if match is None:
        raise ProgramError(f"sharding: cannot read {text!r} as a Shardy sharding")
    symbol = None if match[1] is None else match[1].strip('"')
    return symbol, match[2] or "", match[3]


def _dimensions(
    text: str, dimensions: str, sizes: Mapping[str, int]
) -> tuple[tuple[Axis, ...], ...]:
    found = []
    for entry in _DIMENSION.findall(dimensions):
        axes = []
        for name, before, size in _AXIS.findall(entry):
            if name not in sizes:
                raise ProgramError(
                    f"sharding: {text!r} names axis {name!r}; the mesh has {sorted(sizes)}"
                )
            axes.append(Axis(name, int(before or 1), int(size or sizes[name])))
        found.append(tuple(axes))
    return tuple(found)
