"""The name of a case."""

from __future__ import annotations

from dataclasses import dataclass

WAYS = ("compiled", "device", "device-compiled")
"""Compiled on tensors of the host; on torch's device `pjrt`, op by op; compiled there."""


@dataclass(frozen=True, order=True)
class Case:
    """One entry of one database, run in one way.

    Attributes:
        database: `"modules"`, `"optimizers"` or `"functions"`.
        entry: the name in the database.
        variant: what of it is run; the words are those of the database's module here.
        way: one of `WAYS`.
    """

    database: str
    entry: str
    variant: str
    way: str

    def __str__(self) -> str:
        return f"{self.database} {self.entry} {self.variant} {self.way}"
