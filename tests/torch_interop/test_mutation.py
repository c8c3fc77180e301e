"""Buffers and inputs that a compiled function writes into."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_interop.helpers import (
    TRAINING,
    assert_compiled,
    assert_same,
    assert_same_gradients,
    compiled,
    twins,
)

pytestmark = pytest.mark.usefixtures("fresh")


# -- buffers that the model updates ----------------------------------------------------------------


def test_batch_norm_statistics_follow_several_steps() -> None:
    eager, device = twins(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    for _ in range(4):
        x = torch.randn(5, 3, 6, 6) * 3 + 1
        for model in (eager, device):
            model.zero_grad()
            model(x).square().mean().backward()
        assert_same_gradients(device, eager)
    assert_same(list(device.buffers()), list(eager.buffers()))
    assert int(list(device.buffers())[-1]) == 4
    assert_compiled(*TRAINING)
    device.eval()
    eager.eval()
    with torch.no_grad():
        assert_same(device(x), eager(x))
    assert_compiled(*TRAINING, "inference")


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("permuted", torch.zeros(4, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.mean.lerp_(x.mean(0), 0.5)
        self.permuted[1:].add_(x[1:])
        return x - self.mean


def test_buffers_that_inference_updates() -> None:
    eager, device = twins(Counter())
    buffer, address = device.mean, device.mean.data_ptr()
    for _ in range(3):
        x = torch.randn(3, 4)
        assert_same(device(x), eager(x))
    assert_same(list(device.buffers()), list(eager.buffers()))
    assert device.mean is buffer
    assert buffer.data_ptr() == address
    assert_compiled("inference")


# -- inputs that the function writes into ----------------------------------------------------------


def write_all(x: torch.Tensor) -> Any:
    x.add_(1)
    return x * 2


def write_and_return(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x


def write_and_return_twice(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x, x.sum(), x.t(), x


def write_into_rows(x: torch.Tensor) -> Any:
    x[1:].mul_(3)
    x[0] = 7
    return x.sum()


def write_into_columns(x: torch.Tensor) -> Any:
    x.t()[::2].sub_(1)


def write_twice_and_read_between(x: torch.Tensor) -> Any:
    before = x.clone()
    x.add_(1)
    between = x * 10
    x.copy_(between - x)
    return before, between


def read_old_and_new(x: torch.Tensor) -> Any:
    old = x.sum()
    x.fill_(3)
    return old, x.sum()


MUTATIONS = [
    write_all,
    write_and_return,
    write_and_return_twice,
    write_into_rows,
    write_into_columns,
    write_twice_and_read_between,
    read_old_and_new,
]

MEMORY: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "gaps": lambda: torch.randn(6, 8)[::2, 1:5],
    "unaligned": lambda: torch.randn(13)[1:].view(3, 4),
    "inference tensor": lambda: made_in_inference_mode(3, 4),
}


def made_in_inference_mode(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(*shape)


@pytest.mark.parametrize(
    ("function", "memory"),
    [
        *((function, "contiguous") for function in MUTATIONS),
        *((write_into_rows, memory) for memory in MEMORY if memory != "contiguous"),
        *((write_and_return, memory) for memory in MEMORY if memory != "contiguous"),
    ],
)
def test_inputs_that_are_written_into(function: Callable[..., Any], memory: str) -> None:
    found = MEMORY[memory]()
    expected = torch.empty_strided(found.size(), found.stride()).copy_(found)
    device = compiled(function)
    address = found.data_ptr()
    with torch.inference_mode(found.is_inference()):
        for _ in range(2):
            assert_same([device(found), found], [function(expected), expected])
    assert found.data_ptr() == address
    assert_compiled("inference")


def test_an_input_that_is_returned_is_itself() -> None:
    x = torch.zeros(3, 4)
    first, total, view, second = compiled(write_and_return_twice)(x)
    assert first is second is x
    assert view.data_ptr() == x.data_ptr()
    assert float(total) == 0


def test_what_lies_around_a_written_view_stays() -> None:
    whole = torch.zeros(6, 8)
    compiled(write_all)(whole[::2, 1:5])
    expected = torch.zeros(6, 8)
    expected[::2, 1:5] = 1
    assert torch.equal(whole, expected)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(2, 6), slice(4, 8)], ids=str)
def test_inputs_of_one_storage_of_which_one_is_written_into(rows: slice) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    found, expected = torch.zeros(8), torch.zeros(8)
    device = compiled(function)
    for _ in range(2):
        assert_same(device(found[:4], found[rows]), function(expected[:4], expected[rows]))
    assert_same(found, expected)


def test_written_input_in_training() -> None:
    weight = torch.randn(4, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(weight)
        return (x * x).sum()

    gradients = []
    for candidate in (function, compiled(function)):
        x = torch.arange(4.0)
        candidate(x).backward()
        gradients += [weight.grad, x.detach()]
        weight.grad = None
    assert_same(gradients[2:], gradients[:2])
    assert_compiled(*TRAINING)
