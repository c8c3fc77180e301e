"""What loads the device's code, and registers it, when a process uses the device first.

Only torch is imported here: torch does so whenever it is imported (`autoload`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_CLASSES = ("device_index",)
_ANSWERED_BEFORE = ("current_accelerator", "is_available")

by_operators: list[Any] = []
"""The operator that was called first, if that was the first use of the device.

Its device had its index by then, from torch's C++, which knows of no other than 0 before.
"""

_register: list[Callable[[], None]] = []
_library: list[Any] = []
_replaced: dict[str, Any] = {}


def expect(register: Callable[[], None], is_available: Callable[[], bool]) -> None:
    """Have a function called at the first operator or function of `torch.accelerator`.

    Args:
        register: gives operators of the device their kernels, and calls `forget`.
        is_available: whether `torch.accelerator` is to be about the device.
    """
    _register.append(register)
    library: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    library.fallback(_first_call, "PrivateUse1")
    _library.append(library)
    for name in torch.accelerator.__all__:
        function = getattr(torch.accelerator, name)
        is_class = isinstance(function, type) and name not in _CLASSES
        if callable(function) and not is_class and name not in _ANSWERED_BEFORE:
            _replaced[name] = function
            setattr(torch.accelerator, name, _asking(name, function, is_available))


def begin() -> None:
    """Register the device now; further calls do nothing."""
    for register in tuple(_register):
        register()


def forget() -> None:
    """Leave operators and functions to those that are registered now."""
    _register.clear()
    for name, function in _replaced.items():
        setattr(torch.accelerator, name, function)
    _replaced.clear()
    while _library:
        _library.pop()._destroy()


def _first_call(op: Any, *args: Any, **kwargs: Any) -> Any:
    by_operators.append(op)
    begin()
    return op(*args, **kwargs)


def _asking(name: str, function: Any, is_available: Callable[[], bool]) -> Callable[..., Any]:
    @wraps(function)
    def ask(*args: Any, **kwargs: Any) -> Any:
        if is_available():
            begin()
        # Callers may have imported this function by its name.
        found = function if name in _replaced else getattr(torch.accelerator, name)
        return found(*args, **kwargs)

    return ask
