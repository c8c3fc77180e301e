"""One case of the matrix: an operation under a fault."""

from dataclasses import dataclass

NOT_HERE = "not here: "
"""What the outcome of an operation begins with that a plugin does not have, without a fault."""


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        operation: name of it.
        function: where the fault is; empty to run without one.
        kind: of the fault, see `tests.faults.faulty.Fault`; `"record"` to learn what is called.
    """

    operation: str
    function: str
    kind: str

    def __str__(self) -> str:
        return f"{self.operation} {self.function} {self.kind}"
