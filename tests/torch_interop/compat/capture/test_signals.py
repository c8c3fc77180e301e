"""Signals of any length from their frames, with few graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_interop.compat.capture.helpers import check_few_graphs

WINDOW = torch.hann_window(16)


def _frames(x: torch.Tensor, **settings: Any) -> torch.Tensor:
    given = {"window": WINDOW, "return_complex": True, **settings}
    return torch.stft(x, 16, 4, **given)


def _back(x: torch.Tensor, **settings: Any) -> torch.Tensor:
    given = {"window": WINDOW, **settings}
    return torch.istft(_frames(x) * 2, 16, 4, **given)


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of the same length": lambda x: _back(x, length=x.shape[-1]),
    "of whole frames": _back,
    "longer": lambda x: _back(x, length=x.shape[-1] + 20),
    "of a vector": lambda x: _back(x[0]),
    "without a window": lambda x: torch.istft(
        _frames(x, window=torch.ones(16)) * 2, 16, 4, window=None, normalized=True
    ),
    "of a shorter window": lambda x: _frames(x, window=torch.ones(16)).istft(
        16, 4, 10, window=torch.hann_window(10) + 0.1
    ),
    "of whole spectra": lambda x: torch.istft(
        _frames(x, onesided=False) * 2, 16, 4, window=WINDOW, onesided=False
    ),
    "without centers": lambda x: torch.istft(
        _frames(x, center=False), 16, 4, window=WINDOW + 0.1, center=False
    ),
    "complex": lambda x: (
        torch.istft(_frames(x, onesided=False) * 2j, 16, 4, window=WINDOW, return_complex=True).imag
    ),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:A window was not provided", "ignore:The length of signal")
def test_few_graphs_serve_all_lengths(name: str) -> None:
    check_few_graphs([(2, length) for length in (24, 31, 40, 57, 80, 99)], CASES[name])


@pytest.mark.usefixtures("fresh")
def test_windows_that_add_up_to_zero() -> None:
    """The first element of this window is 0, and no other window covers it."""
    run = torch.compile(
        lambda x: torch.istft(_frames(x, center=False), 16, 4, window=WINDOW, center=False),
        backend="pjrt",
    )
    for length in (24, 31, 40):
        with pytest.raises(RuntimeError, match="window overlap add min"):
            run(torch.randn(2, length))
