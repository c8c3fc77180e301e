"""How much of a test runs: a part in `make test`, all of it in `make test-full`.

What takes a part says how it is chosen, so that every kind stays in both.
"""

from __future__ import annotations

import pytest

_PART = 3
"""One example in so many is tried in `make test`."""

_LEAST = 8
"""Examples that are tried in any case."""

_everything = True


def decide(config: pytest.Config) -> None:
    """Take everything unless slow tests are left out."""
    global _everything
    _everything = "not slow" not in config.getoption("markexpr")


def everything() -> bool:
    """Whether slow tests run."""
    return _everything


def examples(count: int) -> int:
    """How many of so many examples a property-based test of costly ones tries."""
    return count if _everything else min(count, max(_LEAST, count // _PART))
