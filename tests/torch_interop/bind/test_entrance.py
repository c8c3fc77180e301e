"""Calls that go straight into the dispatcher: which do, and that they differ in nothing."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import pjrt_bridge
from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.mixed import records
from pjrt_bridge.runtime import live_handles
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.ownership import callbacks
from pjrt_bridge.runtime.ownership.deferred import defer
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.entrance import Entrance
from tests.plugins import require_dispatcher
from tests.runtime.dispatch.launching import FailingFunction, too_small
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


class Ways:
    """How calls went.

    Attributes:
        entrances: made so far.
        long: calls that did not take one of them.
    """

    def __init__(self) -> None:
        self.entrances: list[Entrance] = []
        self.long = 0


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    require_dispatcher()
    found = Ways()
    before = Entrance.before

    def counting(self: Entrance, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        found.entrances.append(self)

        def counted(*values: Any) -> Any:
            found.long += 1
            return otherwise(*values)

        return before(self, counted)

    monkeypatch.setattr(Entrance, "before", counting)
    return found


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 + y


def test_all_calls_but_the_first_take_it(ways: Ways) -> None:
    function = compiled(add)
    for _ in range(6):
        x, y = torch.randn(5, 3), torch.randn(5, 3)
        assert_same(function(x, y), add(x, y))
    assert len(ways.entrances) == 1
    assert ways.long == 1


def test_also_where_gradients_are_on_but_not_wanted(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    with torch.enable_grad():
        for _ in range(3):
            found = function(x, y)
            assert not found.requires_grad
    assert ways.long == 1


def not_taken() -> dict[str, tuple[Callable[..., Any], bool]]:
    """Functions of a matrix, and whether they are trained."""

    def hands_back(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x * 2

    def views(x: torch.Tensor) -> torch.Tensor:
        return x.t()

    def gives_one_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = x * 2
        return doubled, doubled

    def gives_a_constant(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2, x.shape[0]

    def draws(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones_like(x).bernoulli_(1.0)

    def checks(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x == x).all(), "no NaN")
        return x * 2

    return {
        function.__name__: (function, False)
        for function in (hands_back, views, gives_one_twice, draws, checks)
    } | {"trained": (lambda x: x * 2, True), "gives_a_constant": (gives_a_constant, False)}


@pytest.mark.parametrize("name", not_taken())
def test_what_needs_more_is_right_as_well(ways: Ways, name: str) -> None:
    function, trained = not_taken()[name]
    ours = compiled(function)
    with torch.set_grad_enabled(trained):
        for _ in range(3):
            x = torch.randn(4, 4, requires_grad=trained)
            twin = x.clone()
            found, expected = ours(x), function(twin)
            assert_same(found, expected)
            assert_same(x, twin)


@pytest.mark.parametrize("name", ["views", "draws", "checks", "trained"])
def test_what_needs_more_takes_no_fast_path(ways: Ways, name: str) -> None:
    function, trained = not_taken()[name]
    with torch.set_grad_enabled(trained):
        compiled(function)(torch.randn(4, 4, requires_grad=trained))
    assert ways.entrances == []


def test_sizes_that_a_call_brings_take_none(ways: Ways) -> None:
    function = compiled(add)
    for size in (3, 4, 5, 4):
        x, y = torch.randn(size), torch.randn(size)
        assert_same(function(x, y), add(x, y))
    # Of the first size alone.
    assert len(ways.entrances) == 1


def test_parameters_may_be_written_into_and_replaced(ways: Ways) -> None:
    model = nn.Linear(6, 4)
    ours = compiled(model)
    x = torch.randn(3, 6)
    for _ in range(4):
        assert_same(ours(x), model(x))
    assert ways.long == 1
    model.weight.add_(1)
    assert_same(ours(x), model(x))
    assert ways.long == 1
    model.weight.data = torch.randn(4, 6)
    for _ in range(3):
        assert_same(ours(x), model(x))
    assert ways.long == 2


def test_arguments_that_stay_are_kept_until_they_move(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(5):
        assert_same(function(x, y), add(x, y))
    x.mul_(3)
    assert_same(function(x, y), add(x, y))
    assert ways.long == 1
    z = torch.randn(64)
    for _ in range(5):
        assert_same(function(x, z), add(x, z))
    # One call noticed.
    assert ways.long == 2


def test_one_of_them_may_stay(ways: Ways) -> None:
    function = compiled(add)
    y = torch.randn(64)
    for _ in range(6):
        x = torch.randn(64)
        assert_same(function(x, y), add(x, y))
        y.add_(1)
    assert ways.long <= 2


def test_large_arguments_are_not_kept() -> None:
    require_dispatcher()
    function = compiled(add)
    x, y = torch.randn(1 << 16), torch.randn(1 << 16)
    for _ in range(5):
        function(x, y)
    gone = weakref.ref(x.untyped_storage())
    owner = weakref.ref(x)
    del x
    gc.collect()
    assert owner() is None
    # The plugin may say some time after a call that it has done with the memory.
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        live_handles()
    assert gone() is None


def test_the_same_memory_read_otherwise(ways: Ways) -> None:
    memory = torch.randn(36)
    square, other = memory.view(6, 6), memory.view(6, 6).t()
    function = compiled(lambda x: x * 2)
    for _ in range(4):
        assert_same(function(square), square * 2)
    for _ in range(4):
        assert_same(function(other), other * 2)
        assert_same(function(square), square * 2)


def test_values_that_do_not_lie_as_the_program_takes_them(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    function(x, y)
    unaligned = torch.randn(65)[1:]
    for _ in range(3):
        assert_same(function(x, unaligned), add(x, unaligned))


def test_values_that_are_negated_lazily(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch._neg_view(torch.randn(64))
    for _ in range(4):
        assert_same(function(x, y), add(x, y))
    assert ways.long == 4


def test_complex_numbers(ways: Ways) -> None:
    """Those that are conjugated when they are read take the usual path."""
    function = compiled(add)
    x, y = torch.randn(2, 64, dtype=torch.complex64).unbind()
    for _ in range(4):
        assert_same(function(x, y), add(x, y))
    assert ways.long == 1
    for _ in range(3):
        assert_same(function(x, y.conj()), add(x, y.conj()))
        assert_same(function(x, y), add(x, y))
    assert ways.long == 4


def test_threads_of_which_one_brings_values_that_are_negated_lazily(ways: Ways) -> None:
    function = compiled(add)
    x = torch.randn(64)

    @torch.no_grad()
    def call(y: torch.Tensor) -> None:
        for _ in range(200):
            assert_same(function(x, y), add(x, y))

    values = [torch.randn(64), torch._neg_view(torch.randn(64))] * 2
    with ThreadPoolExecutor(len(values)) as threads:
        list(threads.map(call, values))
    assert 400 <= ways.long < 800


def test_results_do_not_share_memory(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    results = [function(x, y) for _ in range(5)]
    assert len({result.data_ptr() for result in results}) == 5
    results[0].zero_()
    assert_same(results[1], add(x, y))


def test_reports_count_what_crosses(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    counted = []
    # A value that stayed where it was for some calls is counted once, also when another follows.
    for value in (x, x, x, x, *(torch.randn(64) for _ in range(4))):
        function(value, y)
        (graph,) = compiled_graphs()
        counted.append(graph.segments[0].bytes_shared)
    assert counted == [3 * 64 * 4] * 8
    function(torch.randn(64), torch.randn(65)[1:])
    (graph,) = compiled_graphs()
    assert graph.segments[0].bytes_copied == 64 * 4


def test_who_watches_sees_each_call(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(3):
        function(x, y)
    with records.watching() as watch:
        function(x, y)
    assert [call.seconds is not None for call in watch.calls.values()] == [True]
    assert ways.long == 2


def test_a_profile_sees_each_call(ways: Ways, tmp_path: Any) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(3):
        function(x, y)
    with pjrt_bridge.profile(tmp_path):
        function(x, y)
        function(x, y)
    assert ways.long == 3


@pytest.mark.parametrize("calls", [2, 5], ids=["while it looks", "when it is open"])
def test_a_failure_goes_the_long_way(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    entry, faults = plans._entry, list[FailingFunction]()

    def once(args: Any) -> None:
        faults[0].active = False
        too_small(args)

    def faulty(api: Api, name: str) -> tuple[int, int]:
        if name != "LoadedExecutable_Execute":
            return entry(api, name)
        faults.append(FailingFunction(api, name, once))
        return faults[-1].entry

    monkeypatch.setattr(plans, "_entry", faulty)
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(calls):
        function(x, y)
    assert ways.long == 1
    (fault,) = faults
    fault.active = True
    for _ in range(3):
        assert_same(function(x, y), add(x, y))
    assert not fault.active
    assert ways.long == 2


def test_other_errors_reach_the_user(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no long way could mend."""
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(5):
        function(x, y)
    (fast_path,) = ways.entrances
    entrance = fast_path._native
    with pytest.raises(IndexError):
        entrance(x)
    with pytest.raises(TypeError):
        entrance(x, y, scale=2)
    entrance.pinned = ()
    with pytest.raises(TypeError, match="what is kept"):
        entrance(x, y)
    assert ways.long == 1


