"""Tracing functions of tensors while other threads trace and call compiled functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx, nn
from torch.fx import _symbolic_trace
from torch.fx.experimental import proxy_tensor

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat.aot.tracing import trace_beside_others
from tests.plugins import run_python


def shared() -> tuple[Any, ...]:
    """What torch's tracer changes for all threads."""
    return (
        _symbolic_trace._is_fx_tracing_flag,
        proxy_tensor._CURRENT_MAKE_FX_TRACER,
        nn.Module.__call__,
        nn.Module.__getattr__,
    )


def traced(function: Callable[..., Any]) -> fx.GraphModule:
    with compat.fakes():
        arguments = [torch.empty(4, 3), torch.empty(3)]
        return trace_beside_others(function, arguments, compat.decompositions())


def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [torch.addmm(y, x, torch.ones(3, 3)), nn.functional.silu(x).sum(1)]


def test_the_graph_is_that_of_make_fx() -> None:
    with compat.fakes():
        arguments = torch.empty(4, 3), torch.empty(3)
        expected = proxy_tensor.make_fx(function, dict(compat.decompositions()))(*arguments)
    found = traced(function)
    assert [str(node.target) for node in found.graph.nodes if node.op == "call_function"] == [
        str(node.target) for node in expected.graph.nodes if node.op == "call_function"
    ]
    assert torch.equal(found(torch.ones(4, 3), torch.ones(3))[0], torch.full((4, 3), 4.0))


def test_other_threads_see_nothing_of_it() -> None:
    before, during = shared(), []

    def operator(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        during.append(shared())
        return [x + y]

    traced(operator)
    assert during == [before]


def test_it_may_begin_and_end_while_another_thread_uses_the_tracer_of_torch() -> None:
    before = shared()
    began, end = threading.Event(), threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        began.set()
        assert end.wait(60)
        return x + 1

    def overlapped(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        other.append(pool.submit(proxy_tensor.make_fx(slow), torch.ones(2)))
        assert began.wait(60)
        return [x + y]

    other: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        try:
            traced(overlapped)
        finally:
            end.set()
        other[0].result()
    assert shared() == before


_STRESS = """
import sys, threading
import torch
from torch import nn
from torch.fx import _symbolic_trace
sys.setswitchinterval(1e-4)
torch.compile(lambda x: x, backend="pjrt")(torch.ones(1, device="pjrt"))
methods, failures, ended = (nn.Module.__call__, nn.Module.__getattr__), [], threading.Event()

def train():
    for size in range(1, 9):
        names = {}
        exec(f"def function(x): return (x * {size}).sin()", names)
        x = torch.ones(size, requires_grad=True)
        torch.compile(names["function"], backend="pjrt")(x).sum().backward()

def compute():
    size = 0
    while not ended.is_set():
        size += 1
        assert (torch.ones(size, device="pjrt") + 1).sum().item() == 2 * size

def guarded(work):
    try:
        work()
    except Exception as error:
        failures.append(repr(error))

others = [threading.Thread(target=guarded, args=(compute,)) for _ in range(2)]
for thread in others:
    thread.start()
guarded(train)
ended.set()
for thread in others:
    thread.join()
assert not failures, failures
assert not _symbolic_trace._is_fx_tracing_flag
assert methods == (nn.Module.__call__, nn.Module.__getattr__)
"""


def test_threads_compile_while_others_call_operators_of_the_device() -> None:
    run_python(_STRESS, timeout=300)
