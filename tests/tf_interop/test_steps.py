"""Host segments that run operation by operation: the same as in a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge.tf_interop.emit import traced
from pjrt_bridge.tf_interop.split import Part
from pjrt_bridge.tf_interop.steps import OrderedOperations, steps_of
from tests.tf_interop.helpers import Divided, captured, spec


def host_part(function: Callable[..., Any], *specs: Any) -> tuple[Divided, Part]:
    """A function as one part on the host."""
    found = captured(function, *specs)
    part = Part(
        on_device=False,
        operations=tuple(range(len(found.operations))),
        inputs=tuple(found.arguments),
        places=tuple(range(len(found.arguments))),
        held=tuple(found.captures),
        outputs=tuple(found.outputs),
        fallback_reasons=(),
        reads=(),
        takes_arguments=True,
        gives_results=True,
    )
    return Divided(found, [part]), part


def steps(function: Callable[..., Any], *specs: Any) -> OrderedOperations | None:
    divided, part = host_part(function, *specs)
    return steps_of(divided.captured, part)


TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2], tf.string, tf.int32), 0
)
STRING = spec(dtype=tf.string)
WORDS = tf.constant(["a", "c", "b"])
KINDS: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "strings": (
        lambda s: tf.strings.length(tf.strings.join([s, "end"]), unit="UTF8_CHAR"),
        [spec(3, dtype=tf.string)],
        [WORDS],
    ),
    "a table": (lambda s: TABLE.lookup(s) + 1, [spec(3, dtype=tf.string)], [WORDS]),
    "several results": (
        lambda x: tf.unique_with_counts(x),
        [spec(4, dtype=tf.int32)],
        [tf.constant([3, 3, 1, 3])],
    ),
    "shapes and types among the attributes": (
        lambda s: tf.io.decode_raw(s, tf.uint8, fixed_length=2),
        [spec(2, dtype=tf.string)],
        [tf.constant(["ab", "cd"])],
    ),
    "lists among the attributes": (
        lambda s: tf.io.decode_csv(s, [[0], [0.0], ["x"]], select_cols=[0, 1, 2]),
        [spec(2, dtype=tf.string)],
        [tf.constant(["1,2.5,a", "3,,b"])],
    ),
    "an open shape": (
        lambda s: tf.ensure_shape(tf.io.parse_tensor(s, tf.float32), [None, 2]),
        [STRING],
        [tf.io.serialize_tensor(tf.ones([3, 2]))],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_a_function(kind: str) -> None:
    function, specs, given = KINDS[kind]
    divided, part = host_part(function, *specs)
    found = steps_of(divided.captured, part)
    assert found is not None
    for _ in range(2):
        results = found(given)
        expected = traced(divided.captured, part)(*given)
        assert len(results) == len(expected)
        for one, other in zip(results, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_variable_is_read_and_updated() -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> Any:
        value = variable.read_value()
        variable.assign(x)
        return value

    found = steps(function, spec(2))
    assert found is not None
    assert found([tf.constant([5.0, 6.0])])[0].numpy().tolist() == [1.0, 2.0]
    assert variable.numpy().tolist() == [5.0, 6.0]


def test_an_error_passes_unchanged() -> None:
    found = steps(lambda s: tf.strings.to_number(s), STRING)
    assert found is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        found([tf.constant("not a number")])
    assert found([tf.constant("2")])[0].numpy() == 2


def chain(s: Any) -> Any:
    for _ in range(9):
        s = tf.strings.upper(s)
    return s


def branch(x: Any) -> Any:
    return tf.cond(x > 0, lambda: x + 1, lambda: x)


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (chain, STRING),
        (branch, spec()),
        (lambda x: x + tf.random.normal([2], seed=1), spec(2)),
        (lambda x: tf.py_function(lambda y: y, [x], tf.float32), spec(2)),
    ],
    ids=["many operations", "functions among the attributes", "random state", "Python"],
)
def test_what_belongs_into_a_function(function: Callable[..., Any], argument: Any) -> None:
    assert steps(function, argument) is None
