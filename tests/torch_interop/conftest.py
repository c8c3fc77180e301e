"""What every test of the backend starts from."""

import os
from collections.abc import Iterator

# Read when transformers is imported: its models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.torch_interop.bind import segments
from pjrt_bridge.torch_interop.device import chosen, uploads, use
from tests.dynamo import skip_guard_timing
from tests.faults.segments import Faults
from tests.plugins import require_dispatcher

skip_guard_timing()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Random numbers do not depend on which tests a worker ran before.

    All are drawn from the host's generator. `torch.manual_seed` takes 10 ms: for each device that
    is not there it keeps a stack trace for later.
    """
    torch.default_generator.manual_seed(0)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before or after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


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
    _forget_choice()
    use("cpu", cpu_device_count=2)
    yield
    _forget_choice()


def _forget_choice() -> None:
    chosen._client = None
    chosen.chosen.cache_clear()
    uploads.forget_expected()
