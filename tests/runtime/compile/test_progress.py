"""What takes long is said on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

PROGRAM = """
import sys, time
from pjrt_bridge.runtime.compile import progress
progress.DELAY = {patience}
with progress.working("compile the universe"):
    time.sleep({seconds})
print("done")
"""


def on_a_terminal(program: str) -> str:
    """What a program writes to standard error if that is a terminal."""
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(follower)
    found = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:
            break
        if not data:
            break
        found += data
    os.close(leader)
    assert done.wait(60) == 0
    return found.decode()


def in_a_file(program: str) -> str:
    """The same if it is none."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "done\n"
    return done.stderr


@pytest.mark.parametrize(
    ("where", "patience", "seconds", "said"),
    [
        (on_a_terminal, 0.05, 0.8, True),
        (on_a_terminal, 30, 0.1, False),
        (in_a_file, 0.05, 0.8, False),
    ],
)
def test_what_takes_long_is_said_on_a_terminal(
    where: Callable[[str], str], patience: float, seconds: float, said: bool
) -> None:
    found = where(PROGRAM.format(patience=patience, seconds=seconds))
    assert ("compile the universe" in found) == said
    if not said:
        assert found == ""


def test_a_line_in_a_file_where_the_user_has_to_know() -> None:
    program = PROGRAM.format(patience=0.05, seconds=0.8)
    told = program.replace('universe")', 'universe", in_files=True)')
    assert in_a_file(told) == "pjrt_bridge: compile the universe\n"
    closed = told.replace("with progress", "sys.stderr.close()\nwith progress")
    assert "closed" not in in_a_file(closed)
    assert in_a_file(told.replace("with progress", "sys.stderr = None\nwith progress")) == ""


def test_an_exception_passes() -> None:
    program = PROGRAM.format(patience=0.01, seconds=0.3).replace("time.sleep(0.3)", "1 / 0")
    program = f"try:\n    exec({program!r})\nexcept ZeroDivisionError:\n    print('done')"
    assert on_a_terminal(program) == ""


def test_another_text_is_said_from_then_on() -> None:
    program = PROGRAM.format(patience=0.05, seconds=0.4)
    told = program.replace('universe")', 'universe", in_files=True, delay=0) as say').replace(
        "    time.sleep", "    say('compile the rest')\n    time.sleep"
    )
    lines = ["pjrt_bridge: compile the universe", "pjrt_bridge: compile the rest"]
    assert in_a_file(told).splitlines() == lines
    assert "compile the rest" in on_a_terminal(told)
    late = told.replace("delay=0", "delay=0.1")
    assert in_a_file(late).splitlines() == lines[1:]
