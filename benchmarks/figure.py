"""One number that somebody asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One number that is asked for.

    Attributes:
        what: it says.
        found: the number.
        asked: at most this.
        unit: of both.
        sides: what it was made of.
    """

    what: str
    found: float
    asked: float
    unit: str
    sides: str
