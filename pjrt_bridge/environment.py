"""Environment variables of the bridge: how their values are read.

Every variable, and what it does, is listed in docs/process.md.
"""

from __future__ import annotations

import os

from pjrt_bridge.errors import VariableError

BACKGROUND_VARIABLE = "PJRT_BRIDGE_BACKGROUND"
"""`off`: what would be tried in the background is tried before it is first needed."""

_OFF = ("off", "0", "no", "false")
_ON = ("", "on", "1", "yes", "true")


def value(variable: str) -> str:
    """The value of a variable without spaces around it; empty where it is not set."""
    return os.environ.get(variable, "").strip()


def is_off(variable: str) -> bool:
    """Whether a variable turns off what it stands for: `off`, `0`, `no` or `false`.

    Raises:
        VariableError: it turns it neither off nor on.
    """
    if names_off(variable):
        return True
    if value(variable).lower() not in _ON:
        raise VariableError(
            f"{variable}: found {value(variable)!r}, expected off, 0, no or false, or on, 1, yes "
            "or true, which is as if it were not set"
        )
    return False


def names_off(variable: str) -> bool:
    """The same of a variable whose other values name something, such as a folder."""
    return value(variable).lower() in _OFF


def choice(variable: str, expected: tuple[str, ...]) -> str:
    """Which of several values a variable has, in any case; the first where it is not set.

    Raises:
        VariableError: it has none of them.
    """
    found = value(variable).lower() or expected[0]
    if found not in expected:
        raise VariableError(
            f"{variable}: found {value(variable)!r}, expected "
            f"{', '.join(expected[:-1])} or {expected[-1]}"
        )
    return found
