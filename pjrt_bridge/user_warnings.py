"""Warnings at the user's line: the first above the bridge, the frameworks and Python's own modules.

A warning that names a line of the bridge says nothing to its reader, and Python's filters show one
warning for each line that it is given for.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from functools import lru_cache
from types import FrameType

from pjrt_bridge.errors import BridgeWarning

_PACKAGES = frozenset(
    {
        "pjrt_bridge",
        "jax",
        "keras",
        "pluggy",
        "tensorflow",
        "torch",
        *sys.stdlib_module_names,
    }
)


def warn(text: str, category: type[Warning] = BridgeWarning) -> None:
    """Warn of something, at the line of the user's code that led to it.

    Where there is none, as in a thread of a framework, the caller's line is named.
    """
    frame = _frame_of_user() or sys._getframe(1)
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        str(frame.f_globals.get("__name__", "")),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def line_of_caller() -> str:
    """The line of the user's code that runs, as `file:line`; empty in a thread of a framework."""
    frame = _frame_of_user()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _frame_of_user() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _is_of_a_package(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return frame


def line_of(error: BaseException) -> str:
    """The innermost line of the user's code that led to an exception, as `file:line`.

    Libraries over the frameworks count as the user's.
    """
    found = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_of_a_package(str(frame.f_globals.get("__name__", "")))
    ]
    return found[-1] if found else "?"


@lru_cache(4096)
def _is_of_a_package(module: str) -> bool:
    package = module.partition(".")[0]
    # Packages of plugins, too.
    return package in _PACKAGES or package.startswith("pjrt_bridge_")
