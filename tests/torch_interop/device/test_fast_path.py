"""Compiled graphs of resident tensors, past AOTAutograd, and waiting for what they give."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import DeviceError
from pjrt_bridge.mixed import records
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.torch_interop import compat, compiled_graphs, device
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.resident.graphs.resident_graph import ResidentPath
from tests.runtime.dispatch.launching import FailingFunction, too_small
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


class Ways:
    """How calls went.

    Attributes:
        paths: fast paths that were made.
        long: calls that did not take one of them.
    """

    def __init__(self) -> None:
        self.paths = self.long = 0

    def check(self, long: int) -> None:
        """Assert that so many calls took no fast path, where there are any."""
        assert native.module is None or self.long == long


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    found, before = Ways(), ResidentPath.before

    def counting(self: ResidentPath, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        found.paths += 1

        def counted(*values: Any) -> Any:
            found.long += 1
            return otherwise(*values)

        return before(self, counted)

    monkeypatch.setattr(ResidentPath, "before", counting)
    return found


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 + y


def test_calls_go_past_the_wrapper(ways: Ways) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    there = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).to("pjrt")
    there.load_state_dict(model.state_dict())
    run = compiled(there)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(3, 6)
            found = run(x.to("pjrt"))
            assert not found.requires_grad
            torch.testing.assert_close(found.cpu(), model(x))
        # Parameters that are written into, or are in other storages.
        there[0].weight.add_(1)
        model[0].weight.add_(1)
        torch.testing.assert_close(run(x.to("pjrt")).cpu(), model(x))
        there[2].weight.data = torch.zeros(2, 4, device="pjrt")
        model[2].weight.data = torch.zeros(2, 4)
        torch.testing.assert_close(run(x.to("pjrt")).cpu(), model(x))
    assert native.module is None or ways.paths == 1
    ways.check(0)


def test_programs_that_take_memory_of_arguments(ways: Ways) -> None:
    run = compiled(lambda x: x.add_(1))
    x = torch.randn(256, 128)
    there = x.to("pjrt")
    for _ in range(4):
        run(there)
    ways.check(0)
    # What else has the elements keeps them.
    other, buffer = there.clone(), device.buffer_of(there)
    run(there)
    torch.testing.assert_close(torch.from_numpy(buffer.to_numpy()), x + 4)
    torch.testing.assert_close(other.cpu(), x + 4)
    run(other)
    run(there)
    torch.testing.assert_close(other.cpu(), x + 5)
    torch.testing.assert_close(there.cpu(), x + 6)
    ways.check(0)


def test_nothing_crosses(ways: Ways) -> None:
    run = compiled(add)
    x, y = torch.ones(8, device="pjrt"), torch.ones(8, device="pjrt")
    for _ in range(3):
        run(x, y)
    (graph,) = compiled_graphs()
    assert (graph.ran, graph.segments[0].bytes_shared, graph.segments[0].bytes_copied) == (
        True,
        0,
        0,
    )
    ways.check(0)


def test_who_watches_sees_each_call(ways: Ways) -> None:
    run = compiled(add)
    x, y = torch.ones(8, device="pjrt"), torch.ones(8, device="pjrt")
    for _ in range(3):
        run(x, y)
    with records.watching() as watch:
        run(x, y)
    assert [call.seconds is not None for call in watch.calls.values()] == [True]
    ways.check(1)


@pytest.mark.parametrize("lazy", [torch._neg_view, torch.conj], ids=["negated", "conjugated"])
def test_what_is_not_in_memory_as_it_reads(ways: Ways, lazy: Any) -> None:
    run = compiled(add)
    host = torch.randn(8, dtype=torch.complex64 if lazy is torch.conj else torch.float32)
    x, y = host.to("pjrt"), torch.ones_like(host).to("pjrt")
    for _ in range(2):
        assert_same(run(x, y).cpu(), add(host, torch.ones_like(host)))
        assert_same(run(lazy(x), y).cpu(), add(lazy(host), torch.ones_like(host)))


def test_views_and_written_arguments(ways: Ways) -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    host, y = torch.arange(12.0).view(3, 4), torch.ones(3)
    there, y_there = host.to("pjrt"), y.to("pjrt")
    for function in (add, writes):
        run = compiled(function)
        for at in (0, 1, 2, 1):
            version = there._version
            assert_same(run(there[:, at], y_there).cpu(), function(host[:, at], y))
            assert (there._version > version) is (function is writes)
        assert_same(there.cpu(), host)


def test_functions_that_write_and_give_nothing_or_what_they_wrote(ways: Ways) -> None:
    def decays(*states: torch.Tensor) -> None:
        for state in states:
            state.mul_(0.5)

    def counts(total: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total.add_(x.sum())
        return total, x * total

    run = compiled(decays)
    states = [torch.full((3,), float(at), device="pjrt") for at in range(4)]
    views = [state[1:] for state in states]
    for step in range(1, 5):
        versions = [state._version for state in states]
        assert run(*states) is None
        assert all(state._version > before for state, before in zip(states, versions, strict=True))
        for at, view in enumerate(views):
            assert_same(view.cpu(), torch.full((2,), at / 2**step))
    assert native.module is None or ways.paths == 1
    ways.check(0)
    run = compiled(counts)
    ours, theirs = torch.zeros((), device="pjrt"), torch.zeros(())
    for _ in range(4):
        x = torch.randn(5)
        found = run(ours, x.to("pjrt"))
        assert found[0] is ours
        assert_same([item.cpu() for item in found], list(counts(theirs, x)))


def test_a_tensor_that_is_written_and_read_as_another_argument(ways: Ways) -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x + y.exp()

    run = compiled(writes)
    ours, theirs = torch.ones(4, device="pjrt"), torch.ones(4)
    for _ in range(3):
        assert_same(run(ours, ours).cpu(), writes(theirs, theirs))
        assert_same(ours.cpu(), theirs)
        one, other = torch.ones(4), torch.randn(4)
        there = one.to("pjrt")
        assert_same(run(there, other.to("pjrt")).cpu(), writes(one, other))
        assert_same(there.cpu(), one)


def test_saved_values_that_are_written_are_noticed(ways: Ways) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x + 1

    run, x = compiled(writes), torch.ones(4, device="pjrt")
    for _ in range(3):
        run(x)
    weight = torch.ones(4, device="pjrt", requires_grad=True)
    loss = (weight * x).sum()
    run(x)
    ways.check(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_large_arguments_are_written_as_well(ways: Ways) -> None:
    """Whose memory the program takes over."""

    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5).add_(y)
        return x.sum()

    run = compiled(writes)
    ours, theirs = torch.ones(1 << 15, device="pjrt"), torch.ones(1 << 15)
    kept = ours.clone()
    for _ in range(3):
        y = torch.randn(1 << 15)
        torch.testing.assert_close(run(ours, y.to("pjrt")).cpu(), writes(theirs, y))
        assert_same(ours.cpu(), theirs)
    assert_same(kept.cpu(), torch.ones(1 << 15))


@pytest.mark.usefixtures("pjrt_device")
def test_another_device(ways: Ways) -> None:
    run = compiled(add)
    x = torch.ones(8, device="pjrt:0")
    for _ in range(3):
        run(x, x)
    with pytest.raises((DeviceError, RuntimeError)):
        run(x, torch.ones(8, device="pjrt:1"))
    other = torch.ones(8, device="pjrt:1")
    assert run(other, other).device == other.device
    assert_same(run(x, x).cpu(), torch.full((8,), 3.0))


def test_threads(ways: Ways) -> None:
    run = compiled(add)
    y = torch.ones(64, device="pjrt")
    for _ in range(3):
        run(y, y)

    def work(thread: int) -> None:
        for step in range(50):
            found = run(torch.full((64,), 1000.0 * thread + step, device="pjrt"), y)
            assert found[63].item() == 2000 * thread + 2 * step + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_compiled_function_runs_while_another_thread_traces_an_operator(ways: Ways) -> None:
    """Torch's mark of what is traced is one for all threads."""
    run, y = compiled(add), torch.ones(64, device="pjrt")
    for _ in range(3):
        run(y, y)
    tracing, go_on = threading.Event(), threading.Event()

    def operator(x: torch.Tensor) -> list[torch.Tensor]:
        tracing.set()
        assert go_on.wait(60)
        return [x + 1]

    def trace() -> torch.fx.GraphModule:
        with compat.fakes():
            return third_party_device.trace_call(operator, [torch.empty(64)], {})

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(trace)
        assert tracing.wait(60)
        try:
            found = run(y, y)
        finally:
            go_on.set()
        assert len(other.result().graph.nodes) == 3
    assert found[0].item() == 3


