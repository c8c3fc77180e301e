"""Long and wide graphs, and operators that raise in the middle of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pjrt_bridge.runtime import live_handles
from tests.conftest import Census
from tests.torch_interop.helpers import Refused, assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def test_fifty_changes_with_values_that_skip_them() -> None:
    def function(x: Tensor) -> Any:
        first, kept = x.exp(), []
        for step in range(50):
            x = ops.twice(x.tanh() + step / 100)
            if step % 10 == 0:
                kept.append(x.cos() + first)
        return x.sin() + first, *kept

    check(function, torch.randn(5, 3), segments=50)


def test_a_wide_graph_needs_few_segments() -> None:
    def function(x: Tensor) -> Tensor:
        branches = [ops.twice((x * index).cos()).sin() for index in range(16)]
        return torch.stack(branches).sum(0) + torch.cat([ops.squared(b) for b in branches]).sum()

    check(function, torch.randn(3, 4), segments=2)
    assert sum(device_segments()) <= 4


def test_many_inputs_and_results() -> None:
    def function(*xs: Tensor) -> list[Tensor]:
        made = [ops.twice(x.exp()) if index % 3 == 0 else x.cos() for index, x in enumerate(xs)]
        return [one + other for one, other in zip(made, made[::-1], strict=True)]

    check(function, *[torch.randn(3) for _ in range(40)])


def failing(x: Tensor, y: Tensor) -> Tensor:
    """Much device work is on its way when the operator gets its turn."""
    busy = y
    for _ in range(6):
        busy = (busy @ y).tanh()
    z = ops.guarded(x + 1)
    return ops.twice(z.cos()) + busy.sum() + ops.guarded(x)


def test_an_exception_is_the_operators_own_and_leaves_nothing() -> None:
    run = mixed(failing)
    x, y = torch.zeros(4), torch.randn(300, 300) / 30
    assert_same(run(x, y), failing(x, y))
    census = Census()
    for add in (ops.REFUSED_NUMBER - 1, ops.REFUSED_NUMBER):
        with pytest.raises(Refused) as caught:
            run(x + add, y)
        assert type(caught.value) is Refused
        assert caught.value.args == ("not this number",)
        assert caught.value.__cause__ is None
        del caught
        # At once: nothing runs on after the exception. Events that are over may wait to be freed.
        now = live_handles()
        assert {kind: now[kind] for kind in now if kind != "Event"} == {
            kind: count for kind, count in census.before.items() if kind != "Event"
        }
        assert_same(run(x, y), failing(x, y))
    census.check()


def test_arguments_belong_to_the_caller_again_after_an_exception() -> None:
    """A segment that still read them would crash, or give its results of freed memory."""
    run = mixed(failing)
    x, bad = torch.zeros(4), torch.full((4,), ops.REFUSED_NUMBER - 1)
    y = torch.randn(300, 300) / 30
    expected = run(x, y)
    for _ in range(30):
        passing = y.clone()
        with pytest.raises(Refused):
            run(bad, passing)
        passing.fill_(float("nan"))
        del passing
    assert_same(run(x, y), expected)


def test_an_exception_leaves_written_arguments_as_they_were_on_the_device() -> None:
    """New values of arguments are written at the end: an exception comes before."""

    def function(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return ops.guarded(x.cos() * 0 + x).cos() + count

    run = mixed(function)
    count = torch.zeros(1)
    run(torch.zeros(3), count)
    with pytest.raises(Refused):
        run(torch.full((3,), ops.REFUSED_NUMBER), count)
    assert count.item() in (1, 2)
    run(torch.zeros(3), count)
    assert count.item() in (2, 3)


def test_an_exception_of_an_operator_of_torch() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x.cos() - 5) @ x.exp()

    x = torch.randn(3, 3)
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        function(x)
    with pytest.raises(torch.linalg.LinAlgError) as found:
        mixed(function)(x)
    assert str(found.value) == str(expected.value)


def test_an_exception_in_backward() -> None:
    """The operator's backward is the operator: it finds its number in the gradient."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return ops.guarded((x * w).exp()) + x

    def gradients(run: Any, tangent: float) -> Any:
        x = torch.ones(3, 3, requires_grad=True)
        w = torch.eye(3, requires_grad=True)
        run(x, w).backward(torch.full((3, 3), tangent))
        return [x.grad, w.grad]

    run = mixed(function)
    assert_same(gradients(run, 1.0), gradients(function, 1.0))
    with pytest.raises(Refused):
        gradients(run, ops.REFUSED_NUMBER)
    assert_same(gradients(run, 2.0), gradients(function, 2.0))
