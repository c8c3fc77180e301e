"""Windows that are taken by strides have gradients for all sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.torch_interop.compat.capture.helpers import LENGTHS, SIGNALS, check_few_graphs
from tests.torch_interop.helpers import assert_same, compiled


def _halves(x: torch.Tensor) -> torch.Tensor:
    """Blocks that overlap by half, as Longformer has them; heads vary faster than positions."""
    rows = x.mT.repeat_interleave(8, 1)[:, : x.shape[2] // 2 * 8]
    rows = rows.view(2, -1, 3, 1).transpose(1, 2).reshape(6, -1, 1)
    blocks = rows.view(6, rows.shape[1] // 4, 4, 1)
    size, stride = list(blocks.shape), list(blocks.stride())
    size[1], stride[1] = 2 * size[1] - 1, stride[1] // 2
    return blocks.as_strided(size=size, stride=stride).mean(2)


def _behind(x: torch.Tensor) -> torch.Tensor:
    rows = (x * 2).contiguous()
    first, second, last = rows.stride()
    count = x.shape[2] - 2
    return torch.as_strided(rows, (2, 3, count, 3), (first, second, last, last)).tanh()


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "blocks that overlap by half": _halves,
    "of three elements": _behind,
    "of two rows": lambda x: (
        (x.mT * 2).contiguous().as_strided((2, x.shape[2] // 2, 2, 3), (3 * x.shape[2], 6, 3, 1), 0)
        + 1
    ),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
def test_few_graphs_serve_all_sizes(name: str) -> None:
    check_few_graphs(SIGNALS, CASES[name])


@pytest.mark.usefixtures("fresh")
def test_results_are_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x * 2
        windows = rows.as_strided((x.shape[0] - 2, 3), (1, 1))
        rows += 1
        return windows, windows.sum(1)

    run = compiled(function)
    for (length,) in LENGTHS[1:]:
        x = torch.randn(length, requires_grad=True)
        own = x.detach().clone().requires_grad_()
        found, expected = run(own), function(x)
        assert_same(found, expected)
        assert found[0].stride() == expected[0].stride()
        for made in (found, expected):
            made[1].square().sum().backward()
        torch.testing.assert_close(own.grad, x.grad)


@pytest.mark.usefixtures("fresh")
def test_memory_behind_a_tensor() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[: x.shape[0] // 2].as_strided((x.shape[0] - 2, 3), (1, 1)).exp()

    run = compiled(function)
    for (length,) in LENGTHS:
        x = torch.randn(length, requires_grad=True)
        assert_same(run(x.detach().clone().requires_grad_()), function(x))