# -- waiting ---------------------------------------------------------------------------------------


def powers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        x = torch.tanh(x @ x)
    return x


def test_results_are_there_when_they_are_read() -> None:
    """Of long programs, in the main thread and in others, which wait in another way."""
    run, x = compiled(powers), torch.randn(300, 300) / 20
    there, expected = x.to("pjrt"), powers(x)
    run(there).cpu()

    def read() -> None:
        torch.testing.assert_close(run(there).cpu(), expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            run(there)[5, 7].item(), expected[5, 7].item(), rtol=1e-3, atol=1e-4
        )

    read()
    failures = list[BaseException]()

    def reads() -> None:
        try:
            read()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=reads) for _ in range(3)]
    for thread in threads:
        thread.start()
    read()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_result_is_read_while_later_programs_run() -> None:
    run, x = compiled(add), torch.ones(8, device="pjrt")
    results = [run(x, x)]
    for _ in range(20):
        results.append(run(results[-1], x))
    assert results[0][0].item() == 3
    assert results[-1][0].item() == 2**22 - 1
    torch.pjrt.synchronize()
    torch.pjrt.synchronize()


@pytest.mark.parametrize(
    "value", [2.5, -3, True, float("nan"), 7], ids=["float", "int", "bool", "nan", "again"]
)
def test_a_number_that_was_just_computed(value: Any) -> None:
    """By itself, negated lazily, as a view, twice, and when the storage got another one."""
    there = torch.tensor(value, device="pjrt")
    for _ in range(4):
        found = torch.maximum(there, there)
        expected = torch.tensor(value)
        for item in (found, found.view(1)[0], found.reshape(1, 1)):
            torch.testing.assert_close(torch.tensor(item.item()), expected, equal_nan=True)
            torch.testing.assert_close(torch.tensor(item.item()), expected, equal_nan=True)
        if expected.is_floating_point():
            negated = torch._neg_view(torch.maximum(there, there))
            torch.testing.assert_close(torch.tensor(negated.item()), -expected, equal_nan=True)
        if expected.dtype is not torch.bool:
            found.add_(1)
            torch.testing.assert_close(torch.tensor(found.item()), expected + 1, equal_nan=True)


