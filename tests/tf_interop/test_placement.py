"""Which operations go to the device, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind
from pjrt_bridge.tf_interop.placement import Placement
from tests.tf_interop.helpers import captured, fallback_reasons, spec


def string_lookup() -> Callable[..., Any]:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1], tf.string, tf.int32), 0
    )
    return lambda x: (tf.exp(x), table.lookup(tf.constant(["a", "b"])))


def branch_with_print(x: Any) -> Any:
    def printing() -> Any:
        tf.raw_ops.PrintV2(input="positive")
        return x

    return tf.cond(tf.reduce_sum(x) > 0, printing, lambda: -x)


def assertion(x: Any) -> Any:
    with tf.control_dependencies([tf.raw_ops.Assert(condition=x[0] > 0, data=[x])]):
        return x + 1


def loop_with_draws(x: Any) -> Any:
    def body(index: Any, value: Any) -> Any:
        return index + 1, value + tf.random.stateless_uniform([4], [index, 1])

    return tf.while_loop(lambda index, _: index < 3, body, [0, x])[1]


REASONS: list[tuple[str, Callable[..., Any], str, ReasonKind, str]] = [
    (
        "no kernel",
        lambda x: tf.unique_with_counts(x)[2],
        "UniqueWithCounts",
        "unsupported",
        "XLA has no kernel for it",
    ),
    (
        "types",
        lambda x: tf.reduce_sum(tf.strings.length(tf.strings.as_string(x))),
        "AsString",
        "unsupported",
        "",
    ),
    ("sizes", lambda x: tf.where(x > 0), "Where", "data", "size of its result depends on data"),
    ("random", lambda x: x + tf.random.normal([4]), "RandomStandardNormal", "refused", "random"),
    (
        "checks",
        lambda x: tf.debugging.check_numerics(x, "no"),
        "CheckNumerics",
        "refused",
        "would not be checked",
    ),
    ("assertions", assertion, "Assert", "refused", "would not be checked"),
    (
        "draws of other numbers",
        lambda x: x + tf.random.stateless_truncated_normal([4], [1, 2]),
        "StatelessTruncatedNormalV2",
        "refused",
        "XLA draws other numbers",
    ),
    (
        "draws of a type",
        lambda x: x + tf.cast(tf.random.stateless_uniform([4], [1, 2], dtype=tf.float64), x.dtype),
        "StatelessRandomUniformV2",
        "refused",
        "float64",
    ),
    (
        "a body",
        branch_with_print,
        "If",
        "unsupported",
        "in it is PrintV2",
    ),
    ("draws in a loop", loop_with_draws, "StatelessWhile", "refused", "in a loop or a branch"),
    (
        "another shape",
        lambda x: tf.gather(tf.zeros([2, 0]) * x[0], [0, 1], axis=1),
        "GatherV2",
        "refused",
        "no elements",
    ),
    (
        "quantized",
        lambda x: tf.quantization.quantize(x, -1.0, 1.0, tf.quint8)[0],
        "QuantizeV2",
        "unsupported",
        "",
    ),
]


@pytest.mark.parametrize(
    ("function", "type", "kind", "reason"),
    [item[1:] for item in REASONS],
    ids=[item[0] for item in REASONS],
)
def test_reasons(function: Callable[..., Any], type: str, kind: ReasonKind, reason: str) -> None:
    found = captured(function, spec(4))
    placed = Placement(found, {}).fallback_reasons()
    ((index, fallback_reason),) = [
        item for item in placed.items() if found.operations[item[0]].type == type
    ] or pytest.fail(f"{type} is not among {[str(item) for item in placed.values()]}")
    assert fallback_reason.operator == type
    assert fallback_reason.kind == kind
    assert reason in fallback_reason.reason
    # Whoever reads it finds the node, and the line.
    assert f"(node {found.operations[index].name})" in fallback_reason.reason
    assert fallback_reason.source is not None
    assert fallback_reason.source.startswith(__file__)


def test_everything_on_the_host_has_a_reason_with_its_node() -> None:
    placed = fallback_reasons(captured(string_lookup(), spec(4)))
    assert placed
    for name, fallback_reason in placed.items():
        assert f"(node {name})" in fallback_reason.reason
        assert fallback_reason.operator


def test_the_rest_is_for_the_device() -> None:
    found = captured(string_lookup(), spec(4))
    names = fallback_reasons(found)
    (exp,) = [item.name for item in found.operations if item.type == "Exp"]
    assert exp not in names
    (lookup,) = [item.name for item in found.operations if "LookupTableFind" in item.type]
    assert lookup in names


def test_types_that_a_kernel_has_not() -> None:
    # XLA has multiplications, but none of these.
    placed = fallback_reasons(captured(lambda x: tf.cast(x, tf.quint8), spec(4)))
    ((_, fallback_reason),) = placed.items()
    assert fallback_reason.operator == "Cast"
    assert "quint8" in fallback_reason.reason


def test_a_table_is_no_variable() -> None:
    table = tf.lookup.experimental.DenseHashTable(tf.int32, tf.int32, 0, -1, -2)
    (fallback_reason,) = fallback_reasons(
        captured(lambda x: table.lookup(x), spec(2, dtype=tf.int32))
    ).values()
    assert "LookupTableFind" in fallback_reason.operator


def test_a_variable_of_strings_stays() -> None:
    variable = tf.Variable(["a", "b"])
    placed = fallback_reasons(captured(lambda x: (tf.exp(x), variable + "c"), spec(2)))
    kinds = {
        fallback_reason.operator: fallback_reason.reason for fallback_reason in placed.values()
    }
    assert "ReadVariableOp" in kinds
    assert "string" in kinds["ReadVariableOp"]


def test_variables_and_sums_are_for_the_device() -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> Any:
        variable.assign_add(x)
        return tf.reduce_sum(variable * x)

    assert fallback_reasons(captured(function, spec(2))) == {}


def test_a_variable_that_is_an_argument_stays() -> None:
    def function(x: Any) -> Any:
        return (
            tf.raw_ops.ReadVariableOp(
                resource=tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="other"),
                dtype=tf.float32,
            )
            + x
        )

    placed = fallback_reasons(captured(function, spec(2)))
    reads = [item for item in placed.values() if item.operator == "ReadVariableOp"]
    assert [item.kind for item in reads] == ["refused"]
    assert "no variable that the function holds" in reads[0].reason


def test_what_a_trial_export_found_comes_first() -> None:
    found = captured(lambda x: tf.exp(x), spec(2))
    (operation,) = found.operations
    failed = FallbackReason("Exp", "it failed", "refused")
    assert Placement(found, {operation.name: failed}).fallback_reasons() == {0: failed}


def test_what_is_slower_from_a_size_on_stays_with_tensorflow() -> None:
    slower = {"tf.Exp": 6, "aten.exp": 1, "tf.Log": 7}
    for size, slow in ((5, False), (6, True), (None, False)):
        found = captured(lambda x: tf.math.log(tf.exp(x)), spec(size))
        placed = Placement(found, {}, slower).fallback_reasons()
        assert [(item.operator, item.kind) for item in placed.values()] == [("Exp", "slow")] * slow
        assert not slow or "from 6 elements on" in str(*placed.values())


def test_results_count_as_arguments_do() -> None:
    found = captured(lambda x: tf.tile(x, [100]), spec(4))
    assert Placement(found, {}, {"tf.Tile": 400}).fallback_reasons()
    assert not Placement(found, {}, {"tf.Tile": 401}).fallback_reasons()
