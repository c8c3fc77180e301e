"""Many calls, many threads, many models: nothing grows, mixes or breaks."""

import gc
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pjrt_bridge.errors import HostFallbackWarning, PjrtError
from pjrt_bridge.registry import load
from pjrt_bridge.runtime import Plugin
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop import backend, compiled_graphs
from tests.counting import resident, settled
from tests.faults.segments import Faults, When
from tests.torch_interop.helpers import (
    assert_compiled,
    assert_same,
    assert_same_gradients,
    compiled,
    in_threads,
    twins,
)

pytestmark = pytest.mark.usefixtures("fresh")


def inference_step(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


def training_step(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).sum().backward()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("step", [inference_step, training_step])
def test_two_thousand_calls_take_no_memory(step: Callable[[nn.Module, torch.Tensor], None]) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
    device = compiled(model)
    for _ in range(100):
        step(device, torch.randn(128, 64))
    gc.collect()
    handles, memory = settled(), resident()
    for _ in range(2000):
        step(device, torch.randn(128, 64))
    # What plugins had not done with at the end of a call is given back in later ones.
    assert len(pending.queue) < 100
    gc.collect()
    assert live() == handles
    # One leaked result per call would be 64 MiB.
    assert resident() - memory < 16 << 20


def test_reset_forgets_graphs_and_warnings() -> None:
    for _ in range(2):
        device = compiled(lambda x: x.to("meta"), fallback="host")
        with pytest.warns(HostFallbackWarning):
            device(torch.ones(2))
        assert len(compiled_graphs()) == 1
        torch.compiler.reset()
        assert compiled_graphs() == ()


def test_two_models_at_once() -> None:
    pairs = [twins(nn.Linear(4, 3)), twins(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))]
    x = torch.randn(2, 4)
    for _ in range(2):
        results = [(device(x), eager(x)) for eager, device in pairs]
        for found, expected in results:
            assert_same(found, expected)
            found.sum().backward()
            expected.sum().backward()
        for eager, device in pairs:
            assert_same_gradients(device, eager)
    assert_compiled("forward", "forward", *["backward"] * 2)


def test_two_plugins_with_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Plugin.from_address(load("cpu").api.address, name="second").client()
    first = backend.select_client("cpu")
    monkeypatch.setattr(
        backend, "select_client", lambda name: second if name == "second" else first
    )
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    on = {name: compiled(model, plugin=name) for name in ("cpu", "second")}
    for _ in range(2):
        for candidate in on.values():
            model.zero_grad()
            result = candidate(x)
            assert_same(result, model(x))
            result.sum().backward()
    assert sorted((graph.plugin, graph.kind) for graph in compiled_graphs()) == [
        ("cpu", "backward"),
        ("cpu", "forward"),
        ("second", "backward"),
        ("second", "forward"),
    ]


def test_eight_threads_call_one_function() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    device = compiled(model)
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            x = torch.full((16, 32), seed / 8)
            parameters = list(model.parameters())
            expected = torch.autograd.grad(model(x).sum(), parameters)
            barrier.wait()
            for _ in range(50):
                assert_same(torch.autograd.grad(device(x).sum(), parameters), expected)
        except BaseException as error:
            failures.append(error)

    in_threads(work, [(seed,) for seed in range(8)])
    assert not failures
    assert {(graph.kind, graph.on_device) for graph in compiled_graphs()} == {
        ("forward", 1),
        ("backward", 1),
    }


def test_parameters_that_move_while_threads_call() -> None:
    """Each call sees the old or the new parameter, never a mixture, never freed memory."""
    model = nn.Linear(256, 1, bias=False)
    device, x = compiled(model), torch.ones(1, 256)
    model.weight.data = torch.zeros(1, 256)
    with torch.no_grad():
        device(x)
    seen: set[float] = set()
    stop = threading.Event()

    def call() -> None:
        with torch.no_grad():
            while not stop.is_set():
                seen.add(float(device(x)))

    threads = [threading.Thread(target=call) for _ in range(3)]
    # Threads change places often, and what was freed is overwritten at once.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for value in [*range(200)] * 5:
            model.weight.data = torch.full((1, 256), float(value))
            torch.full((1, 256), 1e30)
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert seen <= {256.0 * value for value in range(200)}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("when", ["start", "end"])
def test_a_failed_call_leaves_everything_usable(when: When, faults: Faults) -> None:
    eager, device = twins(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    device(x).sum().backward()
    handles = settled()

    faults.failing = (None, when)
    for grad in (True, False):
        with pytest.raises(PjrtError, match="injected fault"), torch.set_grad_enabled(grad):
            device(x)
    faults.failing = None
    gc.collect()
    device.zero_grad()
    for model in (eager, device):
        model(x).sum().backward()
    assert_same_gradients(device, eager)
    gc.collect()
    assert live()["Buffer"] <= handles["Buffer"] + 3
