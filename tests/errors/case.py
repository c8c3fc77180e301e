"""The name of a case."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("own", "empty", "dtypes", "indices")
"""What is wrong with the arguments: see `tests.errors.calls`."""


@dataclass(frozen=True, order=True)
class Case:
    """One operator with one kind of arguments that it may refuse.

    Attributes:
        entry: the name in torch's database, with its variant.
        kind: of `KINDS`.
    """

    entry: str
    kind: str

    def __str__(self) -> str:
        return f"{self.entry} {self.kind}"
