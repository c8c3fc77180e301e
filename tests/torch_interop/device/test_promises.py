"""What torch promises of results on the device is what it promises of them on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("fresh")

Function = Callable[..., Any]

IMAGE = torch.randn(1, 4, 6, 6)
VOLUME = torch.randn(1, 4, 4, 4, 4)
WEIGHT = torch.randn(4, 4, 3, 3)
LABELS = torch.tensor([1, 0, 2])


def forward_and_backward(function: Function, *given: torch.Tensor) -> list[torch.Tensor]:
    """Results, and the gradients of what floats."""
    taken = [
        item.detach().requires_grad_(item.is_floating_point() and item.requires_grad)
        for item in given
    ]
    found = function(*taken)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    wanted = [item for item in taken if item.requires_grad]
    if wanted:
        differentiable = [item for item in results if item.requires_grad]
        results += torch.autograd.grad(differentiable, wanted, list(map(torch.ones_like, results)))
    return results


def assert_as_on_host(function: Function, *given: torch.Tensor) -> None:
    expected = forward_and_backward(function, *given)
    run = torch.compile(function, backend="pjrt", fullgraph=True)
    there = [item.detach().to("pjrt").requires_grad_(item.requires_grad) for item in given]
    found = forward_and_backward(run, *there)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.detach().cpu(), other.detach())


def last(tensor: torch.Tensor) -> torch.Tensor:
    form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.contiguous(memory_format=form).requires_grad_()


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, w: functional.conv2d(x, w, padding=1), (last(IMAGE), WEIGHT.requires_grad_())),
        (lambda x, w: functional.conv2d(x, w), (IMAGE.clone().requires_grad_(), last(WEIGHT))),
        (functional.conv_transpose2d, (last(IMAGE), WEIGHT)),
        (functional.conv3d, (last(VOLUME), torch.randn(2, 4, 3, 3, 3))),
        (functional.conv1d, (IMAGE[0].transpose(1, 2), torch.randn(2, 6, 3))),
        (lambda x: functional.pixel_shuffle(x, 2), (last(IMAGE),)),
        (lambda x: functional.pixel_unshuffle(x, 2), (last(IMAGE),)),
        (
            lambda x, w: functional.conv2d(x, w).relu().permute(0, 2, 3, 1).view(-1, 4),
            (last(IMAGE), WEIGHT),
        ),
    ],
    ids=["conv2d", "weight", "transposed", "conv3d", "conv1d", "shuffle", "unshuffle", "view"],
)
def test_memory_formats(function: Function, given: tuple[torch.Tensor, ...]) -> None:
    assert_as_on_host(function, *given)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (functional.multi_margin_loss, (torch.randn(3, 4).requires_grad_(), LABELS)),
        (functional.multilabel_margin_loss, (torch.randn(3).requires_grad_(), LABELS)),
        (lambda x: torch.histogram(x, 4), (torch.randn(9),)),
        (lambda x: torch.histogram(x, 4, weight=x * x), (torch.randn(9),)),
        (torch.geqrf, (torch.randn(4, 4),)),
    ],
    ids=["multi_margin_loss", "multilabel_margin_loss", "histogram", "weighted", "geqrf"],
)
def test_what_torch_promises_by_running_it(
    function: Function, given: tuple[torch.Tensor, ...]
) -> None:
    """There are operators of which it knows nothing but their kernels for the host.

    Their programs are then made while torch traces: none is there from before.
    """
    assert_as_on_host(function, *given)
