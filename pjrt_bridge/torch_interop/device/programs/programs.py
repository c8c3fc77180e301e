"""Programs of operators that are called on resident tensors: traced, compiled and kept.

A call is traced on tensors without memory into a functional graph, in which what it writes into a
storage is a new array for that storage; the graph is compiled as one of torch.compile is. Numbers
that change become arguments when a program was made for one of their values before.
"""

from __future__ import annotations

from contextlib import suppress

from pjrt_bridge.torch_interop.device.programs.call_programs import CallProgram, compiling_alone
from pjrt_bridge.torch_interop.device.programs.call_tracing import NotTraceable, traced
from pjrt_bridge.torch_interop.resident.calls import changing_sizes, shortcuts
from pjrt_bridge.torch_interop.resident.calls.calls import (
    Call,
)
from pjrt_bridge.torch_interop.resident.calls.other_sizes import Resizes
from pjrt_bridge.torch_interop.resident.client.chosen import of_client
from pjrt_bridge.torch_interop.resident.recent import Recent

_VARIANTS = 16
"""Programs for values of numbers that cannot become arguments; further values run in PyTorch."""

_INTEGERS = 4
"""Programs for values of integers, which are constants of a user's code more often than floats,
before they become arguments."""

_LIFTED = 8
"""Programs whose numbers are arguments, for values of those that cannot be."""


class Family:
    """The programs of one key: for values of numbers, and one for all of them.

    Attributes:
        is_traceable: there may be programs.
        reason: why there are none; None where everybody expects that.
    """

    def __init__(self) -> None:
        self._exact: dict[tuple[str, ...], CallProgram] = {}
        self._resizes: dict[tuple[str, ...], Resizes] = {}
        self._lifted: list[CallProgram] = []
        self._cannot_lift = False
        self.is_traceable = True
        self.reason: str | None = None

    def find(self, call: Call) -> CallProgram | Resizes | None:
        """A program for a call, or what to resize before; None where PyTorch has to run it."""
        # Zeros of either sign are equal, and NaN is not equal to itself.
        key = tuple(map(repr, call.numbers))
        found = self._exact.get(key) or self._resizes.get(key)
        if found is None:
            found = next((item for item in self._lifted if item.serves(call.numbers)), None)
        if found is None and self.is_traceable:
            found = self._make(call, key)
        return found

    def _make(self, call: Call, key: tuple[str, ...]) -> CallProgram | Resizes | None:
        constants = 1 if any(type(item) is float for item in call.numbers) else _INTEGERS
        if call.moves:
            constants = 0
        with compiling_alone():
            if len(self._exact) >= constants and not self._cannot_lift:
                with suppress(NotTraceable, Resizes):
                    lifted = traced(call, lifted=True)
                    if lifted.serves(call.numbers) and lifted.compiler.lowers(lifted.module):
                        self._lifted.append(lifted)
                        self._cannot_lift = len(self._lifted) >= _LIFTED
                        return lifted
                self._cannot_lift = True
            if call.moves or len(self._exact) >= _VARIANTS:
                return None
            try:
                found = self._exact[key] = traced(call, lifted=False)
            except NotTraceable as error:
                self.is_traceable = False
                self.reason = error.args[0]
                return None
            except Resizes as error:
                # Its traceback holds tensors.
                made = self._resizes[key] = Resizes(error.forms)
                return made
            return found


_families: Recent[Family] = Recent(shortcuts.forget)


def find_family(call: Call) -> Family | None:
    """The programs of calls like this one; None for the first of them."""
    return _families.find(call.key)


def new_family(call: Call) -> Family:
    """A place for the programs of calls like this one."""
    return _families.add(call.key, Family())


@of_client
def forget() -> None:
    """Drop all programs."""
    shortcuts.forget()
    _families.clear()
    changing_sizes.forget()
