"""Runs models in this process: one line of JSON in, one out.

`python -m tests.models.worker` first writes the list of all cases, then answers each line that
names a case.
"""

from __future__ import annotations

import os

# Read when the libraries are imported: models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from tests.models.case import Case
from tests.models.running import all_cases, run_case
from tests.sweeping import torch_worker, worker


def main() -> None:
    """Serve until standard input ends."""
    stream = torch_worker.begin()
    # Recurrent networks are left out of graphs by default, for any backend.
    torch._dynamo.config.allow_rnn = True
    worker.serve(stream, Case, all_cases(), run_case)


if __name__ == "__main__":
    main()
