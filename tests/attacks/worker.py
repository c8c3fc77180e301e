"""Runs attacks in this process: one line of JSON in, one out."""

from __future__ import annotations

import os
import sys
import tempfile

# Nothing of the user's is read or written.
os.environ["PJRT_BRIDGE_CACHE"] = os.environ["PJRT_BRIDGE_CALIBRATION"] = "off"
os.environ["PJRT_BRIDGE_ATEN"] = "off"

from pjrt_bridge import child_processes
from tests.attacks.case import Case, judge
from tests.sweeping import worker


def main() -> None:
    """Serve until standard input ends."""
    stream = child_processes.answers()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        worker.serve(stream, Case, [], judge)
        os.chdir("/")


if __name__ == "__main__":
    sys.exit(main())
