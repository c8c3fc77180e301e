"""Sizes and numbers that differ from call to call, in graphs that are split."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def test_sizes_are_returned() -> None:
    def function(x: Tensor) -> Any:
        y = ops.twice(x.exp()).cos()
        return y, x.shape[0], x.shape[0] * 2 + 1, y.shape[1], x.numel()

    run = mixed(function, dynamic=True)
    for shape in ((3, 4), (5, 4), (3, 4), (0, 4)):
        check(function, torch.randn(shape), run=run, calls=1)
    assert sum(device_segments()) > 2


def test_seven_dimensions_that_change() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return x.view(y.shape) + y, x.permute(6, 5, 4, 3, 2, 1, 0).softmax(0).sum((1, 2))

    run = mixed(function, dynamic=True)
    for shape in ((2, 3, 4, 5, 6, 7, 3), (3, 2, 2, 2, 4, 3, 5), (4, 2, 3, 2, 4, 3, 2)):
        check(function, torch.randn(shape), torch.randn(shape).flatten(0, 1), run=run, calls=1)
    assert len(device_segments()) >= 1


def test_a_marked_dimension() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return ops.twice(x.exp()).sum(0) * x.shape[0] + y

    run = mixed(function)
    for size in (3, 7, 2):
        x, y = torch.randn(size, 4), torch.randn(4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(run(x, y), function(x, y))
    assert sum(device_segments()) >= 6


def test_numbers_come_and_go() -> None:
    def function(x: Tensor, scale: float, shift: int, flag: bool) -> Any:
        y = ops.twice(x.exp() * scale) + shift
        return (y.cos() if flag else y), shift, shift * 2, scale

    run = mixed(function, dynamic=True)
    for arguments in ((2.5, 3, True), (0.5, 3, True), (2.5, 4, False), (-1.0, 0, True)):
        check(function, torch.randn(4), *arguments, run=run, calls=1)


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_number_is_an_argument_of_an_operator(where: str) -> None:
    def function(x: Tensor, n: int) -> Any:
        if where == "device":
            return ops.twice(x.exp()).view(n, -1).narrow(0, 0, n - 1) + n
        first, second = ops.pieces(x.exp(), [n, x.shape[0] - n], 2.0, False, None)
        return first.sin(), second * n

    run = mixed(function, dynamic=True)
    for n in (2, 4):
        check(function, torch.randn(12), n, run=run, calls=1)
    assert sum(device_segments()) >= 2


def test_numbers_alone() -> None:
    def function(n: int, scale: float) -> Any:
        return ops.twice(torch.arange(n).float().exp()) * scale, n + 1

    run = mixed(function, dynamic=True)
    for n in (3, 1):
        check(function, n, n / 2, run=run, calls=1)


def test_gradients_with_sizes_that_change() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (ops.squared(x @ w).tanh() * x.shape[0]).mean()

    def step(run: Any, size: int) -> list[Any]:
        torch.manual_seed(size)
        x, w = torch.randn(size, 4), torch.randn(4, 3, requires_grad=True)
        loss = run(x, w)
        loss.backward()
        return [loss, w.grad]

    run = mixed(function, dynamic=True)
    for size in (5, 2, 5):
        assert_same(step(run, size), step(function, size))
    assert sum(device_segments()) >= 4


def test_sizes_that_change_and_a_written_input() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        ops.add_into(x, y.cos())
        y.mul_(x.shape[0])
        return x.exp(), x[1:], y

    run = mixed(function, dynamic=True)
    for size in (3, 6):
        check(function, torch.randn(size, 2), torch.randn(size, 2), run=run, memory=True)
