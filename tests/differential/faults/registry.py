"""Faults by name, and what programs show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {}
"""By name; each is in place while its context is entered."""


WANTED: dict[str, tuple[str, ...]] = {}
"""For faults of single operators, features of the programs that may show them."""


def fault(function: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
    """Register a fault."""
    made = contextmanager(function)
    FAULTS[function.__name__] = made
    return made


def fault_of(
    *features: str,
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], AbstractContextManager[None]]]:
    """Register a fault that only programs with some features may show."""

    def register(
        function: Callable[[], Iterator[None]],
    ) -> Callable[[], AbstractContextManager[None]]:
        WANTED[function.__name__] = features
        return fault(function)

    return register
