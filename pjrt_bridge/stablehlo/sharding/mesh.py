"""Mesh: the devices of one program as a grid with named axes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.wrong_arguments import checked_methods

_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_NAME = re.compile(r"[A-Za-z_]\w*")

SYMBOL = "mesh"
"""Name of the mesh in programs that the bridge annotates."""


@checked_methods
@dataclass(frozen=True)
class Mesh:
    """Devices in a grid; partition `p` of a program runs at position `p`, the last axis fastest.

    Attributes:
        axes: name and size of each axis, in order.
        listed: the same as text: `dp=2,tp=2`.

    Raises:
        ProgramError: a name twice or one that is no identifier, a size below 1.
    """

    axes: tuple[tuple[str, int], ...]
    listed: str = field(init=False, repr=False, compare=False)

    @staticmethod
    def of(sizes: Mapping[str, int]) -> Mesh:
        """A mesh of axes by their sizes."""
        return Mesh(tuple(sizes.items()))

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise ProgramError(f"mesh: found the axes {names}, expected each once")
        for name, size in self.axes:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ProgramError(f"mesh: found the axis {name!r}, expected an identifier")
            if type(size) is not int or size < 1:
                raise ProgramError(
                    f"mesh: axis {name!r}: found size {size!r}, expected an integer from 1 up"
                )
        # Dynamo would not make it of sizes, which are other ones in another call.
        listed = ",".join(f"{name}={size}" for name, size in self.axes)
        object.__setattr__(self, "listed", listed)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis by its name."""
        return dict(self.axes)

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(size for _, size in self.axes)

    @property
    def text(self) -> str:
        """The mesh as Shardy writes it: `<["dp"=2, "tp"=2]>`."""
        axes = ", ".join(f'"{name}"={size}' for name, size in self.axes)
        return f"<[{axes}]>"

    def coordinates(self, position: int) -> dict[str, int]:
        """Where a position is along each axis."""
        found = {}
        for name, size in reversed(self.axes):
            position, found[name] = divmod(position, size)
        return found

    @staticmethod
    def read(text: str) -> Mesh:
        """A mesh from what `listed` gives.

        Raises:
            ProgramError: another notation, or a mesh that cannot be.
        """
        sizes: list[tuple[str, int]] = []
        for item in text.split(","):
            name, equals, size = item.partition("=")
            if not equals or not size.strip().isdecimal():
                raise ProgramError(f"mesh: found {text!r}, expected axes such as dp=2,tp=4")
            sizes.append((name.strip(), int(size)))
        return Mesh(tuple(sizes))

    def __str__(self) -> str:
        return "Mesh(" + ", ".join(f"{name}={size}" for name, size in self.axes) + ")"


def axes_in(text: str) -> dict[str, int]:
    """Sizes of a mesh's axes from the text of its attribute: `#sdy.mesh<["x"=2, "y"=4]>`."""
    return {name: int(size) for name, size in _AXIS.findall(text)}
