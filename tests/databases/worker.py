"""Runs cases in this process: one line of JSON in, one out; see `tests.sweeping.worker`."""

from __future__ import annotations

from pjrt_bridge.torch_interop.device import use
from tests.databases import sweep
from tests.databases.case import Case
from tests.opinfo import cases
from tests.sweeping import torch_worker, worker


def main() -> None:
    """Serve until standard input ends."""
    stream = torch_worker.begin()
    cases.prepare()
    use("cpu")
    worker.serve(stream, Case, sweep.all_cases(), sweep.run)


if __name__ == "__main__":
    main()
