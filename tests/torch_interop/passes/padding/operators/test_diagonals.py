"""Diagonals of matrices with sizes that change, on the device and in host segments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def taken_apart(x: Tensor) -> Any:
    return x.diagonal(0, 1, 0).unbind(-1)


def below(x: Tensor) -> Any:
    return torch.diagonal(x[None] * 2, -1, 1, 2).unbind(-1)


def replaced(x: Tensor, values: Tensor) -> Any:
    return (torch.diagonal_scatter(x * 2, values, 1),)


def of_sizes(*shapes: tuple[int, int]) -> list[list[Tensor]]:
    return [[torch.randn(shape)] for shape in shapes]


CASES = {
    "taken apart": (taken_apart, of_sizes((4, 3), (5, 3), (9, 3), (3, 3), (3, 7))),
    "below": (below, of_sizes((4, 3), (4, 5), (4, 9), (5, 4), (9, 3))),
    "replaced": (
        replaced,
        [[torch.randn(r, c), torch.randn(min(r, c - 1))] for r, c in ((4, 3), (4, 9), (5, 4))],
    ),
}


@pytest.mark.parametrize("host_ops", [(), ("aten.diagonal",), ("aten.diagonal_scatter",)])
@pytest.mark.parametrize("case", CASES)
def test_diagonals(case: str, host_ops: tuple[str, ...]) -> None:
    function: Callable[..., Any]
    function, calls = CASES[case]
    compiled = torch.compile(function, backend="pjrt", dynamic=True, options={"host_ops": host_ops})
    for given in calls:
        results = []
        for call in (compiled, function):
            arguments = [value.clone().requires_grad_() for value in given]
            outputs = call(*arguments)
            loss = sum((output * at).sum() for at, output in enumerate(outputs, 1))
            results.append([*outputs, *torch.autograd.grad(loss, arguments)])
        assert len(results[0]) == len(results[1])
        assert all(map(torch.equal, *results))
