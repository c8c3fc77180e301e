"""A plugin of pytest: writes the names of tests that fail into a file, one a line."""

from __future__ import annotations

import os

import pytest

FILE = "PLANTED_FAILURES"
"""The variable that names the file."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure of a test or of its fixtures."""
    if report.failed:
        with open(os.environ[FILE], "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")
