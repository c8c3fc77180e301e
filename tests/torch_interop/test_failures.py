"""A device that fails in a call: PyTorch takes over, the user is told, nothing is lost."""

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pjrt_bridge.errors import HostFallbackWarning, PjrtError
from pjrt_bridge.mixed.segment import MAX_FAILURES
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop import compiled_graphs
from tests.counting import settled
from tests.faults.segments import Faults
from tests.torch_interop.helpers import Refused, assert_same, compiled, custom_operators

pytestmark = pytest.mark.usefixtures("fresh", "way")


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise Refused("no")

    made = {
        "twice(Tensor x) -> Tensor": (lambda x: x * 2, torch.empty_like),
        "raises(Tensor x) -> Tensor": (raises, torch.empty_like),
    }
    with custom_operators("pjrt_failures", made):
        yield


def whole(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x.sum())
    return x.exp() + total


def in_parts(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x.sum())
    return torch.ops.pjrt_failures.twice(x.exp() + total).sin() * x


CASES = [
    (function, name, when)
    for function, names in ((whole, ["inference"]), (in_parts, ["inference_0", "inference_2"]))
    for name in names
    for when in ("start", "end")
]


@pytest.mark.parametrize(("function", "name", "when"), CASES)
def test_pytorch_takes_over(faults: Faults, function: Any, name: str, when: str) -> None:
    run, x = compiled(function, fallback="host"), torch.randn(5)

    def both(times: int = 1) -> None:
        for _ in range(times):
            totals = torch.zeros(1), torch.zeros(1)
            found, expected = run(x, totals[0]), function(x, totals[1])
            assert_same([found, totals[0]], [expected, totals[1]])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        both()
    gc.collect()
    before = settled()
    faults.failing = (name, when)
    with pytest.warns(HostFallbackWarning, match="it failed on the device: ") as caught:
        both(times=2)
    # Said once, recorded once, and nothing is held.
    assert len(caught) == 1
    (graph,) = compiled_graphs()
    (failure,) = [found for found in graph.fallback_reasons if found.kind == "failed"]
    assert "it failed on the device" in failure.reason
    gc.collect()
    assert live() == before
    faults.failing = None
    faults.starts.clear()
    both()
    assert name in faults.starts


def test_a_device_that_keeps_failing_is_left_alone(faults: Faults) -> None:
    run, x = compiled(torch.exp, fallback="host"), torch.randn(3)
    faults.failing = ("inference", "start")
    with pytest.warns(HostFallbackWarning):
        found = [run(x) for _ in range(MAX_FAILURES + 3)]
    assert_same(found, [x.exp()] * len(found))
    assert len(faults.starts) == MAX_FAILURES


def test_a_success_starts_the_count_again(faults: Faults) -> None:
    run, x = compiled(torch.exp, fallback="host"), torch.randn(3)

    def fail_and_succeed() -> None:
        for failing in (("inference", "end"), None) * MAX_FAILURES:
            faults.failing = failing
            run(x)

    with pytest.warns(HostFallbackWarning):
        fail_and_succeed()
    assert len(faults.starts) == 2 * MAX_FAILURES


@pytest.mark.parametrize("when", ["start", "end"])
def test_the_error_is_raised_where_the_host_is_forbidden(faults: Faults, when: str) -> None:
    run, x = compiled(torch.exp), torch.randn(3)
    run(x)
    faults.failing = ("inference", when)
    with pytest.raises(PjrtError):
        run(x)
    faults.failing = None
    assert_same(run(x), x.exp())


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_an_exception_leaves_when_the_device_has_read_its_arguments(
    faults: Faults,
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ x, torch.ops.pjrt_failures.raises(x)

    run, x = compiled(function, fallback="host"), torch.ones(400, 400)
    with pytest.raises(Refused, match="no"):
        run(x)
    assert faults.ends == len(faults.starts) > 0
