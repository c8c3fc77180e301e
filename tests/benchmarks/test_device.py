"""The ways on torch's device run and are measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.device import measure, operator_ways, ways
from pjrt_bridge.torch_interop.device import use
from tests.fresh import forget_device


@pytest.fixture
def device() -> Iterator[None]:
    # An earlier test may have chosen a client with fewer devices.
    forget_device()
    use("cpu", cpu_device_count=2)
    yield
    forget_device()
    torch.compiler.reset()


@pytest.mark.usefixtures("device")
def test_every_way() -> None:
    found = measure(operator_ways(), 1) | measure(ways(8, 4, 2), 1)
    assert len(found) == 9
    assert all(time > 0 for time in found.values())
