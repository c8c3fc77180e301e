"""Runs cases of the matrix in this process: one line of JSON in, one out.

`python -m tests.faults.worker [PLUGIN]` first writes the cases that learn what each operation
calls, then answers each line that names a case.
"""

from __future__ import annotations

import sys

from pjrt_bridge import child_processes
from tests.faults import world
from tests.faults.case import Case
from tests.faults.operations import OPERATIONS
from tests.faults.running import run_case
from tests.sweeping import worker


def main() -> None:
    """Serve until standard input ends."""
    stream = child_processes.answers()
    for plugin in sys.argv[1:]:
        world.use(plugin)
    worker.serve(stream, Case, [Case(name, "", "record") for name in OPERATIONS], run_case)


if __name__ == "__main__":
    sys.exit(main())
