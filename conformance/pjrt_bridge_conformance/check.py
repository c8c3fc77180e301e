"""Checks: their names, their requirements, and what they need.

A check is a function of a `Context`. It returns if the requirement that its docstring states holds;
it raises `Fail` if not, `Unsupported` if the plugin reports with a proper error that it lacks the
feature, and `AbsentDevice` if hardware is missing. An `Unimplemented` that a plugin returns counts
as `Unsupported`, and so do the bridge's `UnsupportedDtype` for an element type that is newer than
the plugin, and `ExtensionUnavailable`; any other exception is a failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from pjrt_bridge_conformance.context import Context

Item = TypeVar("Item")


class Needs(IntEnum):
    """What a check needs before it can run; each includes the ones before it."""

    NOTHING = 0
    LIBRARY = 1
    CLIENT = 2


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: `group.what`, or `group.what.case` for one of a family.
        group: the part of the interface that it belongs to.
        sentence: what must hold.
        needs: what it needs before it can run.
        function: performs the check.
    """

    name: str
    group: str
    sentence: str
    needs: Needs
    function: Callable[[Context], None]


class Group:
    """The checks of one part of the interface, in the order in which they were written.

    Args:
        name: of the group; several groups may share it.
        needs: what its checks need, unless one says otherwise.

    Attributes:
        checks: the checks.
    """

    def __init__(self, name: str, *, needs: Needs = Needs.CLIENT) -> None:
        self.name = name
        self.needs = needs
        self.checks: list[Check] = []

    def check(self, function: Callable[[Context], None]) -> Callable[[Context], None]:
        """Register a function as a check; its docstring's first line says what must hold."""
        self.add(function.__name__, _sentence(function), function)
        return function

    def each(
        self, items: Iterable[Item]
    ) -> Callable[[Callable[[Context, Item], None]], Callable[[Context, Item], None]]:
        """Register a function of a context and an item as one check for each item."""

        def register(
            function: Callable[[Context, Item], None],
        ) -> Callable[[Context, Item], None]:
            for item in items:
                self.add(
                    f"{function.__name__}.{item}",
                    f"{_sentence(function).removesuffix('.')}: {item}.",
                    _bound(function, item),
                )
            return function

        return register

    def add(self, name: str, sentence: str, function: Callable[[Context], None]) -> None:
        """Register a check under a name within the group.

        Raises:
            ValueError: the group has one of this name already.
        """
        full = f"{self.name}.{name}"
        if any(check.name == full for check in self.checks):
            raise ValueError(f"there are two checks with the name {full}")
        self.checks.append(Check(full, self.name, sentence, self.needs, function))


def _sentence(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _bound(function: Callable[[Context, Item], None], item: Item) -> Callable[[Context], None]:
    return lambda context: function(context, item)
