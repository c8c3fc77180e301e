"""Small programs: which ones are, and what becomes calls in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Expression
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import for_target, small_programs
from tests.stablehlo.helpers import program

F32, F64, INT32 = map(dtypes.of, ("float32", "float64", "int32"))


class Noting(Kernels):
    """Kernels that call for products and expressions what no target has."""

    inline_flops = 900

    def expression(
        self, b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Sequence[Value] | None:
        types = [TensorType(result.shape, result.dtype) for result in expression.results]
        return b.custom_call("noted_expression", operands, types)

    def small_product(
        self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType
    ) -> Value | None:
        shape = (*x.shape[:-1], y.shape[-1])
        return b.custom_call("noted_product", [x, y], [TensorType(shape, dtype)])[0]


def layers(rows: int, width: int, count: int = 2, dtype: DType = F32) -> Program:
    """Linear layers with a maximum behind each."""

    def written(b: Builder, x: Value, *weights: Value) -> list[Value]:
        for weight in weights:
            x = b.dot_general(x, weight, lhs_contract=(1,), rhs_contract=(0,))
            x = b.maximum(x, b.full(x.shape, 0, dtype))
        return [x]

    sizes = [(rows, width), *[(width, width)] * count]
    return program(written, *(TensorType(shape, dtype) for shape in sizes))


def calls(source: Program, kernels: Kernels | None = None) -> tuple[int, int]:
    """The products and the expressions that are calls."""
    text = for_target(source, kernels or Noting()).text
    return text.count("@noted_product"), text.count("@noted_expression")


def test_products_and_what_is_computed_of_them_are_calls() -> None:
    assert calls(layers(4, 32)) == (2, 2)
    assert calls(layers(8, 64, count=5)) == (5, 5)


def test_a_product_in_batches_is_one() -> None:
    def written(b: Builder, x: Value, y: Value) -> list[Value]:
        batch = {"lhs_batch": (0, 1), "rhs_batch": (0, 1)}
        return [b.dot_general(x, y, lhs_contract=(3,), rhs_contract=(3,), **batch)]

    types = [TensorType((2, 4, 8, 16), F32)] * 2
    assert calls(program(written, *types)) == (1, 0)


def test_what_runs_on_the_calling_thread_anyway_stays() -> None:
    assert calls(layers(2, 8)) == (0, 0)


def test_a_large_program_stays() -> None:
    rows = small_programs.MOST_WORK // (2 * 64 * 64) + 1
    assert calls(layers(rows, 64))[0] == 0


def test_other_targets_have_none() -> None:
    kernels = Noting()
    kernels.inline_flops = 0
    assert calls(layers(4, 32), kernels) == (0, 0)


def followed_by(operation: Callable[[Builder, Value], Value]) -> Program:
    def written(b: Builder, x: Value, weight: Value) -> list[Value]:
        return [operation(b, b.dot_general(x, weight, lhs_contract=(1,), rhs_contract=(0,)))]

    return program(written, TensorType((8, 32), F32), TensorType((32, 32), F32))


def integers(b: Builder, x: Value) -> Value:
    wide = b.broadcast_in_dim(b.convert(x, INT32), (8, *x.shape), (1, 2))
    return b.reduce_sum(b.multiply(wide, wide), (0,))


def looped(b: Builder, x: Value) -> Value:
    start = b.full((), 0, INT32)
    end, step = b.full((), 3, INT32), b.full((), 1, INT32)
    results = b.while_(
        [start, x],
        lambda values: b.compare(values[0], end, "LT"),
        lambda values: [b.add(values[0], step), b.add(values[1], values[1])],
    )
    return results[1]


def beside_what_nothing_reads(b: Builder, x: Value) -> Value:
    ordered = b.sort([x], 1, lambda left, right: b.compare(left[0], right[0], "LT"))[0]
    b.pad(ordered, b.full((), 0, F32), (1, 1), (0, 0), (0, 0))
    return b.transpose(x, (1, 0))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (beside_what_nothing_reads, 1),
        (lambda b, x: b.sort([x], 1, lambda left, right: b.compare(left[0], right[0], "LT"))[0], 0),
        (looped, 0),
        (integers, 0),
        (lambda b, x: b.transpose(x, (1, 0)), 1),
        (lambda b, x: b.reduce_sum(x, (1,)), 1),
        (lambda b, x: b.convert(x, INT32), 1),
    ],
    ids=[
        "what nothing reads",
        "a sort",
        "a loop",
        "many integers",
        "a transposition",
        "a sum",
        "a few integers",
    ],
)
def test_what_else_a_small_program_may_have(
    operation: Callable[[Builder, Value], Value], expected: int
) -> None:
    assert calls(followed_by(operation))[0] == expected


def test_many_expressions_of_a_few_elements_are_no_calls() -> None:
    most = small_programs.MOST_CALLS
    assert calls(layers(1, 24, count=most)) == (most, most)
    assert calls(layers(1, 24, count=most + 1)) == (0, 0)


def test_other_types_are_left() -> None:
    assert calls(layers(4, 32, dtype=F64)) == (0, 0)


def test_values_that_are_no_arrays_are_looked_over() -> None:
    text = """
    func.func @main(%x: tensor<8x32xf32>, %w: tensor<32x32xf32>) -> tensor<8x32xf32> {
      %token = stablehlo.create_token : !stablehlo.token
      %all = stablehlo.after_all %token : !stablehlo.token
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
      return %0 : tensor<8x32xf32>
    }
    """
    assert calls(Program.from_text(text)) == (0, 0)


def test_sizes_that_a_program_does_not_say_are_looked_over() -> None:
    text = """
    func.func @main(%x: tensor<?x32xf32>, %w: tensor<32x32xf32>, %y: tensor<8x32xf32>)
        -> (tensor<?x32xf32>, tensor<8x32xf32>) {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
      %1 = stablehlo.add %0, %0 : tensor<?x32xf32>
      %2 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
        : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
      return %1, %2 : tensor<?x32xf32>, tensor<8x32xf32>
    }
    """
    assert calls(Program.from_text(text)) == (0, 0)
