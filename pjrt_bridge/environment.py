"""Environment variables of the bridge: how their values are read.

Every variable, and what it does, is listed in docs/process.md.
"""

from __future__ import annotations

import os

BACKGROUND_VARIABLE = "PJRT_BRIDGE_BACKGROUND"
"""`off`: what would be tried in the background is tried before it is first needed."""

_OFF = ("off", "0", "no", "false")


def value(variable: str) -> str:
    """The value of a variable without spaces around it; empty where it is not set."""
    return os.environ.get(variable, "").strip()


def is_off(variable: str) -> bool:
    """Whether a variable turns off what it stands for: `off`, `0`, `no` or `false`."""
    return value(variable).lower() in _OFF
