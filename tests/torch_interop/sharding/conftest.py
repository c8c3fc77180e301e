"""Four devices of the CPU plugin in a mesh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pjrt_bridge.torch_interop.device import use
from pjrt_bridge.torch_interop.sharding import Mesh
from tests.fresh import forget_device


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """torch.device("pjrt") is four devices of the CPU plugin during these tests alone."""
    # A test that lets the device be chosen by its first tensor leaves that choice.
    forget_device()
    use("cpu", cpu_device_count=4)
    yield
    forget_device()


@pytest.fixture
def mesh(device: None) -> Mesh:
    """Two by two devices."""
    return Mesh(dp=2, tp=2)
