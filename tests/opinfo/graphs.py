"""What became of the graphs of a compiled function, as one record."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pjrt_bridge.mixed.obstacle import Obstacle
from pjrt_bridge.torch_interop import records

_ARGUMENT = re.compile(r"(arg|primals|tangents)\w*_\d+")


@dataclass(frozen=True)
class Placed:
    """Where one graph runs.

    Attributes:
        device: parts of it that run on the device.
        host: sorted names of the operators that PyTorch runs, or the reason where it is none.
    """

    device: int
    host: tuple[str, ...]


def take() -> list[Placed]:
    """The graphs that were compiled since the last call, oldest first; they are forgotten.

    The only place here that knows how the backend reports.
    """
    found = [
        Placed(graph.on_device, tuple(sorted({_name(obstacle) for obstacle in graph.obstacles})))
        for graph in records.compiled_graphs()
    ]
    records.forget()
    return found


def _name(obstacle: Obstacle) -> str:
    """The operator in the way, else the kind of reason."""
    if obstacle.kind == "small":
        return "views"
    if _ARGUMENT.fullmatch(obstacle.operator):
        return "an-argument"
    return obstacle.operator.replace(" ", "-") or obstacle.kind
