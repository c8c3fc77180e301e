"""Sizes that are calculated with numbers in buffers, as audio codecs pad their convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pjrt_bridge.torch_interop import compat, compiled_graphs
from tests.torch_interop.compat.capture.helpers import check_few_graphs
from tests.torch_interop.helpers import assert_same

LENGTHS = [(2, 1, length) for length in (9, 10, 15, 22, 27, 40, 41, 56)]


class PaddedConvolution(nn.Module):
    """A convolution of whole frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 7, 3)
        self.register_buffer("size", torch.tensor(7))
        self.register_buffer("step", torch.tensor(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, total = x.shape[-1], self.size - self.step
        frames = (length - self.size + total) / self.step + 1
        frames = torch.ceil(frames).to(torch.int64) - 1
        behind = frames * self.step + self.size - total - length
        before = total // 2
        most = max(before, total - before + behind)
        if length <= most:
            return x.mean()
        x = functional.pad(x, (before, total - before + behind), mode="reflect")
        return self.conv(x)


@pytest.mark.usefixtures("fresh")
def test_few_graphs_without_a_break() -> None:
    module = PaddedConvolution().requires_grad_(False)
    check_few_graphs(LENGTHS, module)
    assert all(s.placement == "device" for graph in compiled_graphs() for s in graph.segments)
    torch.compile(module, backend="pjrt", fullgraph=True)(torch.randn(2, 1, 22))


@pytest.mark.usefixtures("fresh")
def test_another_number_is_another_graph() -> None:
    module = PaddedConvolution().requires_grad_(False)
    run = torch.compile(module, backend="pjrt")
    for size in (7, 6, 7):
        module.size.fill_(size)
        for shape in LENGTHS[1:4]:
            x = torch.randn(shape)
            assert_same(run(x), module(x), rtol=1e-5, atol=1e-5)


class Counting(nn.Module):
    """A module with a number that changes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> Any:
        total = self.count + x.shape[0]
        self.count += 1
        made = functional.pad(x, (0, self.count)) if x.shape[1] > 4 else x
        return made, total, self.count / 2


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("width", [3, 5])
def test_numbers_that_change(width: int) -> None:
    module, other = Counting(), Counting()
    run = torch.compile(module, backend="pjrt")
    before = compat.graphs_made()
    for _ in range(9):
        x = torch.randn(4, width)
        assert_same(run(x), other(x))
    if width == 3:
        assert compat.graphs_made() - before == 1
