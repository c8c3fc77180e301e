"""Programs: what is generated, printed, run and shrunk.

A program is a function `f`, the code that makes its arguments, and a table with a row for each
call. Statements are templates with operands, so that a shrinker can exchange operands and
statements without knowing what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Name:
    """A variable: an argument, a size, a number of the call, or what a statement made."""

    name: str


@dataclass(frozen=True)
class Code:
    """An expression as text, with operands of its own: `{0}.shape[1] // 2`."""

    text: str
    operands: tuple[Operand, ...] = ()


Operand = Any
"""A Name, a Code, or a literal: number, bool, None, text, torch.dtype, slice, list, tuple, dict."""


@dataclass(frozen=True)
class Statement:
    """One line of a program.

    Attributes:
        text: with `{0}`, `{1}` for operands.
        operands: what stands there.
        target: the variable that it makes; empty for an effect only.
        guard: a condition in Python under which it runs, over the same operands.
        features: names of what it exercises.
    """

    text: str
    operands: tuple[Operand, ...] = ()
    target: str = ""
    guard: str = ""
    features: tuple[str, ...] = ()

    def source(self) -> str:
        """The line."""
        line = fill(self.text, self.operands)
        if self.target:
            line = f"{self.target} = {line}"
        if self.guard:
            line = f"if {fill(self.guard, self.operands)}: {line}"
        return line

    def reads(self) -> set[str]:
        """The variables that it uses."""
        return {name.name for name in names(self.operands)}


@dataclass(frozen=True)
class Program:
    """A generated program.

    Attributes:
        columns: what differs from call to call: sizes, and numbers that are arguments.
        calls: a row of values for each call.
        setup: makes the arguments of a call.
        parameters: of `f`, from the setup and the columns.
        body: of `f`.
        result: operands, nested in tuples, lists and dicts.
        backward: how gradients are computed: empty, "backward", "part" (of every other result),
            "grad", "twice" (all calls first).
        afterwards: what the caller does with each result after a call, names in `using`.
        random: it draws numbers; values are not compared.
        where: seed and index.
        features: of the program as a whole.
    """

    columns: tuple[str, ...] = ()
    calls: tuple[tuple[Any, ...], ...] = ((),)
    setup: tuple[Statement, ...] = ()
    parameters: tuple[str, ...] = ()
    body: tuple[Statement, ...] = ()
    result: Operand = None
    backward: str = ""
    afterwards: tuple[str, ...] = ()
    random: bool = False
    where: tuple[int, int] = (0, 0)
    features: frozenset[str] = field(default_factory=frozenset)

    def function(self) -> str:
        """The source of `f`."""
        lines = [f"def f({', '.join(self.parameters)}):"]
        lines += [f"    {statement.source()}" for statement in self.body]
        return "\n".join([*lines, f"    return {shown(self.result)}"])

    def arguments(self) -> str:
        """The source of what makes the arguments of a call, with all that they are made of."""
        lines = [f"def arguments({', '.join(self.columns)}):"]
        lines += [f"    {statement.source()}" for statement in self.setup]
        return "\n".join([*lines, "    return locals()"])

    def source(self) -> str:
        """Both functions."""
        return f"{self.function()}\n\n\n{self.arguments()}\n"

    def used(self) -> frozenset[str]:
        """All features, with those of the statements."""
        found = set(self.features)
        for statement in (*self.setup, *self.body):
            found.update(statement.features)
        return frozenset(found)

    def has(self, wanted: Iterable[str]) -> bool:
        """Whether it has one of these features; `"a+b"` is to have both."""
        used = self.used()
        return any(used.issuperset(item.split("+")) for item in wanted)

    def size(self) -> int:
        """How much there is to read, for the shrinker."""
        gradients = {"": 0, "backward": 1}.get(self.backward, 2)
        around = 10 * (len(self.calls) + len(self.afterwards) + gradients)
        return len(self.source()) + around + sum(len(repr(row)) for row in self.calls)


def fill(text: str, operands: tuple[Operand, ...]) -> str:
    """A template with its operands."""
    return text.format(*map(shown, operands))


def shown(operand: Operand) -> str:
    """An operand as source."""
    if isinstance(operand, Name):
        return operand.name
    if isinstance(operand, Code):
        return fill(operand.text, operand.operands)
    if isinstance(operand, float) and not math.isfinite(operand):
        return f'float("{operand}")'
    if isinstance(operand, slice):
        # In an index; a slice elsewhere is written as Code.
        parts = ["" if part is None else shown(part) for part in (operand.start, operand.stop)]
        return ":".join(parts) + ("" if operand.step is None else f":{shown(operand.step)}")
    if isinstance(operand, tuple):
        inner = ", ".join(map(shown, operand))
        return f"({inner},)" if len(operand) == 1 else f"({inner})"
    if isinstance(operand, list):
        return f"[{', '.join(map(shown, operand))}]"
    if isinstance(operand, dict):
        pairs = (f"{shown(key)}: {shown(value)}" for key, value in operand.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(operand, str):
        return f'"{operand}"'
    if operand is Ellipsis:
        return "..."
    if isinstance(operand, (type(None), bool, int, float, complex, torch.dtype)):
        return repr(operand)
    raise TypeError(f"no operand: {operand!r}")


def index(items: tuple[Operand, ...]) -> Code:
    """What stands between brackets: `n:, 0, ...`."""
    return Code(", ".join(f"{{{at}}}" for at in range(len(items))), items)


_ELEMENT = "{0}[{1}]"


def element(container: Operand, key: Operand) -> Code:
    """What a list, a tuple or a dict holds at a place."""
    return Code(_ELEMENT, (container, key))


def is_element(operand: Operand) -> bool:
    """Whether it is an element of a container."""
    return isinstance(operand, Code) and operand.text == _ELEMENT


def names(operand: Operand) -> Iterator[Name]:
    """The variables in an operand."""
    if isinstance(operand, Name):
        yield operand
    else:
        for part in parts(operand):
            yield from names(part)


def parts(operand: Operand) -> tuple[Operand, ...]:
    """What an operand is directly made of."""
    if isinstance(operand, Code):
        return operand.operands
    if isinstance(operand, slice):
        return (operand.start, operand.stop, operand.step)
    if isinstance(operand, (tuple, list)):
        return tuple(operand)
    if isinstance(operand, dict):
        return tuple(operand.values())
    return ()


def rebuilt(operand: Operand, found: tuple[Operand, ...]) -> Operand:
    """The operand with other parts."""
    if isinstance(operand, Code):
        return Code(operand.text, found)
    if isinstance(operand, slice):
        return slice(*found)
    if isinstance(operand, tuple):
        return found
    if isinstance(operand, list):
        return list(found)
    if isinstance(operand, dict):
        return dict(zip(operand, found, strict=True))
    return operand


def mapped(operand: Operand, change: Callable[[Operand], Operand]) -> Operand:
    """The operand with each part of it changed, innermost first."""
    found = parts(operand)
    if found:
        operand = rebuilt(operand, tuple(mapped(part, change) for part in found))
    return change(operand)


def renamed(operand: Operand, by: Mapping[str, Operand]) -> Operand:
    """The operand with variables replaced."""
    return mapped(operand, lambda part: by.get(part.name, part) if isinstance(part, Name) else part)
