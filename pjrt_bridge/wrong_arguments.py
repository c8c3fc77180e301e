"""Texts about arguments of a wrong kind, for the errors that refuse them."""

from __future__ import annotations

import reprlib
from typing import Any


def described(value: Any) -> str:
    """What was given, in a few words: `None`, `7`, or its class where its text says little."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return reprlib.repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def wrong(what: str, value: Any, expected: str) -> str:
    """A sentence that names the argument, what was found, and what is expected."""
    return f"{what}: found {described(value)}, expected {expected}"
