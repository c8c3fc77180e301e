"""Orders in memory, as a compiler is expected to choose them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder import orders
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import memory_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType

FLOAT32 = dtypes.of("float32")


def builder(*shapes: tuple[int, ...]) -> Builder:
    return Builder([TensorType(shape, FLOAT32) for shape in shapes])


def called(b: Builder, x: Value, order: tuple[int, ...]) -> Value:
    layout = tuple(reversed(order))
    row_major = tuple(range(x.rank))[::-1]
    (found,) = b.custom_call(
        "some.call",
        [x],
        [x.type],
        backend_config={"n": np.array([1], np.int64)},
        operand_layouts=[row_major],
        result_layouts=[layout],
    )
    return found


@given(
    st.integers(0, 4).flatmap(lambda rank: st.lists(st.permutations(range(rank)), max_size=4)),
    st.data(),
)
def test_by_its_order_a_transposed_value_is_row_major_again(
    permutations: list[list[int]], data: st.DataObject
) -> None:
    """A view of NumPy's, whose strides fall along the order, is the model."""
    rank = len(permutations[0]) if permutations else 2
    shape = tuple(range(2, 2 + rank))
    b = builder(shape)
    (value,) = b.parameters
    model: Any = np.arange(math.prod(shape)).reshape(shape)
    for permutation in permutations:
        value, model = b.transpose(value, permutation), model.transpose(permutation)
        if data.draw(st.booleans()):
            value = b.tanh(value)
    order = memory_order(value)
    assert model.transpose(order).strides == np.arange(math.prod(shape)).reshape(shape).strides


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_what_a_call_states_is_taken_over(order: list[int], permutation: list[int]) -> None:
    b = builder((2, 3, 4))
    value = called(b, b.parameters[0], tuple(order))
    assert memory_order(value) == tuple(order)
    turned = memory_order(b.exp(b.transpose(value, permutation)))
    # The dimension of the call's result that is outermost is the outermost one.
    assert tuple(permutation[dim] for dim in turned) == tuple(order)


def test_row_major_where_nothing_says() -> None:
    b = builder((4, 4), ())
    x, scalar = b.parameters
    turned = b.transpose(x, (1, 0))
    assert memory_order(x) == (0, 1)
    assert memory_order(scalar) == memory_order(b.negate(scalar)) == ()
    assert memory_order(b.full((2, 3), 1.0, FLOAT32)) == (0, 1)
    assert memory_order(b.reshape(turned, (2, 8))) == (0, 1)
    assert memory_order(b.reduce_sum(turned, (0,))) == (0,)
    assert memory_order(b.stored(turned)) == (0, 1)


def test_elementwise_operations_keep_the_order_of_any_side() -> None:
    b = builder((4, 4), (4, 4))
    x, y = b.parameters
    turned = b.transpose(x, (1, 0))
    mask = b.compare(y, turned, "LT")
    for value in (b.add(y, turned), b.add(turned, y), mask, b.select(mask, y, y), b.exp(turned)):
        assert memory_order(value) == (1, 0)
    assert memory_order(b.add(y, b.transpose(turned, (1, 0)))) == (0, 1)


def test_parts_lie_as_the_whole_does() -> None:
    b = builder((4, 6), ())
    x, zero = b.parameters
    turned = b.transpose(x, (1, 0))
    assert memory_order(b.slice(turned, (0, 1), (4, 3), (1, 1))) == (1, 0)
    assert memory_order(b.pad(turned, zero, (1, 1), (0, 0), (0, 0))) == (1, 0)
    assert memory_order(b.slice(x, (0, 1), (4, 3), (1, 1))) == (0, 1)


def test_a_product_does_not_lie_as_its_sides() -> None:
    b = builder((4, 4), (4, 4))
    x, y = b.parameters
    turned = b.transpose(y, (1, 0))
    product = b.dot_general(x, turned, lhs_contract=(1,), rhs_contract=(0,))
    assert memory_order(product) == memory_order(b.tanh(product)) == (0, 1)


def test_an_element_of_a_tuple_is_row_major() -> None:
    """Programs of TensorFlow have tuples, as results of its decompositions."""
    text = """
        func.func @main(%x: tensor<3x3xf32>) -> tensor<3x3xf32> {
          %pair = stablehlo.custom_call @Qr(%x)
              : (tensor<3x3xf32>) -> tuple<tensor<3x3xf32>, tensor<3xf32>>
          %q = stablehlo.get_tuple_element %pair[0]
              : (tuple<tensor<3x3xf32>, tensor<3xf32>>) -> tensor<3x3xf32>
          %r = stablehlo.tanh %q : tensor<3x3xf32>
          return %r : tensor<3x3xf32>
        }"""
    found = []

    def look(b: Builder, operation: Operation) -> None:
        found.append(memory_order(operation.operands[0]))

    Builder.rewritten(Program.from_text(text), [{"stablehlo.tanh": look}])
    assert found == [(0, 1)]


def test_a_value_that_several_paths_reach_has_one_order() -> None:
    b = builder((4, 4))
    turned = b.transpose(b.parameters[0], (1, 0))
    back = b.transpose(b.exp(turned), (1, 0))
    assert memory_order(b.add(back, turned)) == (1, 0)
    assert memory_order(b.add(turned, back)) == (1, 0)


@pytest.mark.parametrize(("between", "order"), [(1, (1, 0)), (200, (0, 1))])
def test_it_is_looked_for_within_reach(between: int, order: tuple[int, ...]) -> None:
    assert between == 1 or between > orders._MAX_VISITED
    b = builder((4, 4))
    value = b.transpose(b.parameters[0], (1, 0))
    for _ in range(between):
        value = b.add(value, value)
    assert memory_order(value) == order


@given(st.integers(0, 6).flatmap(lambda rank: st.permutations(range(rank))))
def test_an_inverse_undoes_a_permutation(order: list[int]) -> None:
    array = np.zeros(tuple(range(2, 2 + len(order))), np.int8)
    assert array.transpose(order).transpose(orders.inverse_order(order)).shape == array.shape
    assert orders.inverse_order(orders.inverse_order(order)) == tuple(order)
