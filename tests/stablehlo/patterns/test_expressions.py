"""Elementwise expressions of programs: which operations they are made of, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Expression
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import expressions, following, for_target
from tests.extent import examples
from tests.stablehlo.helpers import program
from tests.stablehlo.patterns.computed import computed
from tests.stablehlo.patterns.drawing import drawn

F32, BF16, BOOL = map(dtypes.of, ("float32", "bfloat16", "bool"))


class Noting(Kernels):
    """Kernels that note the expressions, and call for them what no target has."""

    def __init__(self) -> None:
        self.found: list[tuple[Expression, Sequence[Value]]] = []

    def expression(
        self, b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Sequence[Value] | None:
        self.found.append((expression, operands))
        types = [TensorType(result.shape, result.dtype) for result in expression.results]
        return b.custom_call("noted", operands, types)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "LEAST", 1)


def noted(source: Program) -> list[Expression]:
    kernels = Noting()
    for_target(source, kernels)
    return [expression for expression, _ in kernels.found]


def operations(expression: Expression) -> list[str]:
    return [step.operation for step in expression.steps]


@settings(max_examples=examples(250), deadline=None)
@given(st.data())
def test_an_expression_computes_what_the_operations_do(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 8, 9]), min_size=1, max_size=3)))
    types = [TensorType(shape, F32), TensorType(shape, F32)]
    source = program(lambda b, *values: [drawn(data, b, values)[-1]], *types)
    kernels = Noting()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_RUN", 1)
        for_target(source, kernels)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in types]
    if len(kernels.found) != 1:
        return
    expression, operands = kernels.found[0]
    given = [array_of(operand, arrays) for operand in operands]
    if any(item is None for item in given):
        return
    found = computed(expression, given)
    (expected,) = evaluate(source, *arrays)
    # A reshape behind it is no part of it.
    np.testing.assert_allclose(found.reshape(-1), np.ravel(expected), rtol=2e-2, atol=1e-5)


def array_of(operand: Value, arrays: Sequence[Any]) -> Any:
    """The array of an operand that is a parameter, or a constant."""
    handle = operand._handle
    if hasattr(handle, "arg_number"):
        return arrays[handle.arg_number]
    attributes = handle.owner.attributes
    return np.array(attributes["value"]) if "value" in attributes else None


def two(body: Callable[[Builder, Value, Value], Any], *shapes: Sequence[int]) -> Program:
    sizes = shapes or ((4, 16), (4, 16))
    return program(body, *(TensorType(tuple(shape), F32) for shape in sizes))


def test_a_bias_is_read_again_and_again() -> None:
    def body(b: Builder, x: Value, bias: Value) -> Value:
        return b.tanh(b.add(x, b.broadcast_in_dim(bias, x.shape, (2,))))

    (found,) = noted(two(body, (2, 3, 16), (16,)))
    assert operations(found) == ["read", "read", "add", "tanh"]
    assert [read.dims for read in found.reads] == [((96, 1),), ((6, 0), (16, 1))]


def test_it_is_computed_in_the_order_in_which_it_is_read() -> None:
    def body(b: Builder, x: Value, bias: Value) -> Sequence[Value]:
        summed = b.add(x, b.broadcast_in_dim(bias, x.shape, (1,)))
        heads = b.transpose(b.reshape(summed, (2, 5, 4, 8)), (0, 2, 1, 3))
        return b.custom_call("attention", [heads], [heads.type])

    (heads,) = noted(two(body, (10, 32), (32,)))
    assert operations(heads) == ["read", "read", "add"]
    assert [read.dims for read in heads.reads] == [
        ((2, 160), (4, 8), (5, 32), (8, 1)),
        ((2, 0), (4, 8), (5, 0), (8, 1)),
    ]


def test_what_is_only_moved_is_read_where_it_lies() -> None:
    def body(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        heads = b.transpose(b.reshape(x, (2, 5, 4, 8)), (0, 2, 1, 3))
        return b.custom_call("attention", [heads], [heads.type])

    (heads,) = noted(two(body, (10, 32), (32,)))
    assert operations(heads) == ["read"]


def test_halves_are_selected() -> None:
    def body(b: Builder, x: Value, cosine: Value) -> Value:
        left, right = (b.slice(x, (0, at), (4, at + 8), (1, 1)) for at in (0, 8))
        turned = b.concatenate([b.negate(right), left], 1)
        return b.add(b.multiply(x, cosine), turned)

    (found,) = noted(two(body))
    assert "select" in operations(found)
    assert len(found.reads) == 5


def test_what_several_loops_read_is_one_expression() -> None:
    def body(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        summed = b.add(x, y)
        (called,) = b.custom_call("product", [summed], [x.type])
        return [b.multiply(summed, called)]

    first, second = noted(two(body))
    assert operations(first) == ["read", "read", "add"]
    assert operations(second) == ["read", "read", "multiply"]


NONE: dict[str, Callable[[Builder, Value, Value], Any]] = {
    "what is in memory": lambda b, x, y: b.reshape(x, (16, 4)),
    "what a reduction reads": lambda b, x, y: b.reduce_sum(b.exp(x), (0, 1)),
    "other operations": lambda b, x, y: b.add(b.cbrt(x), b.cbrt(y)),
    "positions": lambda b, x, y: b.convert(b.iota((4, 16), 0, "int32"), F32),
    "elements far from each other": lambda b, x, y: b.exp(b.transpose(x, (1, 0))),
    "other types": lambda b, x, y: b.exp(b.convert(x, dtypes.of("float64"))),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_none(name: str) -> None:
    assert noted(two(NONE[name])) == []


def test_one_large_value_may_be_computed_by_other_operations() -> None:
    def body(b: Builder, x: Value, y: Value) -> Value:
        places = b.convert(b.iota(x.shape, 1, "int32"), F32)
        return b.multiply(places, y)

    (found,) = noted(two(body))
    assert operations(found) == ["read", "read", "multiply"]


def test_what_others_compute_is_moved_by_them() -> None:
    def body(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        turned = b.transpose(b.cbrt(x), (1, 0))
        return b.custom_call("reader", [turned], [turned.type])

    assert noted(two(body, (32, 32), (1, 1))) == []


def test_small_values_are_computed_once() -> None:
    """A number for each column is not computed again in each row; a conversion costs nothing."""
    b = Builder([TensorType((64, 32), F32), TensorType((32,), F32), TensorType((32,), BF16)])
    x, variance, weight = b.parameters
    scale = b.rsqrt(b.add(variance, b.full((32,), 1e-5, F32)))
    wide = b.convert(weight, F32)
    scaled = b.multiply(x, b.broadcast_in_dim(scale, (64, 32), (1,)))
    found = noted(b.finish([b.multiply(scaled, b.broadcast_in_dim(wide, (64, 32), (1,)))]))
    assert [operations(item) for item in found] == [
        ["read", "read", "multiply", "read", "multiply"],
        ["read", "number", "add", "rsqrt"],
    ]


def test_small_values_may_be_computed_by_themselves() -> None:
    def body(b: Builder, x: Value, y: Value) -> Value:
        return b.add(x, b.broadcast_in_dim(b.cbrt(y), x.shape, (1,)))

    (found,) = noted(two(body, (64, 16), (16,)))
    assert operations(found) == ["read", "read", "add"]


@pytest.mark.parametrize(
    ("operation", "expected"), [("add", "or"), ("multiply", "and"), ("xor", "not_equal")]
)
def test_operations_of_truth(operation: str, expected: str) -> None:
    def body(b: Builder, x: Value, y: Value) -> Value:
        pair = [b.compare(item, b.full(item.shape, 0, F32), "GT") for item in (x, y)]
        found = {"add": b.add, "multiply": b.multiply, "xor": b.xor}[operation](*pair)
        return b.convert(found, F32)

    (found,) = noted(two(body))
    assert operations(found)[-1] == expected


COMPARED = """
func.func @main(%x: tensor<4x16xf32>, %y: tensor<4x16xf32>) -> tensor<4x16xi1> {
  %0 = stablehlo.compare GT, %x, %y{TYPE} : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xi1>
  return %0 : tensor<4x16xi1>
}
"""


@pytest.mark.parametrize(("kind", "count"), [("", 1), (", FLOAT", 1), (", TOTALORDER", 0)])
def test_comparisons_that_state_their_type_or_do_not(kind: str, count: int) -> None:
    found = noted(Program.parse(COMPARED.replace("{TYPE}", kind)))
    assert [operations(item) for item in found] == [["read", "read", "less"]] * count


TAKING: dict[str, tuple[Callable[[Builder, Value, Value], Any], list[dict[int, int]]]] = {
    "it is read as it lies": (lambda b, x, y: b.add(y, x), [{0: 1}]),
    "it is not read": (lambda b, x, y: b.add(y, y), []),
    "it is read in another order": (
        lambda b, x, y: b.add(x, b.transpose(b.reshape(x, (16, 4)), (1, 0))),
        [],
    ),
    "it is read twice": (lambda b, x, y: b.multiply(b.add(y, x), x), [{0: 1}]),
}


@pytest.mark.parametrize("name", TAKING)
def test_results_that_take_the_memory_of_arguments(name: str) -> None:
    """A result can be computed in it where its own elements are read, each at its place."""
    body, expected = TAKING[name]
    b = Builder([TensorType((4, 16), F32)] * 2)
    b.donate(0, 0)
    found = noted(b.finish([body(b, *b.parameters)]))
    assert [item.overwritten for item in found] == expected


def test_other_results_have_memory_of_their_own() -> None:
    b = Builder([TensorType((4, 16), F32), TensorType((8, 16), F32)])
    x, y = b.parameters
    b.donate(1, 1)
    found = noted(b.finish([b.tanh(x), b.exp(y)]))
    assert [item.overwritten for item in found] == [{}, {0: 0}]


@pytest.mark.parametrize(("dtype", "count"), [(F32, 1), (BF16, 1), (dtypes.of("float16"), 0)])
def test_of_which_types(dtype: DType, count: int) -> None:
    source = program(lambda b, x: b.negate(x), TensorType((4, 16), dtype))
    assert len(noted(source)) == count


def test_half_precision_is_rounded_after_each_operation() -> None:
    def body(b: Builder, x: Value, y: Value) -> Value:
        return b.negate(b.multiply(b.add(x, y), y))

    source = program(body, *[TensorType((4, 16), BF16)] * 2)
    (found,) = noted(source)
    assert operations(found) == ["read", "read", "add", "round", "multiply", "round", "negate"]
