"""What tests take is attributed to the tests that take it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.durations import table
from tests.durations.recording import REST

ROOT = Path(__file__).parents[2]

TESTS = """
import atexit, subprocess, sys, time

BUSY = "import time\\nend = time.process_time() + 0.4\\nwhile time.process_time() < end: pass"

def test_own():
    exec(BUSY)

def test_child():
    subprocess.run([sys.executable, "-c", BUSY], check=True)

def test_wall():
    time.sleep(0.4)

def test_child_that_lives_on():
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    atexit.register(process.wait)
"""


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, table.Sum]:
    """By test."""
    folder = tmp_path_factory.mktemp("durations")
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "tests.durations", "--keep", str(folder / "kept")]
    command += [f"--write={folder / 'table.txt'}", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder / "test_it.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "table.txt").read_text() in done.stdout
    return table.sums(table.read(folder / "kept"), lambda name: name.rpartition("::")[2])


def test_own_seconds_and_those_of_children_are_told_apart(seconds: dict[str, table.Sum]) -> None:
    assert seconds["test_own"].own >= 0.4
    assert seconds["test_own"].children == 0
    assert seconds["test_child"].children >= 0.4 > seconds["test_child"].own
    assert seconds["test_wall"].wall >= 0.4 > seconds["test_wall"].processor


def test_a_child_that_outlives_its_test_is_counted(seconds: dict[str, table.Sum]) -> None:
    assert seconds["test_child_that_lives_on"].children == 0
    assert seconds[REST].children >= 0.4


def test_folders_and_files_are_summed() -> None:
    lines = [
        ("tests/a/test_x.py::one", 1.0, 2.0, 4.0),
        ("tests/a/test_x.py::two", 1.0, 0.0, 1.0),
        ("tests/a/test_y.py::one", 5.0, 0.0, 5.0),
    ]
    assert table.sums(lines, table.folder_of) == {"tests/a": table.Sum(7.0, 2.0, 10.0, 3)}
    assert list(table.sums(lines, table.file_of)) == ["tests/a/test_y.py", "tests/a/test_x.py"]
    assert "       9.0       7.0       2.0      10.0      3  all" in table.dump(lines, "head\n")
