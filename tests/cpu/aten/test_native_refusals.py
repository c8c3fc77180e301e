"""The custom call itself: callers, frames, attributes and arrays that it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import dtypes, errors
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten.calls import TARGET, KernelCall, Out
from pjrt_bridge_cpu.aten.operators import CONVOLUTION_BACKWARD, CUMSUM
from tests.cpu.aten.frames import Array, Caller, attributes_of
from tests.cpu.aten.native_calls import X, compiled, growth, multiply, product

pytestmark = pytest.mark.usefixtures("connected")


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
    caller = Caller(threads=4)
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
