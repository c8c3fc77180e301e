"""Reports name what the devices of a mesh exchange."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from pjrt_bridge.report.data import Exchange
from pjrt_bridge.torch_interop import explain
from pjrt_bridge.torch_interop.sharding import Mesh, parallelize
from tests.torch_interop.sharding.models import Mlp

pytestmark = pytest.mark.usefixtures("fresh")


def test_a_product_of_divided_rows_is_reduced(mesh: Mesh, tmp_path: Path) -> None:
    model = parallelize(Mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    compiled = torch.compile(model, backend="pjrt", options={"mesh": mesh})
    x = torch.randn(8, 8).to("pjrt")
    with torch.no_grad():
        report = explain(compiled, x)
    (segment,) = report.segments
    # Four rows of four floats on each device.
    assert segment.exchanges == (Exchange("all-reduce", 1, 64),)
    assert "each device gets by 1 all-reduce (64 B)" in str(report)
    assert '"operation": "all-reduce"' in report.to_json()
    assert "1 all-reduce (64 B)" in report.to_html(tmp_path / "page.html").read_text()


def test_nothing_is_exchanged_on_one_device(device: None) -> None:
    compiled = torch.compile(torch.sin, backend="pjrt")
    report = explain(compiled, torch.randn(8).to("pjrt"))
    assert [segment.exchanges for segment in report.segments] == [()]
    assert "each device" not in str(report)
