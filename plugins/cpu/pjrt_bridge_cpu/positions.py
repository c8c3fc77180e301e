"""Checks of positions and divisors, by custom calls that fail the program (`aten/native/`)."""

from __future__ import annotations

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.positions.4"
"""Name of the custom call. Its number changes with what it is given."""

DIVISORS = "pjrt_bridge.divisors.1"
"""Name of the custom call for divisors."""

_CHECKED = ("int32", "int64")

_DONE = TensorType((1,), dtypes.of("bool"))
"""Result of a check: XLA's custom calls have one. It is true."""


class CheckedPositions(Kernels):
    """Positions that are looked at, and divisors while they are copied, where the plugin can."""

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
        # What reads positions is safe at any of them, so nothing waits for the check. It is kept
        # for its effect: no result depends on it.
        b.custom_call(
            TARGET,
            [x, b.concatenate(ends, 0)],
            [_DONE],
            backend_config={"where": where} | ({"refusal": refusal} if refusal else {}),
            has_side_effect=True,
        )
        return x

    def checked_divisors(self, b: Builder, x: Value, where: str) -> Value:
        """See `Kernels`."""
        if not self.can_check or not x.size:
            return super().checked_divisors(b, x, where)
        config = {"where": where}
        (checked,) = b.custom_call(
            DIVISORS, [x], [x.type], backend_config=config, has_side_effect=True
        )
        return checked


def can_check(client: Client) -> bool:
    """Register the custom calls with a client's plugin; whether it makes them."""
    calls = ((TARGET, "CHECK_POSITIONS"), (DIVISORS, "CHECK_DIVISORS"))
    return all(can_call(client, *call) for call in calls)
