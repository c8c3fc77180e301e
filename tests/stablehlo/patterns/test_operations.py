"""Operations of programs that others wrote, computed by kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.builder.values import ElementwiseFunction
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Convolution, Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import for_target, rounds
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from tests.stablehlo.helpers import program

F32 = dtypes.of("float32")


class Sums(Kernels):
    """Products as sums, and reductions one dimension after the other; notes what it was asked."""

    def __init__(self) -> None:
        self.products: list[tuple[Value, Value]] = []
        self.reductions: list[Reduction] = []

    def product(self, b: Builder, x: Value, y: Value, **how: Any) -> Value:
        self.products.append((x, y))
        *batch, rows, length = x.shape
        columns = y.shape[-1]
        count = len(batch)
        shape = (*batch, rows, length, columns)
        left = b.broadcast_in_dim(x, shape, tuple(range(count + 2)))
        right = b.broadcast_in_dim(y, shape, (*range(count), count + 1, count + 2))
        total = b.reduce_sum(b.multiply(left, right), (count + 1,))
        return total if total.dtype == how["dtype"] else b.convert(total, how["dtype"])

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        self.reductions.append(reduction)
        for dim in sorted(dims, reverse=True):
            x = super().reduce(b, reduction, b.abs(x), (dim,))
        return x


def rewritten(source: Program, kernels: Kernels) -> Program:
    builder = Builder([item.type for item in source.signature.parameters])
    return builder.finish(builder.call(source, builder.parameters, rounds(kernels)))


@st.composite
def products(
    draw: st.DrawFn, transposed: str = "not"
) -> tuple[Program, list[np.ndarray[Any, Any]]]:
    """A `dot_general` with dimensions of each kind in any order.

    `transposed` is "not", "swapped" for one whose operands' dimensions change places behind it, or
    "any".
    """
    size = st.integers(1, 3)
    batch, length, rows, columns = (draw(st.lists(size, max_size=2)) for _ in range(4))

    def side(others: list[int]) -> tuple[tuple[int, ...], list[int], list[int]]:
        kinds = [*batch, *length, *others]
        order = draw(st.permutations(range(len(kinds))))
        at = [order.index(kind) for kind in range(len(kinds))]
        shape = tuple(kinds[kind] for kind in order)
        return shape, at[: len(batch)], at[len(batch) : len(batch) + len(length)]

    x_shape, x_batch, x_sum = side(rows)
    y_shape, y_batch, y_sum = side(columns)

    def body(b: Builder, x: Value, y: Value) -> Value:
        found = b.dot_general(
            x, y, lhs_batch=x_batch, rhs_batch=y_batch, lhs_contract=x_sum, rhs_contract=y_sum
        )
        if transposed == "not":
            return found
        middle = len(batch) + len(rows)
        swapped = [*range(len(batch)), *range(middle, found.rank), *range(len(batch), middle)]
        order = draw(st.permutations(range(found.rank))) if transposed == "any" else swapped
        return b.transpose(found, order)

    random = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = [random.integers(-4, 5, shape).astype(np.float32) for shape in (x_shape, y_shape)]
    return program(body, *(TensorType(item.shape, F32) for item in arrays)), arrays


@settings(max_examples=60, deadline=None)
@given(products())
def test_any_product_becomes_one_of_matrices(case: Any) -> None:
    source, arrays = case
    kernels = Sums()
    found = rewritten(source, kernels)
    assert "dot_general" not in found.text
    np.testing.assert_array_equal(evaluate(found, *arrays)[0], evaluate(source, *arrays)[0])
    ((x, y),) = kernels.products
    assert x.shape[-1] == y.shape[-2]
    assert x.rank == y.rank == 2 + len(x.shape[:-2])


class Doubled(Kernels):
    """Tangents of large arrays as twice their half."""

    functions: ClassVar[Mapping[str, ElementwiseFunction]] = {
        "stablehlo.tan": lambda b, x: None if x.size < 3 else b.add(x, x),
    }


@pytest.mark.parametrize(("size", "is_replaced"), [(2, False), (3, True)])
def test_functions_are_what_the_target_has_for_them(size: int, is_replaced: bool) -> None:
    """In programs that others wrote, and in those that are written for the target."""
    given = TensorType((size,), F32)
    plain, own = Builder([given]), Builder([given], functions=Doubled.functions)
    written = plain.finish([plain.tan(*plain.parameters)])
    for found in (for_target(written, Doubled()), own.finish([own.tan(*own.parameters)])):
        assert ("stablehlo.tan" not in found.text) == is_replaced


class Plain(Kernels):
    """Has the portable products, which are emitted for the operands that are given."""


@settings(max_examples=60, deadline=None)
@given(products("any") | products("swapped"))
def test_a_product_may_be_transposed(case: Any) -> None:
    source, arrays = case
    found = rewritten(source, Plain())
    np.testing.assert_array_equal(evaluate(found, *arrays)[0], evaluate(source, *arrays)[0])


def test_a_transposed_product_is_one_in_the_other_order() -> None:
    """As JAX writes the gradient of a weight."""
    types = TensorType((4, 5, 2), F32), TensorType((4, 5, 3), F32)

    def body(b: Builder, x: Value, y: Value) -> Value:
        return b.transpose(b.dot_general(x, y, lhs_contract=(0, 1), rhs_contract=(0, 1)), (1, 0))

    source = program(body, *types)
    found = for_target(source, Plain())
    lines = [line for line in found.text.splitlines() if "= stablehlo." in line]
    (at,) = [at for at, line in enumerate(lines) if "dot_general" in line]
    assert "tensor<3x20xf32>, tensor<20x2xf32>" in lines[at]
    assert not any("transpose" in line for line in lines[at:])
    x, y = (np.arange(item.size, dtype=np.float32).reshape(item.shape) for item in types)
    np.testing.assert_array_equal(evaluate(found, x, y)[0], evaluate(source, x, y)[0])


class Negated(Kernels):
    """Convolutions of what is negated twice."""

    def convolution(
        self, b: Builder, x: Value, weight: Value, how: Convolution, **types: Any
    ) -> Value:
        return super().convolution(b, b.negate(b.negate(x)), weight, how, **types)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Program, list[np.ndarray[Any, Any]]]:
    """A `convolution` with attributes of each kind, and dimensions in any order."""
    count = draw(st.integers(1, 2))
    small = st.integers(1, 2)
    groups, batches = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    letters = "ab"[:count]
    sizes = {"N": batches * draw(small), "C": groups * draw(small), "I": 0, "O": 2}
    sizes["I"] = sizes["C"] // groups
    # The interpreter computes no result whose features come before its batches.
    result = st.permutations("NC" + letters).filter(lambda one: one.index("N") < one.index("C"))
    orders = [st.permutations("NC" + letters), st.permutations("OI" + letters), result]
    x, weight, y = ("".join(draw(order)) for order in orders)
    # The builder's sequences are in the order of the input's letters.
    windows = {letter: draw(small) for letter in letters}
    lengths = {letter: draw(st.integers(3, 5)) for letter in letters}
    of = {name: [draw(small) for _ in letters] for name in ("window_strides", "lhs_dilation")}
    padding = [(draw(st.integers(-1, 2)), draw(st.integers(0, 2))) for _ in letters]

    def body(b: Builder, left: Value, right: Value) -> Value:
        return b.convolution(
            left,
            right,
            padding=padding,
            rhs_dilation=draw(st.lists(small, min_size=count, max_size=count)),
            feature_group_count=groups,
            batch_group_count=batches,
            dimension_numbers=(x, weight, y),
            **of,
        )

    random = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = (
        [(sizes | lengths)[letter] for letter in x],
        [(sizes | windows)[letter] for letter in weight],
    )
    arrays = [random.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    return program(body, *(TensorType(item.shape, F32) for item in arrays)), arrays


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_any_convolution_keeps_its_attributes(case: Any) -> None:
    source, arrays = case
    found = rewritten(source, Negated())
    assert "stablehlo.negate" in found.text
    np.testing.assert_array_equal(evaluate(found, *arrays)[0], evaluate(source, *arrays)[0])


def test_a_reversed_window_is_no_pattern() -> None:
    def body(b: Builder, x: Value, weight: Value) -> Value:
        return b.convolution(
            x,
            weight,
            window_strides=[1],
            padding=[(0, 0)],
            window_reversal=[True],
            dimension_numbers=("NCa", "OIa", "NCa"),
        )

    source = program(body, TensorType((1, 1, 5), F32), TensorType((1, 1, 2), F32))
    assert for_target(source, Negated()) is source


WHOLE = """
module @kept {
  func.func @main(
    %x: tensor<3x4xf32> {tf.aliasing_output = 1 : i32},
    %y: tensor<4x3xf32> {jax.buffer_donor = true, mhlo.layout_mode = "{0,1}"}
  ) -> (tensor<3x3xf32>, tensor<3x4xf32> {mhlo.layout_mode = "{1,0}"}) {
    %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<3x4xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
    return %r, %x : tensor<3x3xf32>, tensor<3x4xf32>
  }
}
"""


def test_a_whole_program_keeps_what_it_says_of_its_parameters_and_results() -> None:
    source, kernels = Program.from_text(WHOLE), Sums()
    found = for_target(source, kernels)
    assert len(kernels.products) == 1
    assert "dot_general" not in found.text
    assert found.name == "kept"
    assert found.signature == source.signature
    assert source.text == Program.from_text(WHOLE).text
    assert for_target(source, Kernels()) is source


def test_a_program_that_is_divided_over_devices_stays_as_it_is() -> None:
    text = WHOLE.replace("func.func", 'sdy.mesh @mesh = <["x"=2]>\n  func.func', 1)
    source, kernels = Program.from_text(text), Sums()
    assert for_target(source, kernels) is source
    assert not kernels.products


def test_gradients_of_weights_are_products_with_a_transposed_side() -> None:
    """(2, 3, 4) and (2, 3, 5), summed over the first two: no element moves before the kernel."""

    def body(b: Builder, x: Value, y: Value) -> Value:
        return b.dot_general(x, y, lhs_contract=(0, 1), rhs_contract=(0, 1))

    kernels = Sums()
    rewritten(program(body, TensorType((2, 3, 4), F32), TensorType((2, 3, 5), F32)), kernels)
    ((x, y),) = kernels.products
    assert x.origin is not None
    assert (x.shape, x.origin.permutation) == ((4, 6), (1, 0))
    assert y.shape == (6, 5)


REDUCTION = """
func.func public @main(%x: tensor<2x3xf32>) -> tensor<2xf32> {{
  %start = stablehlo.constant dense<{start}> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.{body} across dimensions = [1]
    : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}}
