"""Transforms of so many windows as a signal has, which may be a single one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.support import assert_equal

pytestmark = pytest.mark.usefixtures("fresh")

TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of numbers": lambda x: torch.fft.rfft(x),
    "of complex numbers": lambda x: torch.fft.fft(x),
    "to numbers": lambda x: torch.fft.irfft(x * 1j),
    "of two dimensions": lambda x: torch.fft.rfft2(x, dim=(0, -1)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("lengths", [(8, 9, 20), (16, 12, 8, 40)])
def test_as_many_windows_as_there_are(name: str, lengths: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return TRANSFORMS[name](x.unfold(-1, 8, 4) * torch.hann_window(8)).abs()

    run = torch.compile(function, backend="pjrt")
    for length in lengths:
        x = torch.randn(2, length)
        assert_equal(run(x), function(x))


def test_one_window_shares_programs_with_several() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x.unfold(-1, 8, 4) * torch.hann_window(8)).abs().sum(1)

    run = torch.compile(function, backend="pjrt")
    for length in (16, 12, *range(8, 12), 40):
        x = torch.randn(2, length)
        assert_same(run(x), function(x), rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 5
