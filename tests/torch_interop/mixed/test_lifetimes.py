"""Who holds memory for how long in split programs."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.conftest import Census
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def function(x: Tensor) -> list[Tensor]:
    y = x.exp()
    z = ops.twice(y).cos()
    return [y, z, ops.twice(z), z.t() + 1]


def test_results_outlive_the_program() -> None:
    x = torch.randn(64, 64)
    found = mixed(function)(x)
    expected = function(x)
    torch.compiler.reset()
    torch._dynamo.reset()
    gc.collect()
    scratch = [torch.full((64, 64), float("nan")) for _ in range(50)]
    assert_same(found, expected)
    for result in found:
        result.add_(1)
    assert_same(found, [result + 1 for result in expected])
    assert len(scratch) == 50


def test_results_that_are_held_are_not_overwritten() -> None:
    run = mixed(function)
    arguments = [torch.randn(32, 32) for _ in range(12)]
    held = [run(x) for x in arguments]
    assert_same(held, [function(x) for x in arguments])
    storages = {result.untyped_storage().data_ptr() for results in held for result in results}
    assert len(storages) == 4 * len(arguments)


@pytest.mark.parametrize("shape", [(3, 3), (200, 200)])
def test_arguments_that_are_freed_or_written_right_after_the_call(shape: tuple[int, int]) -> None:
    run = mixed(function)
    x = torch.randn(shape)
    expected = function(x)
    held = []
    for _ in range(20):
        passing = x.clone()
        held.append(run(passing))
        passing.fill_(float("nan"))
        del passing
        held.append(run(x.clone()))
    for found in held:
        assert_same(found, expected)


def test_results_that_the_caller_writes_into() -> None:
    """Neither arguments nor later calls see it."""
    run, x = mixed(function), torch.randn(8, 8)
    kept, expected = x.clone(), function(x)
    for _ in range(3):
        found = run(x)
        assert_same(found, expected)
        for result in found:
            result.zero_()
    assert_same(x, kept)


def test_a_call_takes_the_last_call_s_results() -> None:
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ops.twice(x.tanh()).cos() + y, ops.squared(y.sin()) - x

    run = mixed(step)
    mine = theirs = (torch.randn(16), torch.randn(16))
    for _ in range(30):
        mine, theirs = run(*mine), step(*theirs)
    assert_same(mine, theirs)


@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_left_of_many_calls(training: bool) -> None:
    run: Callable[[Tensor], list[Tensor]] = mixed(function)
    x = torch.randn(8, 8, requires_grad=training)

    def call() -> None:
        results = run(x)
        if training:
            results[2].sum().backward()

    call()
    census = Census()
    for _ in range(100):
        call()
    census.check()
    assert sum(device_segments()) >= 2


def test_saved_tensors_are_freed_with_the_graph() -> None:
    run = mixed(function)
    x = torch.randn(8, 8, requires_grad=True)
    run(x)[2].sum().backward()
    census = Census()
    held = [run(x) for _ in range(5)]
    held[3][2].sum().backward()
    del held
    census.check()
