"""Positions that operators refuse in words of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {
    "negative log likelihood": lambda x, t: functional.nll_loss(x, t),
    "of each row": lambda x, t: functional.nll_loss(x, t, reduction="none"),
    "another class ignored": lambda x, t: functional.nll_loss(x, t, ignore_index=1),
    "cross entropy": lambda x, t: functional.cross_entropy(x, t),
    "smooth": lambda x, t: functional.cross_entropy(x, t, label_smoothing=0.1),
    "weighted": lambda x, t: functional.cross_entropy(x, t, weight=torch.ones(4)),
}
SHAPES = {"row": (4,), "matrix": (3, 4), "images": (2, 4, 3, 1)}


def outcome(loss: Loss, x: Tensor, target: Tensor, training: bool) -> tuple[Any, Any]:
    x = x.clone().requires_grad_(training)
    try:
        found = loss(x, target)
        if training:
            torch.autograd.backward(found.sum())
    except (IndexError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return found.detach(), x.grad


def same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    if isinstance(expected[0], str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_refuse_targets_as_eager_does(
    loss: Loss, shape: tuple[int, ...], dynamic: bool, training: bool
) -> None:
    x = torch.randn(shape).log_softmax(-1)
    torch._dynamo.reset()
    run = torch.compile(lambda x, t: loss(x, t), backend="pjrt", dynamic=dynamic)
    labels = torch.zeros((*shape[:1], *shape[2:]) if shape[1:] else (), dtype=torch.int64)
    for wrong in (4, 0, -1, -100, 1, 99):
        target = labels.clone()
        target.view(-1)[-1] = wrong
        expected = outcome(loss, x, target, training)
        found = outcome(run, x, target, training)
        same(found, expected)


UNPOOLED: dict[str, tuple[Loss, tuple[int, ...]]] = {
    "1d": (lambda x, i: functional.max_unpool1d(x, i, [2]), (2, 1, 3)),
    "2d": (lambda x, i: functional.max_unpool2d(x, i, [2, 2]), (1, 2, 3, 1)),
    "3d": (lambda x, i: functional.max_unpool3d(x, i, [2, 2, 2]), (2, 1, 3, 1, 1)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("unpool", "shape"), UNPOOLED.values(), ids=UNPOOLED)
def test_places_of_maxima_are_refused_as_eager_does(
    unpool: Loss, shape: tuple[int, ...], dynamic: bool
) -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x, i: unpool(x, i), backend="pjrt", dynamic=dynamic)
    x = torch.randn(shape)
    # One is beyond its own channel only, and one before it.
    for wrong in (5, 24, -1, 1000):
        places = torch.arange(3).expand(2, 3).reshape(shape).clone()
        places.view(-1)[0 if wrong > 0 else -1] = wrong
        expected = outcome(unpool, x, places, training=False)
        same(outcome(run, x, places, training=False), expected)
