"""Tests that need an NVIDIA GPU; elsewhere each is reported as absent, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pjrt_bridge import registry
from pjrt_bridge.runtime import Client
from pjrt_bridge_cuda import WHEELS
from pjrt_bridge_cuda.presence import no_gpu
from tests.accelerators.wheels import need
from tests.conftest import Census


@pytest.fixture(scope="session")
def gpu() -> Client:
    """A client of the GPUs of this machine."""
    reason = no_gpu()
    if reason is not None:
        pytest.skip(f"needs a GPU: {reason}")
    need(*WHEELS)
    return registry.client("cuda")


@pytest.fixture
def no_leaks(gpu: Client) -> Iterator[Census]:
    """Asserts that the test leaves no plugin object behind; the CPU plugin need not be there."""
    census = Census()
    yield census
    census.check()
