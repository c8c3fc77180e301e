"""Assertions of a model on values that it computes, evaluated after each call with NumPy.

A program cannot raise. What an assertion looks at, often one number, is a result of the program
beside those of the model, and an exported model raises over it as the framework's function would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pjrt_bridge.errors import CheckFailed
from pjrt_bridge.exported.interface import Slot


@dataclass(frozen=True)
class Check:
    """One assertion.

    Attributes:
        value: what it looks at.
        holds: what all elements of that have to be.
        message: of the exception where they are not.
        source: the user's line, where it is known.
    """

    value: Slot
    holds: Literal["nonzero", "zero"]
    message: str
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Data for JSON."""
        return {**vars(self), "value": [self.value.kind, self.value.of]}


def hold(checks: Iterable[Check], value_of: Callable[[Slot], Any]) -> None:
    """Check that checks hold; waits for what they look at.

    Raises:
        CheckFailed: one does not.
    """
    for check in checks:
        found = np.asarray(value_of(check.value))
        wrong = found != 0 if check.holds == "zero" else found == 0
        if wrong.any():
            at = [int(index) for index in np.argwhere(wrong)[0]]
            element = f" at {at}" if at else ""
            where = f" ({check.source})" if check.source else ""
            raise CheckFailed(f"{check.message}: found {found[tuple(at)]}{element}{where}")
