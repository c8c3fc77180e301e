"""Split programs are called, and compiled, by several threads at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torch_interop.helpers import Refused, assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")

THREADS = 8


def together(work: Callable[[int], Any]) -> list[Any]:
    """Results of the work of all threads, which start at one moment; their first exception."""
    barrier = threading.Barrier(THREADS)

    def start(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def alternating(x: Tensor) -> Tensor:
    for _ in range(3):
        x = ops.twice(x.cumsum(0).tanh()) - x
    return x


def test_one_program() -> None:
    run = mixed(alternating)
    run(torch.zeros(64))

    def work(index: int) -> None:
        torch.manual_seed(index)
        for _ in range(40):
            x = torch.randn(64)
            assert_same(run(x), alternating(x))

    together(work)


def test_one_program_that_raises_in_some_threads() -> None:
    def function(x: Tensor) -> Tensor:
        return ops.guarded(x * 2).cos() + x.exp()

    run = mixed(function)
    run(torch.zeros(64))

    def work(index: int) -> int:
        raised = 0
        for step in range(30):
            bad = (index + step) % 3 == 0
            x = torch.full((64,), ops.REFUSED_NUMBER / 2 if bad else step / 30)
            try:
                found = run(x)
            except Refused:
                raised += 1
                assert bad
            else:
                assert_same(found, function(x))
                assert not bad
        return raised

    assert together(work) == [10] * THREADS


def test_one_program_with_sizes_that_change() -> None:
    run = mixed(alternating, dynamic=True)
    run(torch.zeros(9))

    def work(index: int) -> None:
        for step in range(4):
            x = torch.randn(3 + (index + step) % 3)
            assert_same(run(x), alternating(x))

    together(work)


def test_different_programs() -> None:
    functions = [
        lambda x: ops.twice(x.exp()).sum(0) + x,
        lambda x: ops.squared(x.cos()).flip(0),
        lambda x: ops.twice(x) @ x.t(),
        lambda x: ops.pieces(x.sin(), [2, 6], 2.0, True, None)[1] + 1,
    ]
    runs = [mixed(function) for function in functions]
    for run in runs:
        run(torch.zeros(8, 8))

    def work(index: int) -> None:
        for step in range(40):
            x = torch.randn(8, 8)
            at = (index + step) % len(runs)
            assert_same(runs[at](x), functions[at](x))

    together(work)


def test_compiling_at_once() -> None:
    def work(index: int) -> None:
        def function(x: Tensor) -> Tensor:
            return ops.twice(x.exp() + index).cos() * (index + 1)

        run, x = mixed(function), torch.randn(4, index + 2)
        for _ in range(3):
            assert_same(run(x), function(x))

    call = nn.Module.__call__
    together(work)
    assert sum(device_segments()) >= 2 * THREADS
    # Torch's tracer replaces it while it traces; two at once would leave it so for ever.
    assert nn.Module.__call__ is call


def test_training_in_every_thread() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def function(x: Tensor) -> Tensor:
        return ops.squared(model(x)).sum()

    run = mixed(function)
    run(torch.randn(4, 6)).backward()

    def work(index: int) -> None:
        torch.manual_seed(index)
        for _ in range(10):
            x = torch.randn(4, 6)
            mine = torch.autograd.grad(run(x), list(model.parameters()))
            theirs = torch.autograd.grad(function(x), list(model.parameters()))
            assert_same(mine, theirs, rtol=1e-3)

    together(work)
