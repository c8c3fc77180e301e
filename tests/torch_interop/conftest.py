"""What every test of the backend starts from."""

import os
from collections.abc import Iterator

# Read when transformers is imported: its models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.torch_interop.bind import segments
from pjrt_bridge.torch_interop.device import use
from tests.dynamo import skip_guard_timing
from tests.faults.segments import Faults
from tests.fresh import forget_device
from tests.fresh import fresh as fresh
from tests.fresh import same_numbers as same_numbers
from tests.plugins import require_dispatcher

skip_guard_timing()


@pytest.fixture(params=["c", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Segments that are compiled in the test start in C, or in Python."""
    found: str = request.param
    if found == "c":
        require_dispatcher()
    monkeypatch.setattr(plans, "enabled", found == "c")
    return found


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Faults of the segments that are compiled in the test."""
    made = Faults()
    monkeypatch.setattr(segments, "launcher_of", made.launcher_of)
    return made


@pytest.fixture
def pjrt_device() -> Iterator[None]:
    """torch.device("pjrt") is two devices of the CPU plugin."""
    # A test that lets the device be chosen by its first tensor leaves that choice.
    forget_device()
    use("cpu", cpu_device_count=2)
    yield
    forget_device()
