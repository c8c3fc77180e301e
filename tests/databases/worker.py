"""Runs cases in this process: one line of JSON in, one out; see `tests.sweeping.worker`."""

from __future__ import annotations

import logging
import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch

from pjrt_bridge.torch_interop.device import use
from tests.databases import sweep
from tests.databases.case import Case
from tests.dynamo import skip_guard_timing
from tests.opinfo import cases
from tests.sweeping import worker


def main() -> None:
    """Serve until standard input ends."""
    stream = worker.answers()
    warnings.simplefilter("ignore")
    # Torch writes a traceback for each call that its fake tensors refuse.
    logging.disable()
    torch.set_num_threads(1)
    skip_guard_timing()
    cases.prepare()
    use("cpu")
    worker.serve(stream, Case, sweep.all_cases(), sweep.run)


if __name__ == "__main__":
    main()
