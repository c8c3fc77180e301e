"""Windows of elements, written into an array by a call (`aten/native/windows.c`).

XLA's CPU compiler converts an array of half precision to float32 and back to write a part of it,
fuses a write into each loop that reads the result, which copies the array as often, and writes at
several positions in a loop that calls a function for each. The call writes in the array's own
memory, where nothing else reads that, and nothing but the windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.windows.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 14
"""Bytes of an array from which on it is worth a call."""


def can_write(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "WRITE_WINDOWS")


def is_worth_it(x: Value, least: int = LEAST) -> bool:
    """Whether an array of at least so many bytes is written to by a call."""
    return x.dtype.bits >= 8 and x.rank > 0 and x.size * x.dtype.bits >= 8 * least


def write(
    b: Builder, x: Value, dims: Sequence[int], positions: Value, windows: Value, counting: int
) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: an array of elements of whole bytes.
        dims: those that positions name; in the others windows begin at 0.
        positions: (count, len(dims)), int64.
        windows: their dimensions are those of `x`, with one of `count` among them.
        counting: which one that is.

    Returns:
        `x` with the windows that lie in it; of those that overlap, the last.
    """
    config: dict[str, Any] = {"how": np.array([counting, *dims], np.int64)}
    (written,) = b.custom_call(
        TARGET, [x, positions, windows], [x.type], backend_config=config, in_place={0: 0}
    )
    return written
