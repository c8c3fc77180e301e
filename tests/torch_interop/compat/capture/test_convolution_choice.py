"""Convolutions whose batch and images change need no graph for each kernel of PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from pjrt_bridge.torch_interop import compat
from tests.torch_interop.helpers import compiled

BATCHES = (8, 5, 20, 33, 15, 16, 2)
LENGTHS = (40, 9, 33, 12, 70, 100, 8)
CONVOLUTIONS = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


@pytest.mark.parametrize("dims", CONVOLUTIONS)
@pytest.mark.parametrize("training", [False, True])
def test_batches_and_images_that_change(dims: int, training: bool) -> None:
    weight = torch.randn(8, 3, *[3] * dims, requires_grad=training)
    before, run = compat.graphs_made(), compiled(CONVOLUTIONS[dims])
    for batch, length in zip(BATCHES, LENGTHS, strict=True):
        x = torch.randn(batch, 3, *([4] * (dims - 1)), length)
        found, expected = run(x, weight), CONVOLUTIONS[dims](x, weight)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert found.stride() == expected.stride()
        if training:
            (given,) = torch.autograd.grad(found.sum(), weight)
            (wanted,) = torch.autograd.grad(expected.sum(), weight)
            torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-3)
    # The first sizes, and all others.
    assert compat.graphs_made() - before <= 2


@pytest.mark.parametrize(
    ("dims", "order", "kernel"),
    [
        (2, torch.channels_last, 3),
        (2, torch.channels_last, 1),
        (3, torch.channels_last_3d, 3),
        (3, torch.channels_last_3d, 1),
    ],
)
def test_the_order_of_results(dims: int, order: torch.memory_format, kernel: int) -> None:
    weight = torch.randn(8, 3, *[kernel] * dims)
    run = compiled(CONVOLUTIONS[dims])
    for one in (torch.contiguous_format, order):
        for batch, length in ((8, 40), (5, 9), (20, 33), (1, 12), (1, 90), (33, 5)):
            x = torch.randn(batch, 3, *([4] * (dims - 1)), length).to(memory_format=one)
            found, expected = run(x, weight), CONVOLUTIONS[dims](x, weight)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert found.stride() == expected.stride(), (one, batch, length)


def test_a_size_that_is_too_small_is_refused() -> None:
    run = compiled(functional.conv2d)
    weight = torch.randn(8, 3, 3, 3)
    for batch, length in ((8, 40), (5, 9), (20, 33)):
        run(torch.randn(batch, 3, length, length), weight)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        run(torch.randn(4, 3, 2, 2), weight)


def test_other_backends_are_left_alone() -> None:
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(lambda x, weight: functional.conv2d(x, weight), backend=counter)
    weight = torch.randn(8, 3, 3, 3)
    for batch in (8, 5, 20):
        run(torch.randn(batch, 3, 9, 9), weight)
    assert counter.frame_count == 3