def test_a_number_that_was_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python says why, as for results that are no shortcut's."""
    if native.module is None:
        pytest.skip("the compiled module is missing")
    entry, faults = plans._entry, list[FailingFunction]()
    failed: list[Any] = []

    def fails(args: Any) -> None:
        failed.append(args)
        too_small(args)

    def faulty(api: Api, name: str) -> tuple[int, int]:
        if name != "Buffer_ReadyEvent":
            return entry(api, name)
        faults.append(FailingFunction(api, name, fails))
        return faults[-1].entry

    monkeypatch.setattr(plans, "_entry", faulty)
    run, x = compiled(lambda x: x.sum() * 2), torch.ones(4, device="pjrt")
    for _ in range(3):
        assert run(x).item() == 8
    for fault in faults:
        fault.active = True
    # Only the plan's table has the fault: Python reads the number.
    assert run(x).item() == 8
    assert failed


INTERRUPTED = """
import os, signal, threading, time
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)

def powers(x, n):
    def unfinished(i, y):
        return i < n

    def step(i, y):
        return i + 1, torch.tanh(y @ y)

    return torch._higher_order_ops.while_loop(unfinished, step, (torch.zeros_like(n), x))[1].sum()

run = torch.compile(powers, backend="pjrt", options={"fallback": "error"}, dynamic=False)
x = (torch.randn(300, 300) / 20).to("pjrt")

def call(n):
    return run(x, torch.tensor(n, device="pjrt"))

def took(n):
    begun = time.monotonic()
    call(n).item()
    return time.monotonic() - begun

took(1)
took(1)
n = 50
while (seconds := took(n)) < 0.25:
    n *= 2
result = call(round(n * 2.5 / seconds))
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    result.item()
except KeyboardInterrupt:
    print("seen" if time.monotonic() - begun < 1.5 else "late")
# It goes on, and can be read.
print(abs(result.item() - call(round(n * 2.5 / seconds)).item()) < 1e-3)
"""


def test_reading_is_interrupted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["seen", "True"]
