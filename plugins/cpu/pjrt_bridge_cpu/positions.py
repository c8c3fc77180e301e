"""Checks of positions, by a custom call that fails the program (`aten/native/positions.c`)."""

from __future__ import annotations

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.positions.3"
"""Name of the custom call. Its number changes with what it is given."""

_CHECKED = ("int32", "int64")


class CheckedPositions(Kernels):
    """Positions that are looked at while they are copied, where the plugin makes the call."""

    def checked_positions(
        self,
        b: Builder,
        x: Value,
        low: int | Value,
        high: int | Value,
        where: str,
        refusal: str | None = None,
    ) -> Value:
        """See `Kernels`."""
        if not self.can_check or x.dtype.name not in _CHECKED or not x.size:
            return super().checked_positions(b, x, low, high, where, refusal)
        ends = [
            b.reshape(end, (1,))
            if isinstance(end, Value)
            else b.constant(np.array([end], np.int64))
            for end in (low, high)
        ]
        # A compiler may find that no result depends on a position, such as one of a single row.
        (checked,) = b.custom_call(
            TARGET,
            [x, b.concatenate(ends, 0)],
            [x.type],
            backend_config={"where": where} | ({"refusal": refusal} if refusal else {}),
            has_side_effect=True,
        )
        return checked


def can_check(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "CHECK_POSITIONS")
