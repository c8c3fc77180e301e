"""Damaged and hostile inputs end no process, and raise nothing but errors of the bridge."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.attacks.case import cases
from tests.attacks.sweep import start, table
from tests.plugins import run_python
from tests.sweeping.worker import run

PART = 25
"""In a short run one attack in so many."""


def test_a_few() -> None:
    results = list(run(start, cases(PART), 1))
    assert [f"{item.case}: {problem}" for item in results for problem in item.problems] == []
    assert len(results) > 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all() -> None:
    results = list(run(start, cases(), os.cpu_count() or 1))
    print(table(results))
    assert [f"{item.case}: {problem}" for item in results for problem in item.problems] == []
    assert len(results) >= 1500


def test_each_subject_may_be_the_first_of_a_process() -> None:
    """A client compiles programs of its own at first, which are not to be taken for others."""
    run_python(
        "from tests.attacks import files\nwith warnings.catch_warnings():\n"
        "    warnings.simplefilter('ignore')\n    files.cache_entries(32)",
        prelude="import warnings\n",
    )


def test_the_command_says_what_there_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "damaged and hostile inputs" in done.stdout
    assert "wrong_arguments" in done.stdout
