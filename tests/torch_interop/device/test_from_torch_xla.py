"""docs/from_torch_xla.md: each line that it proposes runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from pjrt_bridge.profiling import profile
from pjrt_bridge.torch_interop import (
    compiled_graphs,
    composite,
    device,
    explain,
    export,
    sharding,
)

PAGE = (Path(__file__).parents[3] / "docs" / "from_torch_xla.md").read_text()
ROWS = [
    cells
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| PyTorch/XLA")
    for cells in [[cell.strip() for cell in line.strip().strip("|").split("|")]]
]
LINES = list(dict.fromkeys(cells[1].strip("`") for cells in ROWS if cells[1]))


class Devices:
    """`device`, but for the client that the tests have chosen already."""

    @staticmethod
    def use(name: str) -> Any:
        return device.use(name, cpu_device_count=2)


@pytest.fixture
def usual(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the lines speak of."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).to("pjrt")
    x = torch.randn(2, 4).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    torch.save({"x": x.cpu()}, tmp_path / "file")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield {
        "compiled_graphs": compiled_graphs,
        "composite": composite,
        "device": Devices,
        "explain": explain,
        "export": export,
        "folder": tmp_path / "new",
        "loader": [(torch.ones(2), torch.zeros(1))],
        "model": model,
        "nn": nn,
        "optimizer": optimizer,
        "os": os,
        "path": tmp_path / "file",
        "profile": profile,
        "sharding": sharding,
        "step": lambda x: model(x).sum(),
        "torch": torch,
        "x": x,
    }
    distributed.destroy_process_group()


def test_rows_have_three_cells() -> None:
    assert len(LINES) >= 25
    assert all(len(cells) == 3 for cells in ROWS if not cells[0].startswith("-"))


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("---")])
def test_lines(line: str, usual: dict[str, Any]) -> None:
    torch.manual_seed(0)
    found = eval(line, usual)
    if line.startswith("torch.compile"):
        expected = usual["model"](usual["x"])
        given = found(usual["x"])
        torch.testing.assert_close(given.cpu(), (expected if given.dim() else expected.sum()).cpu())
    elif line.startswith("("):
        assert [item.device.type for batch in found for item in batch] == ["pjrt", "pjrt"]
    elif line.startswith("torch.load"):
        assert found["x"].device.type == "pjrt"
