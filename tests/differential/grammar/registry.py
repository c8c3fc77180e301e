"""Productions: each makes a statement of what a draft has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.differential.draft import Draft
from tests.differential.ir import Operand, Statement


@dataclass(frozen=True)
class Made:
    """What a production gives.

    Attributes:
        text: of the statement.
        operands: of it.
        makes: the kind of variable that it makes: "v" for a value, empty for an effect.
        rough: its result is rounded.
        drawn: its result is random.
        guard: a condition in Python.
    """

    text: str
    operands: tuple[Operand, ...]
    makes: str = "v"
    rough: bool = False
    drawn: bool = False
    guard: str = ""
    features: tuple[str, ...] = ()


Production = Callable[[Draft], Made]

PRODUCTIONS: dict[str, dict[str, tuple[Production, float]]] = {}
"""By family and name, with weights."""


def production(
    family: str, name: str = "", weight: float = 1.0
) -> Callable[[Production], Production]:
    """Register a production."""

    def register(function: Production) -> Production:
        chosen = name or function.__name__.strip("_")
        PRODUCTIONS.setdefault(family, {})[chosen] = (function, weight)
        return function

    return register


def apply(draft: Draft, family: str, name: str) -> bool:
    """Try to add what a production makes; whether it was added.

    Raises:
        Unfit: there is nothing for it.
    """
    made = PRODUCTIONS[family][name][0](draft)
    statement = Statement(
        made.text,
        made.operands,
        draft.new() if made.makes else "",
        made.guard,
        (f"{family}.{name}", *made.features),
    )
    if family == "errors":
        return draft.add_failing(statement)
    return draft.add(statement, made.rough, made.drawn)
