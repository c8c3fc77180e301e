"""Dynamo without a measurement of itself that takes a fifth of the time of a small graph."""

from __future__ import annotations

import torch._dynamo.guards


def skip_guard_timing() -> None:
    """Have the guards of a graph not be timed, which flushes the caches; Dynamo logs it alone."""
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
