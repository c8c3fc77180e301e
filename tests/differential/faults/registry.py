"""Faults by name, and what programs show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Fault = Callable[[], AbstractContextManager[None]]


class Registry:
    """Faults that may be planted.

    Attributes:
        faults: by name; each is in place while its context is entered.
        wanted: for faults that not every program may show, features of those that may.
        modes: for faults that not every mode may show, those that may.
    """

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.wanted: dict[str, tuple[str, ...]] = {}
        self.modes: dict[str, tuple[str, ...]] = {}

    def fault(self, function: Callable[[], Iterator[None]]) -> Fault:
        """Register a fault."""
        made = contextmanager(function)
        self.faults[function.__name__] = made
        return made

    def fault_of(
        self, *features: str, modes: tuple[str, ...] = ()
    ) -> Callable[[Callable[[], Iterator[None]]], Fault]:
        """Register a fault that only programs with some features, or some modes, may show."""

        def register(function: Callable[[], Iterator[None]]) -> Fault:
            self.wanted[function.__name__] = features
            self.modes[function.__name__] = modes
            return self.fault(function)

        return register

    def plant(self, name: str) -> AbstractContextManager[None]:
        """The fault of a name; of no name, none."""
        return self.faults[name]() if name else nullcontext()


TORCH = Registry()
"""Of the backend of torch.compile."""

fault, fault_of, plant = TORCH.fault, TORCH.fault_of, TORCH.plant
FAULTS, WANTED, MODES = TORCH.faults, TORCH.wanted, TORCH.modes
