"""Runs batches in this process: one line of JSON in, one out."""

from __future__ import annotations

import sys
import warnings

from pjrt_bridge import child_processes
from tests.fuzz.batch import Batch, run_batch
from tests.sweeping import worker


def main() -> None:
    """Serve until standard input ends."""
    stream = child_processes.answers()
    warnings.simplefilter("ignore")
    worker.serve(stream, Batch, [], run_batch)


if __name__ == "__main__":
    sys.exit(main())
