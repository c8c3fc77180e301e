"""The custom call itself: what it refuses, what it leaves behind, threads, PyTorch's own state."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pjrt_bridge import dtypes, errors
from pjrt_bridge.runtime import Client, Executable, Plugin
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten import library, trial
from pjrt_bridge_cpu.aten.calls import TARGET, Cut, KernelCall, Out, emit
from pjrt_bridge_cpu.aten.checks import TriedUse, checks
from pjrt_bridge_cpu.aten.operators import CONVOLUTION_BACKWARD, CUMSUM, LINEAR, MM, SOFTMAX, TOPK
from tests.cpu.aten.frames import Array, Caller, attributes_of

X = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
BY_ROW = Cut(1, {"self": 0}, (0,))


@pytest.fixture(scope="module", autouse=True)
def connected(client: Client) -> None:
    assert library.connect(client) == ""


def product(x: Any, y: Any) -> KernelCall:
    return KernelCall(MM, {"self": x, "mat2": y, "out": Out()}, [x.type], cut=BY_ROW)


@pytest.fixture(scope="module")
def attributes() -> dict[str, Any]:
    return attributes_of(product, [X, X])


def multiply(caller: Caller, attributes: dict[str, Any], **changed: Any) -> Any:
    """The product, or the error."""
    result = np.full_like(X, np.nan)
    failed = caller([X, X], [result], {**attributes, **changed})
    return result if failed is None else failed


def compiled(client: Client, call: Callable[..., KernelCall], *types: TensorType) -> Executable:
    builder = Builder(types)
    return client.compile(builder.finish(list(emit(builder, call(*builder.parameters)))))


def in_use() -> int:
    """Bytes that the C library's heap has given out."""

    class Info(ctypes.Structure):
        _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

    look = ctypes.CDLL(None).mallinfo2
    look.restype = Info
    found = look()
    given: int = found.field7 + found.field4
    return given


def growth(function: Callable[[], object], times: int) -> float:
    """Bytes that each call leaves behind: the least of three times, for Python grows by itself."""
    found = []
    for _ in range(3):
        gc.collect()
        before = in_use()
        for _ in range(times):
            function()
        gc.collect()
        found.append((in_use() - before) / times)
    return min(found)


# -- versions and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "stated"),
    [
        ((0, 1), (0, 1)),
        ((0, 2), (0, 2)),
        ((0, 3), (0, 3)),
        # What it does not know it does not claim; the caller decides whether it can do with less.
        ((0, 4), (0, 3)),
        ((0, 0), (0, 1)),
        ((1, 0), (0, 3)),
        ((1, 7), (0, 3)),
    ],
)
def test_the_version_that_it_states_is_its_own(
    caller: tuple[int, int], stated: tuple[int, int]
) -> None:
    assert Caller(version=caller).stated() == stated


def test_an_answer_without_room_is_refused() -> None:
    code, message = Caller().stated(room=16)
    assert code == 3
    assert "no room for its API version" in str(message)


@pytest.mark.parametrize("version", [(1, 0), (1, 3), (-1, 3), (0, 0)])
def test_a_caller_of_another_version_is_refused(
    attributes: dict[str, Any], version: tuple[int, int]
) -> None:
    code, message = multiply(Caller(version=version), attributes)
    assert code == 3
    found = ".".join(map(str, version))
    assert f"found version {found} of XLA's FFI API, expected 0.1 or a later 0.x" in message
    np.testing.assert_allclose(multiply(Caller(version=(0, 9)), attributes), X @ X, rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"": 40}, "found a call frame of 40 bytes, expected "),
        ({"": 0}, "found a call frame of 0 bytes"),
        ({"args": 32}, "operands, results or attributes end early"),
        ({"rets": 16}, "operands, results or attributes end early"),
        ({"attrs": 40}, "operands, results or attributes end early"),
    ],
)
def test_a_frame_that_is_too_small_is_refused(
    attributes: dict[str, Any], sizes: dict[str, int], text: str
) -> None:
    result = np.full_like(X, np.nan)
    failed = Caller()([X, X], [result], attributes, sizes=sizes)
    assert failed is not None
    assert failed[0] == 3
    assert text in failed[1]
    assert np.isnan(result).all()


def test_a_function_table_that_is_too_small_is_refused(attributes: dict[str, Any]) -> None:
    code, message = multiply(Caller(size=128), attributes)
    assert code == 3
    assert "found a function table of 128 bytes, expected " in message


