"""The custom call itself: what it refuses, what it leaves behind, threads, PyTorch's own state."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pjrt_bridge import dtypes, errors
from pjrt_bridge.runtime import Client, Executable, Plugin
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten import library, trial
from pjrt_bridge_cpu.aten.calls import KernelCall, Out
from pjrt_bridge_cpu.aten.checks import TriedUse, checks
from pjrt_bridge_cpu.aten.operators import LINEAR, SOFTMAX, TOPK
from tests.cpu.aten.frames import Array, Caller, attributes_of
from tests.cpu.aten.native_calls import BY_ROW, X, compiled, growth, multiply, product
from tests.plugins import run_python

pytestmark = pytest.mark.usefixtures("connected")


def test_an_error_of_pytorch_reaches_the_caller(client: Client) -> None:
    kind = TensorType((6, 6), dtypes.of("float32"))

    def most(x: Any) -> KernelCall:
        kinds = [TensorType((6, 9), dtypes.of(name)) for name in ("float32", "int64")]
        outs = {"values": Out(0), "indices": Out(1)}
        return KernelCall(TOPK, {"self": x, "k": 9, **outs}, kinds, returns=(None, None))

    executable = compiled(client, most, kind)
    for _ in range(3):
        with pytest.raises(errors.Internal, match=r"aten::topk .*index k out of range") as caught:
            executable(X)[0].to_numpy()
        assert "C++ CapturedTraceback" not in str(caught.value)
    (result,) = compiled(client, product, kind, kind)(X, X)
    np.testing.assert_allclose(result.to_numpy(), X @ X, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (1, 1), (3, 1, 2)])
@pytest.mark.parametrize("threads", [1, 4])
def test_softmax_of_any_shape(shape: tuple[int, ...], threads: int) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    cut = BY_ROW if len(shape) > 1 else None

    def softmax(value: Any) -> KernelCall:
        arguments = {"self": value, "dim": -1, "half_to_float": False, "out": Out()}
        return KernelCall(SOFTMAX, arguments, [value.type], cut=cut)

    result = np.full_like(x, np.nan)
    caller = Caller(threads=threads)
    assert caller([x], [result], attributes_of(softmax, [x])) is None
    np.testing.assert_allclose(result, torch.from_numpy(x).softmax(-1), rtol=1e-6)


def test_any_alignment(attributes: dict[str, Any]) -> None:
    memory = np.zeros(X.size + 3, np.float32)
    for start in range(1, 4):
        x = memory[start : start + X.size].reshape(X.shape)
        x[...] = X
        result = np.zeros_like(X)
        assert Caller()([x, x], [result], attributes) is None
        np.testing.assert_allclose(result, X @ X, rtol=1e-5)


def test_parts_give_what_the_whole_gives(attributes: dict[str, Any]) -> None:
    whole = multiply(Caller(threads=1), attributes)
    for threads in (2, 3, 6, 100):
        parts = multiply(Caller(threads=threads), attributes)
        np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("callers", [1, 5])
def test_parts_on_other_threads(attributes: dict[str, Any], callers: int) -> None:
    """Of one call, and of several at a time; what was kept for a call goes with it."""
    wrong: list[Array] = []

    def work(number: int) -> None:
        caller = Caller(threads=3)
        for _ in range(200):
            result = multiply(caller, attributes)
            if not np.allclose(result, X @ X, rtol=1e-5):
                wrong.append(result)
            # A helper that came late would write to it.
            result[...] = number
            time.sleep(0)
            if not (result == number).all():
                wrong.append(result)

    def together() -> None:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)

    together()
    assert not wrong
    assert growth(lambda: multiply(Caller(threads=3), attributes), 200) < 16


HELPED = """
import pathlib, time
import torch, pjrt_bridge.torch_interop

def threads():
    return {task.name: (task / "stat").read_text().split(")")[1].split()
            for task in pathlib.Path("/proc/self/task").iterdir()}

def worked(name):
    return sum(map(int, threads()[name][11:13]))

f = torch.compile(lambda x: torch.softmax(x, -1), backend="pjrt")
x = torch.randn(4096, 1024)
with torch.no_grad():
    before = set(threads())
    for _ in range(10):
        f(x)
    new = set(threads()) - before
    time.sleep(0.2)
    idle = {name: worked(name) for name in new}
    time.sleep(0.3)
    print("awake without work:", sum(worked(name) > idle[name] for name in new))
