"""Graphs that are split between the device and PyTorch."""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.errors import DataError, HostFallbackWarning, ResourceExhausted
from pjrt_bridge.runtime import Client, Executable
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import (
    Refused,
    assert_same,
    assert_same_gradients,
    compiled,
    custom_operators,
    in_threads,
)

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    def twice(x: torch.Tensor) -> torch.Tensor:
        if x.numel() and x.flatten()[0] == 666:
            raise Refused("not this number")
        return x * 2

    made = {
        "twice(Tensor x) -> Tensor": (twice, torch.empty_like),
        "ends(Tensor x) -> (Tensor, Tensor)": (
            lambda x: (x[:1] + 0, x[-1:] + 0),
            lambda x: (torch.empty_like(x[:1]), torch.empty_like(x[:1])),
        ),
        "liar(Tensor x, bool shape) -> Tensor": (
            lambda x, shape: x.double()[: 1 if shape else None],
            lambda x, shape: torch.empty_like(x),
        ),
    }
    with custom_operators("pjrt_mixed", made):
        yield


def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.pjrt_mixed.twice(x)


def mixed(function: Callable[..., Any]) -> Any:
    return compiled(function, fallback="host")


def segments() -> list[int]:
    return [graph.on_device for graph in compiled_graphs()]


@pytest.fixture(autouse=True)
def forget() -> None:
    torch.compiler.reset()


def test_fifty_alternations() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for step in range(50):
            x = twice(torch.tanh(x) * 0.3 + step / 100)
        return x.cos()

    x = torch.randn(5, 3)
    assert_same(mixed(function)(x), function(x))
    assert segments() == [51]


def test_an_operator_with_several_results_of_which_one_is_used() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = torch.ops.pjrt_mixed.ends(x.exp())
        return last * 3, x + first

    x = torch.randn(4)
    assert_same(mixed(function)(x), function(x))


def test_permuted_expanded_and_viewed_values_cross() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = (x + 1).t()
        wide = (x[:, :1] * 2).expand(3, 4)
        return [twice(y) @ y.t(), twice(wide).sum(0) + wide[0], twice(y.reshape(-1)[3:]) - 1, y]

    x = torch.randn(3, 4)
    assert_same(mixed(function)(x), function(x))


def test_an_argument_that_is_updated_and_read_on_both_sides() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = twice(x) + y
        x.add_(y)
        view = x.view(-1)
        y.copy_(twice(x))
        return before, view * 2, twice(view[2:]), x

    def run(candidate: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        results = [*candidate(x, y), *candidate(x, y)]
        return [*results, x, y]

    assert_same(run(mixed(function)), run(function))


def test_batch_norm_around_an_operator_on_the_host() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)

        class Twice(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return twice(x.detach()) + x

        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), Twice(), nn.Linear(6, 2))

    eager, device = model(), model()
    run = mixed(device)
    for _ in range(3):
        x = torch.randn(5, 4)
        for candidate in (eager, run):
            candidate(x).square().sum().backward()
    assert_same(dict(device.state_dict()), dict(eager.state_dict()))
    assert_same_gradients(device, eager)


def test_dropout_on_the_host_draws_as_eager_does() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4), nn.Dropout(0.1))
    run = compiled(model, host_ops=["aten.native_dropout"])
    x = torch.randn(6, 8)
    for _ in range(2):
        torch.manual_seed(3)
        found = run(x)
        torch.manual_seed(3)
        assert_same(found, model(x), rtol=1e-4, atol=1e-5)
    assert segments()[0] >= 2


def test_an_exception_of_an_operator_reaches_the_user_and_leaves_all_usable() -> None:
    run = mixed(lambda x: twice(x + 1) * 3)
    x = torch.zeros(4)
    assert_same(run(x), torch.full((4,), 6.0))
    gc.collect()
    before = live()
    for _ in range(3):
        with pytest.raises(Refused, match="not this number"):
            run(x + 665)
    assert_same(run(x), torch.full((4,), 6.0))
    gc.collect()
    # What earlier tests left may go in the meantime.
    assert {kind: count for kind, count in live().items() if count > before.get(kind, 0)} == {}


def test_a_segment_that_cannot_be_compiled_runs_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_program = Client.compile

    def fails_once(self: Client, program: Any, **options: Any) -> Executable:
        if program.name == "inference_0":
            raise ResourceExhausted("full", code=8, plugin="cpu", function="Client_Compile")
        return compile_program(self, program, **options)

    monkeypatch.setattr(Client, "compile", fails_once)
    x = torch.randn(4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return twice(x.exp()).sin()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_same(mixed(function)(x), function(x))
    shown = [str(item.message) for item in caught if item.category is HostFallbackWarning]
    assert any("a segment of the inference graph, PyTorch does" in text for text in shown)
    assert any("RESOURCE_EXHAUSTED: full" in text for text in shown)
    assert segments() == [1]


def test_an_operator_that_gives_another_type_than_its_fake_promises() -> None:
    x = torch.randn(4)
    found = mixed(lambda x: torch.ops.pjrt_mixed.liar(x.exp(), False) * 2)(x)
    assert_same(found, x.exp() * 2)


def test_an_operator_that_gives_another_shape_than_its_fake_promises() -> None:
    run, x = mixed(lambda x: torch.ops.pjrt_mixed.liar(x.exp(), True) * 2), torch.randn(4)
    for _ in range(2):
        with pytest.raises(DataError, match=r"shape \(1,\) where f32\[4\] was promised"):
            run(x)


def test_eight_threads() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return twice(x * 3).cumsum(0) - x

    run = mixed(function)
    run(torch.zeros(64))
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((64,), float(seed))
        for _ in range(60):
            wrong.extend([] if torch.equal(run(x), function(x)) else [seed])

    in_threads(work, [(seed,) for seed in range(8)])
    assert not wrong