"""
MINUS_INFINITY, INFINITY = "0xFF800000", "0x7F800000"


@pytest.mark.parametrize(
    ("body", "start", "reduction"),
    [
        ("add", "0.0", "sum"),
        ("add", "1.0", None),
        ("multiply", "1.0", "prod"),
        ("maximum", MINUS_INFINITY, "max"),
        ("maximum", "0.0", None),
        ("minimum", INFINITY, "min"),
    ],
)
def test_reductions_from_what_changes_nothing(body: str, start: str, reduction: str | None) -> None:
    source = Program.from_text(REDUCTION.format(body=body, start=start))
    kernels = Sums()
    found = rewritten(source, kernels)
    assert kernels.reductions == ([] if reduction is None else [reduction])
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    np.testing.assert_array_equal(evaluate(found, x)[0], evaluate(source, x)[0])


BODIES = """
func.func public @main(%x: tensor<2x2xf32>, %n: tensor<i32>) -> tensor<2x2xf32> {
  %0:2 = stablehlo.while(%i = %n, %a = %x) : tensor<i32>, tensor<2x2xf32>
  cond {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.subtract %i, %one : tensor<i32>
    %3 = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0]
      : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    stablehlo.return %2, %3 : tensor<i32>, tensor<2x2xf32>
  }
  return %0#1 : tensor<2x2xf32>
}
"""


def test_bodies_of_loops_too() -> None:
    source, kernels = Program.from_text(BODIES), Sums()
    found = rewritten(source, kernels)
    assert len(kernels.products) == 1
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    arrays = (x, np.array(3, np.int32))
    np.testing.assert_array_equal(evaluate(found, *arrays)[0], evaluate(source, *arrays)[0])


def test_what_computes_the_same_stays_as_it_was_written() -> None:
    """A kernel that takes none of the operations costs a program nothing."""

    class Same(Kernels):
        pass

    def body(b: Builder, x: Value, y: Value) -> Value:
        return b.reduce_sum(b.dot_general(x, y, lhs_contract=(0,), rhs_contract=(1,)), (0,))

    source = program(body, TensorType((3, 4), F32), TensorType((5, 3), F32))
    assert not rounds(Kernels())
    assert rewritten(source, Same()).text == rewritten(source, Kernels()).text


def test_a_rewrite_that_fails_leaves_the_program_as_it_was() -> None:
    def fails(b: Builder, operation: Operation) -> list[Value]:
        b.negate(operation.operands[0])
        raise LookupError(operation.name)

    source = Program.from_text(REDUCTION.format(body="add", start="0.0"))
    builder = Builder([item.type for item in source.signature.parameters])
    with pytest.raises(LookupError, match=r"stablehlo\.reduce"):
        builder.call(source, builder.parameters, [{"stablehlo.reduce": fails}])
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    found = builder.finish([builder.negate(builder.parameters[0])])
    np.testing.assert_array_equal(evaluate(found, x)[0], -x)
