"""The name of a case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Case:
    """One operator in one element type: forward, backward, or in place of its input.

    Attributes:
        entry: the name in torch's database, with its variant.
        dtype: without the leading `torch.`.
        direction: `"forward"`, `"backward"` or `"inplace"`.
    """

    entry: str
    dtype: str
    direction: str

    def __str__(self) -> str:
        return f"{self.entry} {self.dtype} {self.direction}"
