"""What is written into a program for a use of an operator."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.aten import library
from pjrt_bridge_cpu.aten.calls import TARGET, Cut, KernelCall, Out, emit
from pjrt_bridge_cpu.aten.operators import ATTENTION, CUMSUM, LINEAR, MM, SOFTMAX, TOPK
from tests.cpu.aten.frames import Caller, attributes_of

F32 = dtypes.of("float32")
X = np.arange(12, dtype=np.float32).reshape(3, 4)
NONE, OPERAND, RESULT, WORD, WORDS, SOME = range(6)


@pytest.fixture(scope="module", autouse=True)
def connected(client: Client) -> None:
    assert library.connect(client) == ""


def stack_of(call: Any, *operands: Any) -> list[int]:
    found: list[int] = attributes_of(call, operands)["stack"].tolist()
    return found


def test_the_attributes_of_a_product() -> None:
    def product(x: Any, y: Any) -> KernelCall:
        result = TensorType((3, 3), F32)
        cut = Cut(2, {"self": 0}, (0,))
        return KernelCall(MM, {"self": x, "mat2": y, "out": Out()}, [result], cut=cut)

    found = attributes_of(product, [X, X.T])
    assert (found["name"], found["overload"]) == ("aten::mm", "out")
    numbers = {
        key: value.tolist() for key, value in found.items() if key not in ("name", "overload")
    }
    assert numbers == {
        "orders": [0, 1, 0, 1, 0, 1],
        "stack": [OPERAND, 0, OPERAND, 1, RESULT, 0],
        "returns": [-1],
        "cuts": [0, -1, 0],
        "grain": [2, 1],
    }
    assert all(value.dtype == np.int64 for value in found.values() if not isinstance(value, str))


def test_arguments_that_may_be_none() -> None:
    result = TensorType((3, 5), F32)
    weight, bias = np.ones((5, 4), np.float32), np.ones(5, np.float32)

    def without(x: Any, y: Any) -> KernelCall:
        return KernelCall(LINEAR, {"input": x, "weight": y, "out": Out()}, [result])

    def beside(x: Any, y: Any, z: Any) -> KernelCall:
        return KernelCall(LINEAR, {"input": x, "weight": y, "bias": z, "out": Out()}, [result])

    assert stack_of(without, X, weight) == [OPERAND, 0, OPERAND, 1, NONE, RESULT, 0]
    assert stack_of(beside, X, weight, bias) == [
        OPERAND,
        0,
        OPERAND,
        1,
        SOME,
        OPERAND,
        2,
        RESULT,
        0,
    ]


def test_numbers_and_defaults() -> None:
    results = [TensorType((3, 2), dtypes.of(name)) for name in ("float32", "int64")]
    outs = {"values": Out(0), "indices": Out(1)}
    found = stack_of(
        lambda x: KernelCall(TOPK, {"self": x, "k": 2, "largest": False, **outs}, results), X
    )
    words = [WORD, 2, WORD, -1, WORD, 0, WORD, 1]
    assert found == [OPERAND, 0, *words, RESULT, 0, RESULT, 1]


@given(st.floats(width=64))
@settings(max_examples=30)
def test_every_float_is_passed_bit_by_bit(number: float) -> None:
    heads = [np.ones((1, 1, 2, 2), np.float32)] * 3

    def attention(q: Any, k: Any, v: Any) -> KernelCall:
        results = [q.type, TensorType((1, 1, 2), F32)]
        arguments = {"query": q, "key": k, "value": v, "scale": number}
        return KernelCall(ATTENTION, arguments, results, returns=(0, 1))

    *_, some, word, bits = stack_of(attention, *heads)
    assert (some, word) == (SOME, WORD)
    assert struct.pack("<q", bits) == struct.pack("<d", number)


def test_a_float_that_is_an_integer() -> None:
    heads = [np.ones((1, 1, 2, 2), np.float32)] * 3

    def attention(q: Any, k: Any, v: Any) -> KernelCall:
        results = [q.type, TensorType((1, 1, 2), F32)]
        arguments = {"query": q, "key": k, "value": v, "scale": 2}
        return KernelCall(ATTENTION, arguments, results, returns=(0, 1))

    assert stack_of(attention, *heads)[-1] == struct.unpack("<q", struct.pack("<d", 2.0))[0]


def test_an_argument_that_is_missing() -> None:
    builder = Builder([TensorType((3, 4), F32)])
    (x,) = builder.parameters
    with pytest.raises(TypeError, match=r"aten::mm\.out: argument 'mat2' is missing"):
        emit(builder, KernelCall(MM, {"self": x, "out": Out()}, [x.type]))


def test_an_argument_that_the_operator_lacks() -> None:
    builder = Builder([TensorType((3, 4), F32)])
    (x,) = builder.parameters
    call = KernelCall(CUMSUM, {"self": x, "dimension": 1, "out": Out()}, [x.type])
    with pytest.raises(TypeError, match=r"aten::cumsum\.out has no argument 'dimension'"):
        emit(builder, call)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_operand_as_it_lies(client: Client, order: tuple[int, int]) -> None:
    """Arrays of a call are row-major, and transposed in front of it."""
    builder = Builder([TensorType((4, 3), F32)])
    turned = builder.transpose(builder.parameters[0], (1, 0))
    arguments = {"self": turned, "dim": 1, "out": Out()}
    orders = {"self": (0, 1)} if order == (0, 1) else {}
    call = KernelCall(CUMSUM, arguments, [turned.type], orders=orders)
    (value,) = emit(builder, call)
    program = builder.finish([value])
    assert f"@{TARGET}" in program.text
    taken = "3x4" if order == (0, 1) else "4x3"
    assert f": (tensor<{taken}xf32>) -> tensor<3x4xf32>\n    return" in program.text
    assert "operand_layouts = [dense<[1, 0]>" in program.text
    (found,) = client.compile(program)(np.ascontiguousarray(X.T))
    np.testing.assert_array_equal(found.to_numpy(), X.cumsum(1))


def test_a_result_in_another_order() -> None:
    """The handler gets the row-major array of which the result is a transposition."""

    def summed(x: Any) -> KernelCall:
        arguments = {"self": x, "dim": 1, "out": Out()}
        return KernelCall(CUMSUM, arguments, [x.type], result_orders=[(1, 0)])

    result = np.zeros((4, 3), np.float32)
    assert Caller()([X], [result], attributes_of(summed, [X])) is None
    np.testing.assert_array_equal(result.T, X.cumsum(1))


def test_a_number_without_dimensions() -> None:
    """There is no empty array in a program."""
    one = np.array(3, np.float32)

    def softmax(x: Any) -> KernelCall:
        arguments = {"self": x, "dim": 0, "half_to_float": False, "out": Out()}
        return KernelCall(SOFTMAX, arguments, [x.type])

    attributes = attributes_of(softmax, [one])
    assert attributes["orders"].tolist() == [0]
    result = np.zeros((), np.float32)
    assert Caller()([one], [result], attributes) is None
    assert result == 1