# -- programs that somebody else wrote -------------------------------------------------------------

I64 = np.int64
STACK = [1, 0, 1, 1, 2, 0]

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no operator": ({"name": "aten::nothing"}, r"'aten::nothing\.out' is no operator that it may"),
    "no overload": ({"overload": ""}, r"'aten::mm\.' is no operator"),
    "not listed": ({"name": "aten::add"}, "is no operator"),
    "another namespace": ({"name": "mm"}, "is no operator"),
    "a longer name": ({"name": "aten::mm\0"}, "is no operator"),
    "a long name": ({"name": "a" * 10_000}, f"'{'a' * 64}\\.out' is no operator"),
    "no name": ({"name": np.array([1])}, "is no operator"),
    "few arguments": ({"stack": np.array(STACK[:4])}, "arguments end early"),
    "half an argument": ({"stack": np.array(STACK[:5])}, "arguments end early"),
    "no arguments": ({"stack": np.array([], I64)}, "arguments end early"),
    "more arguments": ({"stack": np.array([*STACK, 3, 0])}, "more arguments than parameters"),
    "a number for a tensor": ({"stack": np.array([1, 0, 3, 99, 2, 0])}, "kind 3 is not one of"),
    "numbers for a tensor": ({"stack": np.array([1, 0, 4, 0, 2, 0])}, "kind 4 is not one of"),
    "nothing for a tensor": ({"stack": np.array([1, 0, 0, 0, 2, 0])}, "kind 0 is not one of"),
    "some tensor": ({"stack": np.array([1, 0, 5, 1, 1, 2, 0])}, "kind 5 is not one of"),
    "another kind": ({"stack": np.array([1, 0, 77, 1, 2, 0])}, "kind 77 is not one of"),
    "an operand written": ({"stack": np.array([1, 0, 1, 1, 1, 0])}, "kind 1 is not one of"),
    "a result read": ({"stack": np.array([1, 0, 2, 0, 2, 0])}, "kind 2 is not one of"),
    "operand 2 of 2": ({"stack": np.array([1, 0, 1, 2, 2, 0])}, "operand or result 2 is none"),
    "operand -1": ({"stack": np.array([1, 0, 1, -1, 2, 0])}, "operand or result -1 is none"),
    "result 1 of 1": ({"stack": np.array([1, 0, 1, 1, 2, 1])}, "operand or result 1 is none"),
    "result -1": ({"stack": np.array([1, 0, 1, 1, 2, -1])}, "operand or result -1 is none"),
    "no results": ({"returns": np.array([], I64)}, "attributes are not those"),
    "more results": ({"returns": np.array([-1, -1])}, "attributes are not those"),
    "kept as result 1": ({"returns": np.array([1])}, "result 1 is none"),
    "few orders": ({"orders": np.array([0, 1, 0, 1, 0])}, "order of operand or result 2 is none"),
    "a dimension twice": ({"orders": np.array([0, 0, 0, 1, 0, 1])}, "result 0 is none"),
    "a dimension too many": ({"orders": np.array([0, 2, 0, 1, 0, 1])}, "result 0 is none"),
    "a negative dimension": ({"orders": np.array([0, -1, 0, 1, 0, 1])}, "result 0 is none"),
    "orders of 32 bits": ({"orders": np.array([0, 1] * 3, np.int32)}, "result 0 is none"),
    "few cuts": ({"cuts": np.array([0, -1])}, "attributes are not those"),
    "a cut elsewhere": ({"cuts": np.array([2, -1, 0])}, "not of one length"),
    "a result uncut": ({"cuts": np.array([0, -1, -1])}, "a result is not cut"),
    "no grain": ({"grain": np.array([], I64)}, "attributes are not those"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_attributes(attributes: dict[str, Any], case: str) -> None:
    changed, text = WRONG[case]
    caller = Caller(threads=4, schedule=lambda task: task())
    code, message = multiply(caller, attributes, **changed)
    assert re.search(text, message), message
    assert "in a program for the CPU plugin" in message
    assert code in (3, 13)
    np.testing.assert_allclose(multiply(caller, attributes), X @ X, rtol=1e-5)
    left = growth(lambda: multiply(caller, attributes, **changed), 100)
    assert left < 16, f"{left} bytes of each call"


@pytest.mark.parametrize("missing", ["name", "overload", "orders", "stack", "returns", "cuts"])
def test_missing_attributes(attributes: dict[str, Any], missing: str) -> None:
    left = {key: value for key, value in attributes.items() if key != missing}
    failed = Caller()([X, X], [X.copy()], left)
    assert failed is not None


@pytest.mark.parametrize(
    ("operands", "result", "how", "text"),
    [
        (
            [X, X],
            X,
            {"codes": {1: 7}},
            "operand or result 1 has element type 7, which PyTorch lacks",
        ),
        ([X, X], X, {"codes": {2: 20}}, "operand or result 2 has element type 20"),
        ([X, X], X, {"codes": {0: -5}}, "operand or result 0 has element type -5"),
        ([X, X], X, {"codes": {0: 99}}, "operand or result 0 has element type 99"),
        ([X, X], X, {"kinds": {0: 2}}, "operand or result 0 is no array"),
        ([X, X], X, {"kinds": {2: 2}}, "operand or result 2 is no array"),
        ([np.zeros((1,) * 9), X], X, {}, "operand or result 0 has 9 dimensions, more than 8"),
        ([X, X[0]], X, {"orders": [0, 1, 0, 0, 1]}, "self must be a matrix|mat2 must be a matrix"),
        ([X, X[:5]], X, {}, "cannot be multiplied"),
        ([X, X.astype(np.float64)], X, {}, "same dtype|expected .* dtype"),
        ([X, X], X.astype(np.float64), {}, "Expected out tensor to have dtype float"),
        ([X, X], X[:, :5], {}, "result 0 is not of the type|[Rr]esize"),
        ([X, np.ones((6, 5), np.float32)], X, {}, "result 0 is not of the type|[Rr]esize"),
        ([X[:0], X], X, {}, "what is cut is not of one length"),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_wrong_arrays(
    attributes: dict[str, Any], operands: list[Array], result: Array, how: Any, text: str
) -> None:
    changed = {"orders": np.array(how["orders"])} if "orders" in how else {}
    rest = {key: value for key, value in how.items() if key != "orders"}
    caller = Caller()
    failed = caller(operands, [result.copy()], {**attributes, **changed}, **rest)
    assert failed is not None
    assert re.search(text, failed[1]), failed[1]
    np.testing.assert_allclose(multiply(caller, attributes), X @ X, rtol=1e-5)


def test_attributes_that_come_in_lists() -> None:
    """Optional arguments and lists before a wrong one are given back."""
    data = [np.ones(shape, np.float32) for shape in ((2, 4, 6, 6), (2, 3, 6, 6), (4, 3, 3, 3))]

    def backward(grad: Any, x: Any, weight: Any) -> KernelCall:
        two = [1, 1]
        arguments = dict(grad_output=grad, input=x, weight=weight, bias_sizes=[4], stride=two)
        arguments |= dict(padding=two, dilation=two, transposed=False, output_padding=[0, 0])
        arguments |= dict(groups=1, output_mask=[True, False, False])
        return KernelCall(CONVOLUTION_BACKWARD, arguments, [x.type], returns=(0, None, None))

    attributes, caller = attributes_of(backward, data), Caller()
    result = np.zeros_like(data[1])
    assert caller(data, [result], attributes) is None
    assert result.any()
    for wrong, text in ((2, "2 is neither true nor false"), (-1, "-1 is neither true nor false")):
        stack = attributes["stack"].copy()
        stack[-1] = wrong
        changed = {**attributes, "stack": stack}
        failed = caller(data, [result], changed)
        assert failed is not None
        assert text in failed[1]
        assert growth(lambda c=changed: caller(data, [result], c), 100) < 16  # type: ignore[misc]
    # A gradient that nobody asked for is no tensor.
    failed = caller(data, [result], {**attributes, "returns": np.array([-1, 0, -1])})
    assert failed is not None
    assert "result 0 is not of the type" in failed[1]


def test_a_type_that_calls_do_not_use() -> None:
    def summed(x: Any) -> KernelCall:
        return KernelCall(CUMSUM, {"self": x, "dim": 1, "out": Out()}, [x.type])

    attributes, caller = attributes_of(summed, [X]), Caller()
    assert caller([X], [X.copy()], attributes) is None
    stack = attributes["stack"].tolist()
    stack[4:5] = [5, 3, 6]
    failed = caller([X], [X.copy()], {**attributes, "stack": np.array(stack)})
    assert failed is not None
    assert "kind 3 is not one of its parameter" in failed[1]


def test_many_wrong_calls_leave_the_process_alive() -> None:
    command = [sys.executable, "-m", "tests.cpu.aten.mutations", "0", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    last = [line for line in done.stderr.splitlines() if line.startswith("{")][-1:]
    assert done.returncode == 0, f"{done.returncode} after {last}"
    assert re.fullmatch(r"\{'right': \d+, 'refused': \d{3,}\}", done.stdout.strip()), done.stdout


def test_before_it_is_connected() -> None:
    source = (
        "from tests.cpu.aten.frames import Caller\n"
        "print(Caller()([], [], {'name': 'aten::mm', 'overload': 'out'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert "(3, " in done.stdout
    assert "'aten::mm.out' is no operator that it may call" in done.stdout


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


@pytest.mark.parametrize("case", ["not listed", "few arguments", "a dimension twice"])
def test_a_wrong_call_in_a_program(client: Client, attributes: dict[str, Any], case: str) -> None:
    changed, text = WRONG[case]
    kind = TensorType((6, 6), dtypes.of("float32"))
    builder = Builder([kind, kind])
    config = {**attributes, **changed}
    value = builder.custom_call(TARGET, builder.parameters, [kind], backend_config=config)
    executable = client.compile(builder.finish(value))
    for _ in range(2):
        with pytest.raises(errors.PjrtError, match=text):
            executable(X, X)[0].to_numpy()
    (result,) = compiled(client, product, kind, kind)(X, X)
    np.testing.assert_allclose(result.to_numpy(), X @ X, rtol=1e-5)


# -- arrays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (1, 1), (3, 1, 2)])
@pytest.mark.parametrize("threads", [1, 4])
def test_softmax_of_any_shape(shape: tuple[int, ...], threads: int) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    cut = BY_ROW if len(shape) > 1 else None

    def softmax(value: Any) -> KernelCall:
        arguments = {"self": value, "dim": -1, "half_to_float": False, "out": Out()}
        return KernelCall(SOFTMAX, arguments, [value.type], cut=cut)

    result = np.full_like(x, np.nan)
    caller = Caller(threads=threads, schedule=lambda task: task())
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


# -- parts -----------------------------------------------------------------------------------------


def test_parts_give_what_the_whole_gives(attributes: dict[str, Any]) -> None:
    whole = multiply(Caller(threads=1), attributes)
    for threads in (2, 3, 6, 100):
        parts = multiply(Caller(threads=threads, schedule=lambda task: task()), attributes)
        np.testing.assert_array_equal(parts, whole)


def test_tasks_on_other_threads(attributes: dict[str, Any]) -> None:
    started: list[threading.Thread] = []

    def start(task: Callable[[], None]) -> None:
        started.append(threading.Thread(target=task))
        started[-1].start()

    caller = Caller(threads=3, schedule=start)
    for _ in range(50):
        np.testing.assert_allclose(multiply(caller, attributes), X @ X, rtol=1e-5)
    for thread in started:
        thread.join(60)
    assert len(started) >= 100


def test_tasks_that_come_late(attributes: dict[str, Any]) -> None:
    """After the call its frame is gone: nothing is done, and what was kept for it goes."""
    late: list[Callable[[], None]] = []
    caller = Caller(threads=4, schedule=late.append)

    def once() -> None:
        result = multiply(caller, attributes)
        np.testing.assert_allclose(result, X @ X, rtol=1e-5)
        result[...] = 7
        assert late
        while late:
            late.pop()()
        assert (result == 7).all()

    assert growth(once, 200) < 16


def test_a_pool_that_takes_no_tasks(attributes: dict[str, Any]) -> None:
    caller = Caller(threads=4, schedule=None)
    np.testing.assert_allclose(multiply(caller, attributes), X @ X, rtol=1e-5)
    assert caller.destroyed == 1
    caller = Caller(threads=None)
    np.testing.assert_allclose(multiply(caller, attributes), X @ X, rtol=1e-5)
    assert caller.destroyed == 1
    assert growth(lambda: multiply(caller, attributes), 200) < 16


def test_an_error_in_parts(attributes: dict[str, Any]) -> None:
    caller = Caller(threads=3, schedule=lambda task: task())
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


# -- PyTorch's own state ---------------------------------------------------------------------------


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
