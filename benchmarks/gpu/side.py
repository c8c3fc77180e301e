"""What a side is to the worker, and how results are brought to the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Side:
    """A work that one side has made ready.

    Attributes:
        call: does it once, without waiting for the device; gives the result.
        wait: until a result, and all before it, are there.
        floats: what is compared of a result, on the host.
        again: is called between calls whose results are compared: decoding begins with the same
            token then, not with the one that it has chosen.
        memory: bytes that the device's allocator has given away and taken at most; empty where it
            does not tell.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], object]
    floats: Callable[[Any], Floats]
    again: Callable[[], object]
    memory: Callable[[], dict[str, int]]


def peaks(stats: Mapping[str, int]) -> dict[str, int]:
    """Of what PJRT tells of a device's memory."""
    names = {"used": "peak_bytes_in_use", "taken": "peak_pool_bytes"}
    return {name: stats[told] for name, told in names.items() if told in stats}
