"""Elementwise expressions of programs: which operations they are made of, and what they compute."""

from __future__ import annotations

import math
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
from pjrt_bridge.stablehlo.patterns import expressions, for_target
from tests.extent import examples
from tests.stablehlo.helpers import program
from tests.stablehlo.patterns.computed import computed

F32, BF16, BOOL = map(dtypes.of, ("float32", "bfloat16", "bool"))


class Noting(Kernels):
    """Kernels that note the expressions, and call for them what no target has."""

    def __init__(self) -> None:
        self.found: list[tuple[Expression, Sequence[Value]]] = []

    def expression(
        self, b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Value | None:
        self.found.append((expression, operands))
        return b.custom_call("noted", operands, [TensorType(expression.shape, expression.dtype)])[0]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "LEAST", 1)


def noted(source: Program) -> list[Expression]:
    kernels = Noting()
    for_target(source, kernels)
    return [expression for expression, _ in kernels.found]


def operations(expression: Expression) -> list[str]:
    return [step.operation for step in expression.steps]


def drawn(data: st.DataObject, b: Builder, parameters: Sequence[Value]) -> Value:
    """A value that is computed from parameters, all float32, by operations drawn by chance."""
    values = list(parameters)
    for _ in range(data.draw(st.integers(1, 7))):
        x = data.draw(st.sampled_from(values))
        y = data.draw(st.sampled_from([item for item in values if item.shape == x.shape]))
        kind = data.draw(st.sampled_from(sorted(MADE)))
        values.append(MADE[kind](data, b, x, y))
    return values[-1]


def _transposed(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    return b.transpose(x, data.draw(st.permutations(range(x.rank))))


def _reshaped(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    size = math.prod(x.shape)
    first = data.draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0]))
    return b.reshape(x, (first, size // first))


def _repeated(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    at = data.draw(st.integers(0, x.rank))
    shape = (*x.shape[:at], 2, *x.shape[at:])
    if math.prod(shape) > 400:
        return x
    return b.broadcast_in_dim(x, shape, [dim for dim in range(len(shape)) if dim != at])


def _sliced(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    starts = [data.draw(st.integers(0, size - 1)) for size in x.shape]
    return b.slice(x, starts, x.shape, [1] * x.rank)


def _joined(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    return b.concatenate([x, y], data.draw(st.integers(0, x.rank - 1)))


def _chosen(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    direction = data.draw(st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"]))
    return b.select(b.compare(x, y, direction), x, b.negate(y))


def _narrow(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    narrow = [b.convert(item, BF16) for item in (x, y)]
    return b.convert(b.multiply(*narrow), F32)


MADE: dict[str, Callable[[st.DataObject, Builder, Value, Value], Value]] = {
    "add": lambda _, b, x, y: b.add(x, y),
    "chosen": _chosen,
    "exponential": lambda _, b, x, y: b.exp(b.minimum(x, b.full(x.shape, 2, F32))),
    "joined": _joined,
    "logistic": lambda _, b, x, y: b.logistic(x),
    "multiply": lambda _, b, x, y: b.multiply(x, y),
    "narrow": _narrow,
    "number": lambda _, b, x, y: b.subtract(x, b.full(x.shape, 0.5, F32)),
    "repeated": _repeated,
    "reshaped": _reshaped,
    "sliced": _sliced,
    "tanh": lambda _, b, x, y: b.tanh(x),
    "transposed": _transposed,
}


@settings(max_examples=examples(250), deadline=None)
@given(st.data())
def test_an_expression_computes_what_the_operations_do(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 8, 9]), min_size=1, max_size=3)))
    types = [TensorType(shape, F32), TensorType(shape, F32)]
    source = program(lambda b, *values: [drawn(data, b, values)], *types)
    kernels = Noting()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expressions, "_RUN", 1)
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
    "other operations": lambda b, x, y: b.add(b.sin(x), y),
    "positions": lambda b, x, y: b.convert(b.iota((4, 16), 0, "int32"), F32),
    "elements far from each other": lambda b, x, y: b.exp(b.transpose(x, (1, 0))),
    "other types": lambda b, x, y: b.exp(b.convert(x, dtypes.of("float64"))),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_none(name: str) -> None:
    assert noted(two(NONE[name])) == []


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
        return b.add(x, b.broadcast_in_dim(b.sin(y), x.shape, (1,)))

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


def test_results_that_take_the_memory_of_arguments_stay() -> None:
    def built(donated: bool) -> Program:
        b = Builder([TensorType((4, 16), F32)] * 2)
        x, y = b.parameters
        if donated:
            b.donate(0, 0)
        return b.finish([b.add(x, y)])

    assert noted(built(True)) == []
    assert len(noted(built(False))) == 1


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
