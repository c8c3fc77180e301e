"""What every test of the backend starts from."""

import os
from collections.abc import Iterator

# Read when transformers is imported: its models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import shutil

import pytest
import torch

from pjrt_bridge.runtime import dispatch, native
from pjrt_bridge.torch_interop import segments
from tests.torch_interop.faults import Faults


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before or after, and the same random numbers every time."""
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture(params=["c", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Segments that are compiled in the test start in C, or in Python."""
    found: str = request.param
    if found == "c" and native.module is None and not shutil.which("cc"):
        pytest.skip("the dispatcher was not built: there is no C compiler")
    assert found == "python" or native.module is not None, "the dispatcher was not built"
    monkeypatch.setattr(dispatch, "enabled", found == "c")
    return found


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Faults of the segments that are compiled in the test."""
    made = Faults()
    monkeypatch.setattr(segments, "path_of", made.path_of)
    return made
