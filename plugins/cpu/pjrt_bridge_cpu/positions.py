"""Checks of positions, by a custom call that fails the program (`aten/native/positions.c`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.positions.1"
"""Name of the custom call. Its number changes with what it is given."""

_CHECKED = ("int32", "int64")


class CheckedPositions(Kernels):
    """Positions that are looked at while they are copied.

    Attributes:
        can_check: the client's plugin makes the custom call.
    """

    can_check = False

    def checked_positions(self, b: Builder, x: Value, low: int, high: int, where: str) -> Value:
        """See `Kernels`."""
        if not self.can_check or x.dtype.name not in _CHECKED or not x.size:
            return super().checked_positions(b, x, low, high, where)
        config: dict[str, Any] = {"range": np.array([low, high], np.int64), "where": where}
        # A compiler may find that no result depends on a position, such as one of a single row.
        (checked,) = b.custom_call(
            TARGET, [x], [x.type], backend_config=config, has_side_effect=True
        )
        return checked


def can_check(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "CHECK_POSITIONS")
