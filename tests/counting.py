"""Counting plugin objects."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from pjrt_bridge.runtime import live_handles


def settled() -> Mapping[str, int]:
    """What is alive of each kind, once the garbage of earlier tests is gone.

    It would go at any time, and a count from before it would be too high.
    """
    gc.collect()
    return live_handles()
