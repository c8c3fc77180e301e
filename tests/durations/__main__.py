"""`python -m tests.durations [--write FILE] [--read FOLDER] [PYTEST ARGUMENTS]`: what tests take.

Runs pytest with the arguments, by default with those of `make test` in one process, and prints by
folder and by file processor seconds of the tests' process and of its children, and seconds by the
clock. `--read` makes the table of what an earlier run has written instead, with `--keep FOLDER` or,
in the workers of `make test`, with

    TEST_DURATIONS_FOLDER=FOLDER PYTEST_ADDOPTS="-p tests.durations.recording" make test

The exit status is pytest's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.durations import recording, table

DEFAULTS = ("-q", "-m", "not slow")


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.durations", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to keep what is read")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="run nothing, read this")
    options, rest = parser.parse_known_args(arguments)
    if options.read is not None:
        return _show(options.read, 0, "an earlier run", options.write)
    given = rest or DEFAULTS
    with tempfile.TemporaryDirectory(prefix="pjrt_bridge-durations-") as temporary:
        folder = Path(options.keep or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pytest", "-p", "tests.durations.recording", *given]
        environment = {**os.environ, recording.FOLDER: str(folder)}
        status = subprocess.run(command, env=environment, check=False).returncode
        return _show(folder, status, f"pytest {' '.join(given)}", options.write)


def _show(folder: Path, status: int, what: str, file: Path | None) -> int:
    head = f"Seconds of {what}, on {os.cpu_count()} cores.\n"
    text = table.dump(table.read(folder), head)
    print(text)
    if file is not None:
        file.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
