"""What a worker process whose cases call torch does before the first of them."""

from __future__ import annotations

import logging
import warnings
from typing import TextIO

import torch

from pjrt_bridge.child_processes import answers
from tests.dynamo import skip_guard_timing


def begin() -> TextIO:
    """Compute in one thread, say nothing of what torch reports; where the worker answers."""
    stream = answers()
    warnings.simplefilter("ignore")
    # Torch writes a traceback for each call that its fake tensors refuse.
    logging.disable()
    torch.set_num_threads(1)
    skip_guard_timing()
    return stream