"""


def test_helpers_sleep_when_no_call_comes() -> None:
    assert run_python(HELPED).strip() == "awake without work: 0"


def test_a_pool_that_does_not_tell_its_threads(attributes: dict[str, Any]) -> None:
    caller = Caller(threads=None)
    np.testing.assert_allclose(multiply(caller, attributes), X @ X, rtol=1e-5)
    assert caller.destroyed == 1
    assert growth(lambda: multiply(caller, attributes), 200) < 16


def test_an_error_in_parts(attributes: dict[str, Any]) -> None:
    caller = Caller(threads=3)
    failed = caller([X, X[:5]], [X.copy()], attributes)
    assert failed is not None
    assert "cannot be multiplied (2x6 and 5x6)" in failed[1]


def test_the_number_of_threads_stays(client: Client) -> None:
    kind = TensorType((256, 256), dtypes.of("float32"))
    executable = compiled(client, product, kind, kind)
    x = np.ones((256, 256), np.float32)
    before = torch.get_num_threads()
    try:
        for count in (before, 1, 3):
            torch.set_num_threads(count)
            (result,) = executable(x, x)
            assert (result.to_numpy() == 256).all()
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def test_many_threads_two_clients_four_devices(client: Client, plugin: Plugin) -> None:
    kind = TensorType((120, 120), dtypes.of("float32"))
    wrong: list[object] = []
    with plugin.client({"cpu_device_count": 4}) as other:
        assert library.connect(other) == ""
        executables = [compiled(one, product, kind, kind) for one in (client, other)]
        executables.append(compiled(other, product, kind, kind))

        def work(number: int) -> None:
            x = np.full((120, 120), number, np.float32)
            for turn in range(30):
                (result,) = executables[(number + turn) % 3](x, x)
                if not (result.to_numpy() == 120 * number * number).all():
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        executables.clear()
    assert not wrong


def test_calls_leave_nothing_behind(client: Client) -> None:
    kind = TensorType((64, 64), dtypes.of("float32"))
    executable = compiled(client, product, kind, kind)
    x = client.put(np.ones((64, 64), np.float32))

    def once() -> None:
        executable.execute([x, x])[0].block_until_ready()

    assert growth(once, 700) < 16


class Breaking(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"a mode saw {func}")


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


STATES: dict[str, Callable[[], Any]] = {
    "a mode": Breaking,
    "fake tensors": FakeTensorMode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "another default": default_dtype,
    "another device": lambda: torch.device("meta"),
}


Tried = tuple[TriedUse, Executable, list[Any], list[Array]]


@pytest.fixture(scope="module")
def tried(client: Client) -> list[Tried]:
    """A program of each operator and element type, and what it gives in a plain state."""
    found: list[Tried] = []
    seen = set()
    for check in checks():
        # Transposed convolutions differ by their weights, and those in parts by their batch.
        lengths = tuple(tensor.shape[:2] for tensor in check.tensors[:2])
        kind = check.operator, check.tensors[0].dtype, len(check.tensors), lengths
        # Autocast turns float32 into others; the rest is alike for all.
        if kind in seen or check.tensors[0].dtype not in (torch.float32, torch.int64):
            continue
        seen.add(kind)
        executable = client.compile(trial.UseTrial(check).program)
        given = [client.put(trial.array(tensor)) for tensor in check.tensors]
        found.append((check, executable, given, arrays(executable, given)))
    return found


def arrays(executable: Executable, given: list[Any]) -> list[Array]:
    return [np.asarray(result).copy() for result in executable.execute(given)]


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_the_calling_thread_does_not_matter(tried: list[Tried], state: str) -> None:
    for check, executable, given, plain in tried:
        with STATES[state]():
            found = arrays(executable, given)
        for one, other in zip(found, plain, strict=True):
            assert one.tobytes() == other.tobytes(), str(check)


def test_an_error_beside_a_mode(client: Client) -> None:
    """On a thread of its own the reason must not be lost."""
    attributes = attributes_of(product, [X, X])
    with Breaking():
        failed = Caller()([X, X[:5]], [X.copy()], attributes)
    assert failed is not None
    assert "cannot be multiplied" in failed[1]


def test_gradients_are_nobodys(client: Client) -> None:
    kind = TensorType((6, 6), dtypes.of("float32"))

    def linear(x: Any, y: Any) -> KernelCall:
        return KernelCall(LINEAR, {"input": x, "weight": y, "out": Out()}, [x.type])

    with torch.enable_grad():
        (result,) = compiled(client, linear, kind, kind)(X, X)
        np.testing.assert_allclose(result.to_numpy(), X @ X.T, rtol=1e-5)
