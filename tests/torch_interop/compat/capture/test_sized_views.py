"""Diagonals and windows at places that are calculated from sizes need no graph for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_interop.compat.capture.helpers import (
    LENGTHS,
    MATRICES,
    SIGNALS,
    check_few_graphs,
)
from tests.torch_interop.helpers import assert_same, compiled

WIDE = [(length, length + 3) for (length,) in LENGTHS]

CASES: dict[str, tuple[list[Any], Callable[[torch.Tensor], Any]]] = {
    "diagonal": (MATRICES, lambda x: (x * 2).diagonal(x.shape[0] // 2)),
    "diagonal below": (WIDE, lambda x: (x * 2).diagonal(offset=-(x.shape[0] // 2)) + 1),
    "diagonal of other dimensions": (
        SIGNALS,
        lambda x: torch.diagonal((x * 2).mT, x.shape[2] // 2 - x.shape[2], 1, 2).contiguous(),
    ),
    "diagonal outside": (MATRICES, lambda x: (x * 2).diagonal(x.shape[0] + 1) + 1),
    "diag": (MATRICES, lambda x: torch.diag(x, -(x.shape[0] // 2))),
    "diag of a vector": (LENGTHS, lambda x: torch.diag(x, x.shape[0] // 2)),
    "diag_embed": (SIGNALS, lambda x: x.diag_embed(-(x.shape[2] // 3), 0, 2).contiguous()),
    "windows of half the size": (
        LENGTHS,
        lambda x: (x.detach() * 2).unfold(0, x.shape[0] // 2 + 1, 1).tanh(),
    ),
    "windows at distances": (
        SIGNALS,
        lambda x: (x.detach() * 2).unfold(-1, 2, x.shape[2] // 3).mean(-1),
    ),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
def test_few_graphs_serve_all_sizes(name: str) -> None:
    check_few_graphs(*CASES[name])


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    "view",
    [lambda x: x.diagonal(x.shape[0] // 2), lambda x: x.unfold(1, x.shape[1] // 2, 2)],
    ids=["diagonal", "unfold"],
)
def test_results_are_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    run = compiled(view)
    for length in (4, 6, 9, 13):
        x = torch.randn(length, length)
        found, expected = run(x), view(x)
        assert_same(found, expected)
        assert found.stride() == expected.stride()
        assert found.data_ptr() == expected.data_ptr()


@pytest.mark.usefixtures("fresh")
def test_windows_that_do_not_fit() -> None:
    run = torch.compile(lambda x: x.unfold(0, x.shape[0] + 1, 1), backend="pjrt")
    for length in (4, 5, 6):
        with pytest.raises(RuntimeError, match=r"(?i)maximum size for tensor at dimension 0"):
            run(torch.ones(length))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("order", [slice(None, None, 2), slice(0, 4), slice(None)])
def test_windows_of_an_argument_that_is_written_into(trains: bool, order: slice) -> None:
    def windows(x: torch.Tensor, size: int) -> torch.Tensor:
        found = x.unfold(-2, size, 2) * 2
        x.detach().add_(size)
        return found

    run = torch.compile(windows, backend="pjrt")
    for size in (3, 2, 4, 1):
        results = []
        for function in (run, windows):
            whole = torch.arange(32.0).reshape(4, 8)
            x = whole[:, order].detach().requires_grad_(trains)
            results.append([function(x, size), x.detach(), whole])
        assert_same(*results)
