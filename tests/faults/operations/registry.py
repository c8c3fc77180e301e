"""Operations by name, and what all of them use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt_bridge.runtime import Buffer
from tests.faults.world import World

Act = Callable[[], Any]
Operation = Callable[[World], Act]

OPERATIONS: dict[str, tuple[str, Operation]] = {}
"""Name of an operation to the kind of its world, and the function."""


def operation(kind: str = "sharing") -> Callable[[Operation], Operation]:
    """Register an operation under its name, `__` for `/`."""

    def register(function: Operation) -> Operation:
        OPERATIONS[function.__name__.replace("__", "/")] = kind, function
        return function

    return register


def numbers(buffer: Buffer) -> list[Any]:
    """The values of a buffer, by a transfer."""
    return [str(buffer.dtype), buffer.to_numpy().tolist()]


def base() -> np.ndarray[Any, Any]:
    """A small array of integers."""
    return np.arange(12, dtype=np.int32).reshape(3, 4)
