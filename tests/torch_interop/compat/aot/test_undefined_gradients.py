"""Arguments that no used result depends on have no gradient, as in eager mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

LEAVES = 4


def _apart(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    return x * a, x * b, x + c


def _partly(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    hidden = (x * a).sin()
    return hidden * b, hidden + c, b.sum()


def _views(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    y, z = x * a, x * b
    return y[:2], z.view(-1, 1), c.detach() * 2, y.sum() + c.sum()


def _given_back(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    return x * a, b, (c * 2).cumsum(0)


def _written(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    kept = torch.zeros(4)
    kept[:2] = b[:2]
    return x * a, kept, c.exp()


def _broken(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    y, z = x * a, x * b
    torch._dynamo.graph_break()
    return y.sin(), z.cos(), y + c


def _without_slope(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    """Autograd gives zeros for `b` where the first result is used."""
    return a + b.round(), b * x, torch.where(x > 100, c, a)


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    _apart,
    _partly,
    _views,
    _given_back,
    _written,
    _broken,
    _without_slope,
)


def gradients(function: Callable[..., Any], used: tuple[int, ...], size: int) -> Any:
    """Of the leaves, if these results are used; None where no result leads to any."""
    leaves = [torch.linspace(-1, at + 1, size).requires_grad_(at > 0) for at in range(LEAVES)]
    results = function(*leaves)
    total = [results[at].sum() * (at + 1) for at in used if results[at].requires_grad]
    if not total:
        return None
    sum(total).backward()  # type: ignore[union-attr]
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_of_any_used_results(function: Callable[..., Any], dynamic: bool) -> None:
    on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
    every = range(len(function(*torch.ones(LEAVES, 4))))
    chosen = [used for count in every for used in itertools.combinations(every, count + 1)]
    for size, used in zip(itertools.cycle((4, 6)), chosen):
        found, expected = (gradients(run, used, size) for run in (on_device, function))
        assert [item is None for item in found or ()] == [
            item is None for item in expected or ()
        ], used
        torch.testing.assert_close(found, expected)


def test_calls_with_other_used_results_before_backward() -> None:
    on_device = torch.compile(_apart, backend="pjrt")
    outcomes = []
    for run in (on_device, _apart):
        leaves = [torch.ones(4, requires_grad=at > 0) for at in range(LEAVES)]
        first, second = run(*leaves), run(*leaves)
        second[1].sum().backward(retain_graph=True)
        only = [leaf.grad for leaf in leaves]
        first[0].sum().backward()
        second[2].sum().backward()
        outcomes.append([*only, *(leaf.grad for leaf in leaves)])
    assert [item is None for item in outcomes[0]] == [item is None for item in outcomes[1]]
    torch.testing.assert_close(*outcomes)


def test_what_another_compiled_function_gave_is_not_taken_for_a_result() -> None:
    def outer(y: Tensor, w: Tensor, v: Tensor) -> Any:
        return y, y * w, y * v

    inner_on_device = torch.compile(_apart, backend="pjrt")
    outer_on_device = torch.compile(outer, backend="pjrt")
    for used in ((1,), (2,), (0, 2)):
        outcomes = []
        for first, second in ((inner_on_device, outer_on_device), (_apart, outer)):
            leaves = [torch.ones(4, requires_grad=at > 0) for at in range(LEAVES)]
            others = [torch.ones(4, requires_grad=True) for _ in range(2)]
            results = second(first(*leaves)[1], *others)
            sum(results[at].sum() for at in used).backward()
            outcomes.append([item.grad for item in (*leaves, *others)])
        assert [item is None for item in outcomes[0]] == [item is None for item in outcomes[1]]
        torch.testing.assert_close(*outcomes)


def test_hooks_are_given_zeros() -> None:
    """As by PyTorch's own backends: in eager mode they are not called."""
    leaves = [torch.ones(4, requires_grad=at > 0) for at in range(LEAVES)]
    given: list[Tensor] = []

    def hook(gradient: Tensor) -> Tensor:
        given.append(gradient)
        return gradient + 1

    on_device = torch.compile(_apart, backend="pjrt")
    before, between = leaves[2], leaves[3] * 1
    before.register_hook(hook)
    results = on_device(leaves[0], leaves[1], before, between)
    between.register_hook(hook)
    results[0].sum().backward()
    assert [item.tolist() for item in given] == [[0.0] * 4] * 2
    assert [leaf.grad.sum().item() for leaf in leaves[1:]] == [4.0, 4.0, 4.0]  # type: ignore[union-attr]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x).tanh()
        return self.actor(hidden), self.critic(hidden)


def test_an_optimizer_leaves_an_unused_head_alone() -> None:
    outcomes = []
    for backend in ("pjrt", "eager"):
        torch.manual_seed(0)
        model = Heads()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        run = torch.compile(model, backend=backend)
        for step in range(4):
            actor, critic = run(torch.full((2, 4), step + 1.0))
            (critic if step == 2 else actor).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        outcomes.append(list(model.parameters()))
    torch.testing.assert_close(*outcomes)
