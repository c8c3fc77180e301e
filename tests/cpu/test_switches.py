"""What users get who set nothing, and with each part of it turned off by its variable."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge import registry
from pjrt_bridge.runtime.compile import compile_cache
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.placement import calibration
from pjrt_bridge.torch_interop.placement.calibration import Measured
from pjrt_bridge_cpu import SLOWER_BY_ITSELF
from tests.configuration import ATEN, CACHE, CALIBRATION, SWITCHES
from tests.torch_interop.helpers import assert_same, assert_same_gradients

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(params=["", *SWITCHES], ids=["all on", *SWITCHES])
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The variable that turns something off, if any."""
    found: str = request.param
    if found:
        monkeypatch.setenv(found, "off")
    return found


class Layers(nn.Module):
    """One of each kind of what is large enough for a call of a kernel of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, padding=1)
        self.linear = nn.Linear(16 * 16, 300)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.linear(self.convolution(x).relu().flatten(2))
        return y.softmax(-1), y.log_softmax(1)


CALLED = {
    "mkldnn_convolution.default",
    "mm.out",
    "_softmax.out",
    "_log_softmax.out",
}


@pytest.mark.usefixtures("compiled_anew", "convolved_by_onednn")
def test_pytorchs_kernels(off: str, written: Counter[str]) -> None:
    """Sizes are such that they are called; what a call computes is what eager computes."""
    model = Layers()
    ours = copy.deepcopy(model)
    run = torch.compile(ours, backend="pjrt", options={"fallback": "error"}, dynamic=False)
    x = torch.randn(7, 3, 16, 16)
    found, expected = run(x), model(x)
    assert_same(found, expected)
    for shares, sums in (found, expected):
        (shares.square().sum() + sums.cos().sum()).backward()
    assert_same_gradients(ours, model)
    assert set(written) >= CALLED if off != ATEN else not written


def test_programs_are_kept(off: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if off != CACHE:
        monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(compile_cache, "WORTH_STORING", 0)
    loaded = []
    for _ in range(2):
        torch.compiler.reset()
        x = torch.randn(70, 80)
        assert_same(torch.compile(torch.sin, backend="pjrt")(x), x.sin())
        loaded += [segment.cached for graph in compiled_graphs() for segment in graph.segments]
    assert loaded == [False, off != CACHE]
    assert any((tmp_path / "executables").glob("*")) == (off != CACHE)


def test_what_was_measured_decides(
    off: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before something is measured, which tests never do, it is the same on every machine."""
    with monkeypatch.context() as measuring:
        measuring.setenv(CALIBRATION, str(tmp_path))
        # With the cache off nothing is written; what was written before is read.
        measuring.setenv(CACHE, str(tmp_path))
        calibration.save(registry.client("cpu"), [Measured("aten.exp", 100, 1.0, 0.1)])

    def placements() -> list[str]:
        torch.compiler.reset()
        x = torch.randn(100)
        assert_same(torch.compile(torch.exp, backend="pjrt")(x), x.exp())
        return [segment.placement for graph in compiled_graphs() for segment in graph.segments]

    assert placements() == ["device"]
    if off != CALIBRATION:
        monkeypatch.setenv(CALIBRATION, str(tmp_path))
    assert placements() == (["host"] if off != CALIBRATION else ["device"])


@pytest.mark.parametrize("aten", ["on", "off"])
def test_what_the_package_of_the_plugin_says_decides(
    aten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was measured here; where kernels are not called it says more."""
    monkeypatch.setenv(ATEN, aten)

    def placement(function: Callable[[torch.Tensor], Any], *shape: int) -> str:
        torch.compiler.reset()
        x = torch.randn(shape)
        torch.compile(function, backend="pjrt")(x)
        (graph,) = compiled_graphs()
        return "".join(segment.placement[0] for segment in graph.segments)

    def running(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cumsum(0).cos()

    def upper(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x.sin()).R.cos()

    assert placement(upper, 127, 127) == "d"
    assert placement(upper, 128, 128) == "dhd"
    assert placement(running, SLOWER_BY_ITSELF["aten.cumsum"] - 1) == "d"
    assert placement(running, SLOWER_BY_ITSELF["aten.cumsum"]) == ("dhd" if aten == "off" else "d")
