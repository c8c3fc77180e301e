"""Drawing which device holds which part of a tensor."""

from __future__ import annotations

import html
from dataclasses import dataclass

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.sharding.marking import sharding_of

_COLORS = 12


@dataclass(frozen=True)
class ShardDrawing:
    """The parts of a tensor, and who holds them: text when printed, a table in a notebook.

    Attributes:
        title: shape, element type and sharding.
        rows: the parts in order, those of one part of the first dimension beside each other: which
            elements they are, and the positions in the mesh that hold them.
    """

    title: str
    rows: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]

    def __str__(self) -> str:
        cells = [[f"{part} on {_listed(held)}" for part, held in row] for row in self.rows]
        width = max(len(cell) for row in cells for cell in row)
        line = "+".join(["", *["-" * (width + 2)] * len(cells[0]), ""])
        drawn = [line]
        for row in cells:
            drawn += ["|".join(["", *(f" {cell:<{width}} " for cell in row), ""]), line]
        return "\n".join([self.title, *drawn])

    def _repr_html_(self) -> str:
        """The table, in a colour for each set of devices."""
        sets = list(dict.fromkeys(held for row in self.rows for _, held in row))
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td style="padding:8px 14px;border:1px solid #888;color:#111;background:hsl('
                f'{sets.index(held) * 360 // max(len(sets), _COLORS)},70%,85%)">{html.escape(part)}'
                f"<br><b>{_listed(held)}</b></td>"
                for part, held in row
            )
            + "</tr>"
            for row in self.rows
        )
        return (
            f'<table style="border-collapse:collapse"><caption>{html.escape(self.title)}</caption>'
            f"{rows}</table>"
        )


def visualize(tensor: torch.Tensor) -> ShardDrawing:
    """Draw which device holds which part of a tensor.

    Args:
        tensor: of device `pjrt`, divided over a mesh.

    Raises:
        DeviceError: a tensor that is not divided, or of another device.
    """
    sharding = sharding_of(tensor)
    if sharding is None:
        raise DeviceError(
            f"visualize: found a tensor of shape {tuple(tensor.shape)} on one device, expected one "
            f"that is divided over a mesh of device {NAME!r}"
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    return ShardDrawing(
        f"{kind}{list(tensor.shape)}, {sharding}", _rows(sharding, tuple(tensor.shape))
    )


def _rows(
    sharding: Sharding, shape: tuple[int, ...]
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]:
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for position in range(sharding.mesh.size):
        part = tuple((one.start, one.stop) for one in sharding.indices(shape, position))
        holders.setdefault(part, []).append(position)
    rows: dict[tuple[tuple[int, int], ...], list[tuple[str, tuple[int, ...]]]] = {}
    for part, held in sorted(holders.items()):
        text = ", ".join(f"{start}:{stop}" for start, stop in part)
        rows.setdefault(part[:1], []).append((f"[{text}]", tuple(held)))
    return tuple(map(tuple, rows.values()))


def _listed(positions: tuple[int, ...]) -> str:
    several = "s" if len(positions) > 1 else ""
    return f"device{several} {', '.join(map(str, positions))}"
