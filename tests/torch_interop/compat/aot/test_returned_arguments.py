"""Results that are arguments which the graph writes into, beside arguments with gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def _out(w: torch.Tensor, x: torch.Tensor, kept: torch.Tensor) -> Any:
    y = x @ w.t()
    w.data.add_(1)
    return torch.sigmoid(x, out=kept), y


def _statistic(w: torch.Tensor, x: torch.Tensor, kept: torch.Tensor) -> Any:
    w.mul_(2)
    return kept.mul_(3), w.sum()


def _last(w: torch.Tensor, x: torch.Tensor, kept: torch.Tensor) -> Any:
    w.mul_(2)
    return w.sin(), x.add_(1), kept.copy_(x)


def _both(w: torch.Tensor, x: torch.Tensor, kept: torch.Tensor) -> Any:
    w.mul_(2)
    return kept.add_(x), w, kept


def _shape(w: torch.Tensor, x: torch.Tensor, kept: torch.Tensor) -> Any:
    w.mul_(2)
    x.t_()
    return kept.add_(1), w.sum(), x


FUNCTIONS: tuple[Callable[..., Any], ...] = (_out, _statistic, _last, _both, _shape)


# PyTorch refuses other writes into a leaf that needs a gradient.
@pytest.mark.parametrize(
    ("function", "leaf"), [(_out, True), *((function, False) for function in FUNCTIONS)]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_argument_has_its_own_new_value(
    function: Callable[..., Any], leaf: bool, dynamic: bool
) -> None:
    compiled: Any = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (3, 4):
        outcomes = []
        for run in (compiled, function):
            root = torch.arange(rows * 5.0).reshape(rows, 5).requires_grad_()
            w = root if leaf else root + 0
            x = torch.linspace(-1, 1, 10).reshape(2, 5)
            kept = torch.ones(2, 5)
            results = run(w, x, kept)
            sum(r.square().sum() for r in results if r.requires_grad).backward()
            same = [result is kept for result in results]
            outcomes.append((*results, w, x, kept, root.grad, same))
        ours, theirs = outcomes
        torch.testing.assert_close(ours[:-1], theirs[:-1])
        assert ours[-1] == theirs[-1]
