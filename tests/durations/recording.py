"""A plugin of pytest: writes what each test took into a folder, a file for each process.

Children are counted when they have ended and were waited for: those of a fixture with the test that
uses it last, and those that live as long as the process in a line of their own.
"""

from __future__ import annotations

import atexit
import os
import resource
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = "TEST_DURATIONS_FOLDER"
"""The variable that names the folder; without it nothing is written."""

REST = "(processes that end with the run)"


@dataclass(frozen=True)
class Used:
    """Seconds since some moment.

    Attributes:
        own: processor seconds of this process.
        children: processor seconds of its children.
        wall: by the clock.
    """

    own: float
    children: float
    wall: float

    @staticmethod
    def now() -> Used:
        """What was used until now."""
        found = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own, children = (usage.ru_utime + usage.ru_stime for usage in found)
        return Used(own, children, time.perf_counter())

    def line(self, since: Used, name: str) -> str:
        """What was used since then, as `table.read` takes it."""
        own, children = self.own - since.own, self.children - since.children
        return f"{own:.3f}\t{children:.3f}\t{self.wall - since.wall:.3f}\t{name}\n"


@cache
def _file() -> Path | None:
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    atexit.register(_write_rest)
    return Path(folder, f"{os.getpid()}.tsv")


def _write(line: str) -> None:
    path = _file()
    if path is not None:
        with path.open("a") as file:
            file.write(line)


_last = Used.now()


def _write_rest() -> None:
    now = Used.now()
    # What this process itself does at its end belongs to no test.
    _write(Used(_last.own, now.children, _last.wall).line(_last, REST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Take the time of a test with its fixtures."""
    global _last
    # Handlers at the exit run in reverse order: this one after those that end processes.
    _file()
    before = Used.now()
    result = yield
    _last = Used.now()
    _write(_last.line(before, item.nodeid))
    return result
