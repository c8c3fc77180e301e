"""Parts as programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop.emit import Emitted, emit, traced
from pjrt_bridge.tf_interop.segments import static_types
from tests.tf_interop.helpers import divided, spec


def emitted(function: Callable[..., Any], *specs: Any) -> tuple[Emitted, int]:
    """The program of a function's only part, and how many results the function has."""
    found = divided(function, *specs)
    (part,) = found.parts
    types = static_types(found.captured, part)
    assert types is not None
    return emit(traced(found.captured, part), types, len(part.outputs), exact=False), len(
        part.outputs
    )


def run(client: Client, made: Emitted, *arrays: Any) -> list[Any]:
    """Results of the program on the plugin."""
    held = [item.numpy() if item.dtype != tf.resource else _value(item) for item in made.held]
    with client.compile(made.program) as executable:
        buffers = [client.put(array) for array in (*arrays, *held)]
        return [buffer.to_numpy() for buffer in executable.execute(buffers)]


def _value(handle: Any) -> Any:
    dtype = handle._handle_data.shape_and_type[0].dtype
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def shapes(made: Emitted) -> list[tuple[int, ...]]:
    return [parameter.type.shape for parameter in made.program.signature.parameters]


def test_arguments_then_what_is_held(client: Client) -> None:
    weights, bias = tf.Variable(tf.ones([3, 4])), tf.Variable(tf.ones([4]) * 2)
    made, _ = emitted(lambda x: x @ weights + bias, spec(2, 3))
    assert [
        item is held for item, held in zip(made.held, (weights.handle, bias.handle), strict=True)
    ] == [True, True]
    assert shapes(made) == [(2, 3), (3, 4), (4,)]
    assert made.updates == []
    (found,) = run(client, made, np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(found, np.full((2, 4), 5.0))


def test_updates_are_results_behind_the_functions_own(client: Client) -> None:
    first, second, third = (tf.Variable(tf.fill([2], float(n))) for n in range(3))

    def function(x: Any) -> Any:
        third.assign(first + x)
        first.assign_add(x * 10)
        return second + x

    made, outputs = emitted(function, spec(2))
    assert outputs == 1
    x = np.ones(2, np.float32)
    found = run(client, made, x)
    updates = {
        next(
            name
            for name, item in (("first", first), ("third", third))
            if made.held[at] is item.handle
        ): found[index].tolist()
        for at, index in made.updates
    }
    assert found[0].tolist() == [2.0, 2.0]
    assert updates == {"first": [10.0, 10.0], "third": [1.0, 1.0]}
    assert sorted(index for _, index in made.updates) == [1, 2]


def test_an_update_may_be_the_only_result(client: Client) -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> None:
        variable.assign_sub(x)

    made, outputs = emitted(function, spec(2))
    assert outputs == 0
    assert list(made.updates) == [(0, 0)]
    assert run(client, made, np.ones(2, np.float32))[0].tolist() == [0.0, 1.0]


def test_small_constants_are_in_the_program_and_large_ones_are_arguments(client: Client) -> None:
    small, large = tf.range(4.0), tf.range(4000.0)
    made, _ = emitted(lambda x: (x + small, large * 2), spec(4))
    assert shapes(made) == [(4,), (4000,)]
    assert len(made.held) == 1
    one, two = run(client, made, np.ones(4, np.float32))
    assert one.tolist() == [1.0, 2.0, 3.0, 4.0]
    np.testing.assert_array_equal(two, np.arange(4000.0) * 2)


def test_a_variable_that_is_only_given_a_value(client: Client) -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> Any:
        variable.assign(x * 2)
        return x + 1

    made, _ = emitted(function, spec(2))
    ((_, index),) = made.updates
    found = run(client, made, np.ones(2, np.float32))
    assert found[index].tolist() == [2.0, 2.0]


def test_results_twice_and_as_they_came(client: Client) -> None:
    def function(x: Any) -> Any:
        y = tf.exp(x)
        return y, x, y

    found = divided(function, spec(2))
    (part,) = found.parts
    # The function's order is put together outside of the program.
    assert len(part.outputs) == 1


@pytest.mark.parametrize("size", [1, 5])
def test_open_sizes_are_those_that_come(client: Client, size: int) -> None:
    found = divided(lambda x: tf.reduce_sum(x, 1) * 2, spec(None, 3))
    (part,) = found.parts
    assert static_types(found.captured, part) is None
    types = [TensorType((size, 3), dtypes.of("float32"))]
    made = emit(traced(found.captured, part), types, 1, exact=False)
    (result,) = run(client, made, np.ones((size, 3), np.float32))
    assert result.tolist() == [6.0] * size
