"""What is said of the compiled module of the path of one call, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt_bridge.runtime import native
from tests.plugins import require_dispatcher

require_dispatcher()

# As in an environment where the module could not be built.
MISSING = """
import sys
sys.modules["pjrt_bridge.runtime.dispatch._dispatch"] = None
import pjrt_bridge
from pjrt_bridge.runtime import native
assert native.module is None
pjrt_bridge.client("reference")
pjrt_bridge.client("reference")
print(native.description())
"""


def run(cache: Path | str, **variables: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", MISSING],
        env=os.environ | {"PJRT_BRIDGE_CACHE": str(cache)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_description_of_the_compiled_module() -> None:
    assert native.description() == "C"


def test_a_missing_module_is_told_once_for_all_processes_of_an_environment(tmp_path: Path) -> None:
    shown, said = run(tmp_path / "cache")
    assert said.count("compiled module of pjrt_bridge is missing") == 1
    assert "apt install gcc" in said
    assert shown.startswith("Python (slow): the compiled module is missing")
    assert "pip install" in shown
    assert "missing" not in run(tmp_path / "cache")[1]


def test_without_a_cache_folder_each_process_says_it() -> None:
    for _ in range(2):
        assert run("off")[1].count("is missing") == 1


def test_who_asked_for_python_is_not_warned(tmp_path: Path) -> None:
    shown, said = run(tmp_path / "cache", PJRT_BRIDGE_DISPATCH="python")
    assert said == ""
    assert shown.strip() == "Python (slow): PJRT_BRIDGE_DISPATCH=python asks for it"


@pytest.mark.parametrize("command", [["plugins"], ["inspect", "reference"]], ids=" ".join)
def test_the_command_line_says_how_calls_are_dispatched(command: list[str]) -> None:
    arguments = [sys.executable, "-m", "pjrt_bridge", *command]
    for variable, expected in (("c", "C"), ("python", "Python (slow)")):
        environment = os.environ | {"PJRT_BRIDGE_DISPATCH": variable, "COLUMNS": "200"}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if "dispatch" in line]
        assert expected in line
