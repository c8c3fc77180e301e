"""What runner and workers say to each other, as lines of JSON."""

from __future__ import annotations

import base64
import pickle
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.differential.ir import Program
from tests.differential.modes import Mode


@dataclass(frozen=True)
class Request:
    """What a worker is to run: a generated program in some modes, or a given one in one mode.

    Attributes:
        seed: of the run.
        index: of the program.
        count: of modes.
        only: names of modes to choose from.
        given: a program and a mode, packed.
        planted: name of a fault to plant before.
        ignored: kinds of differences that are left out.
    """

    seed: int = 0
    index: int = 0
    count: int = 2
    only: tuple[str, ...] = ()
    given: str = ""
    planted: str = ""
    ignored: tuple[str, ...] = ()


@dataclass
class Found:
    """A difference from eager mode that is the backend's, or a process that ended.

    Attributes:
        mode: in which it is, packed.
        mode_name: of it.
        severity: "wrong", "layout", or "shared" where PyTorch's own compiler is wrong, too.
        kind: of the difference, which shrinking keeps.
        text: what it is.
        others: further differences.
    """

    mode: str
    mode_name: str
    severity: str
    kind: str
    text: str
    others: list[str] = field(default_factory=list)


@dataclass
class Answer:
    """What became of a program.

    Attributes:
        failures: one for each mode that failed.
        features: of the program.
        modes: in which it ran.
        refused: modes in which it could not run, with the reason.
        torches: differences that torch has without the backend, too.
        rounding: differences that are within the rounding of the program.
        raised: eager mode raised.
        programs: device programs that ran.
        statements: of the program.
        seconds: for each mode, and for eager mode.
        invalid: why there was no program; empty where there was one.
    """

    failures: list[Found] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    torches: list[str] = field(default_factory=list)
    rounding: int = 0
    raised: bool = False
    programs: int = 0
    statements: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    invalid: str = ""

    @staticmethod
    def of(values: dict[str, Any]) -> Answer:
        """From what JSON gives."""
        found = Answer(**values)
        found.failures = [Found(**item) for item in values["failures"]]
        return found


def packed(value: Program | Mode | tuple[Program, Mode]) -> str:
    """A value as text."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    """The value again."""
    return pickle.loads(base64.b64decode(text))


def plain(value: Any) -> dict[str, Any]:
    """A message for JSON."""
    return asdict(value)