def test_what_was_left_behind_is_done(ways: Ways) -> None:
    done: list[int] = []
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for number in range(6):
        defer(partial(done.append, number), later=True)
        assert_same(function(x, y), add(x, y))
        assert done[-1] == number
    assert ways.long == 1


def test_a_callback_computes_nothing(ways: Ways) -> None:
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(5):
        function(x, y)
    with callbacks.calling_back(), pytest.raises(PjrtBridgeError, match="calls back"):
        function(x, y)
    assert_same(function(x, y), add(x, y))


def test_threads_take_it_at_the_same_time(ways: Ways) -> None:
    function = compiled(add)
    y = torch.ones(64)
    for _ in range(5):
        function(torch.zeros(64), y)

    def work(thread: int) -> None:
        with torch.no_grad():
            for step in range(100):
                found = function(torch.full((64,), 1000.0 * thread + step), y)
                assert found[63] == 2000 * thread + 2 * step + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_nothing_is_left_behind() -> None:
    require_dispatcher()
    # The client that all share stays.
    pjrt_bridge.client()
    before = live_handles()
    function = compiled(add)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(5):
        function(x, y)
    del function
    torch.compiler.reset()
    gc.collect()
    left = {kind: count for kind, count in live_handles().items() if count > before.get(kind, 0)}
    assert left == {}
