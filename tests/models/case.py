"""The name of a case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Case:
    """One model in one mode.

    Attributes:
        model: its name in the zoo.
        mode: `"inference"`, `"training"`, either with the suffix `-bf16` (autocast) or `-f64`,
            or `"generation"`.
    """

    model: str
    mode: str

    def __str__(self) -> str:
        return f"{self.model} {self.mode}"
