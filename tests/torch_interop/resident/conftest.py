"""The device is in use during these tests alone: torch tells others of it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def device(pjrt_device: None) -> None:
    """Two devices of the CPU plugin."""
