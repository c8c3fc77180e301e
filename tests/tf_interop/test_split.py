"""Functions in parts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tf_interop.helpers import captured, divided, on_host, spec

HOST = ["SerializeTensor", "ParseTensor"]


def test_a_function_that_compiles_is_one_part() -> None:
    found = divided(lambda x: tf.exp(x) @ x, spec(3, 3))
    assert found.shown == [("device", ["Exp", "MatMul"])]
    (part,) = found.parts
    assert (part.takes_arguments, part.gives_results, part.reads) == (True, True, ())
    assert part.fallback_reasons == ()


def test_even_one_that_is_hardly_worth_a_launch() -> None:
    assert divided(lambda x: tf.reshape(x, [1]), spec()).shown == [("device", ["Reshape"])]


def test_parts_read_from_parts_before() -> None:
    found = divided(lambda x: tf.tanh(on_host(tf.exp(x)) * x), spec(30))
    assert [place for place, _ in found.shown] == ["device", "host", "device"]
    one, two, three = found.parts
    assert two.reads == (0,)
    assert three.reads == (1,)
    assert (one.gives_results, three.gives_results) == (False, True)
    assert (two.takes_arguments, three.takes_arguments) == (False, True)
    assert {item.operator for item in two.fallback_reasons} >= set(HOST)
    assert set(one.outputs) == set(two.inputs)


def test_a_variable_that_is_never_written_is_read_where_it_is_needed() -> None:
    variable = tf.Variable([1.0] * 30)
    found = divided(lambda x: tf.tanh(on_host(x * variable)) * variable, spec(30))
    reads = [shown.count("ReadVariableOp") for _, shown in found.shown]
    assert [place for place, _ in found.shown] == ["device", "host", "device"]
    assert reads == [1, 0, 1]


def test_one_that_is_written_is_read_once() -> None:
    variable = tf.Variable([1.0] * 30)

    def function(x: Any) -> Any:
        value = variable.read_value()
        found = tf.tanh(on_host(x * value)) * value
        variable.assign(found)
        return found

    found = divided(function, spec(30))
    assert sum(shown.count("ReadVariableOp") for _, shown in found.shown) == 1
    assert found.shown[-1][1][-1] == "AssignVariableOp"


def test_reads_for_the_host_alone_are_there() -> None:
    variable = tf.Variable([1.0] * 30)
    found = divided(lambda x: (tf.exp(x), tf.strings.as_string(variable)), spec(30))
    (host,) = [shown for place, shown in found.shown if place == "host"]
    assert host == ["ReadVariableOp", "AsString"]
    (part,) = [part for part in found.parts if not part.on_device]
    assert "only the host reads it" in {item.reason for item in part.fallback_reasons}


def test_what_the_host_made_the_host_assigns() -> None:
    variable = tf.Variable([1.0] * 30)

    def function(x: Any) -> Any:
        variable.assign(tf.io.parse_tensor(tf.io.serialize_tensor(x), tf.float32))
        return tf.exp(x)

    found = divided(function, spec(30))
    (host,) = [shown for place, shown in found.shown if place == "host"]
    assert "AssignVariableOp" in host
    (part,) = [part for part in found.parts if not part.on_device]
    assert "the host made the value" in {item.reason for item in part.fallback_reasons}


def test_a_list_of_tensors_does_not_cross() -> None:
    def function(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 2, element_shape=[30])
        array = array.write(0, tf.exp(x)).write(1, on_host(tf.exp(x)))
        return array.stack() * 2

    found = divided(function, spec(30))
    for part in found.parts:
        if part.on_device:
            crossing = [*part.inputs, *part.outputs]
            assert tf.variant not in [found.captured.values[value].dtype for value in crossing]
    reasons = {item.reason for part in found.parts for item in part.fallback_reasons}
    assert any("a list of tensors would cross" in reason for reason in reasons)


def test_a_list_that_stays_on_the_device_divides_nothing() -> None:
    def function(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 2, element_shape=[30])
        return array.write(0, tf.exp(x)).write(1, x).stack() * 2

    assert [place for place, _ in divided(function, spec(30)).shown] == ["device"]


def test_strings_in_the_code_are_held() -> None:
    found = divided(
        lambda x, s: (tf.exp(x), tf.strings.join([s, "end"])), spec(30), spec(dtype=tf.string)
    )
    (host,) = [part for part in found.parts if not part.on_device]
    assert [found.captured.captures[value].numpy() for value in host.held] == [b"end"]


def test_calculations_with_sizes_are_no_launch_of_their_own() -> None:
    def function(s: Any) -> Any:
        return tf.size(tf.strings.split([s]).values) * 2 + 1

    found = divided(function, spec(dtype=tf.string))
    (host,) = [part for part in found.parts if not part.on_device]
    (shown,) = [types for place, types in found.shown if place == "host"]
    assert {"StringSplitV2", "Size", "Mul", "AddV2"} <= set(shown)
    small = [item for item in host.fallback_reasons if item.kind == "small"]
    assert {item.operator for item in small} >= {"Mul", "AddV2"}
    assert all(item.source is not None and item.source.startswith(__file__) for item in small)


def test_results_that_are_arguments_belong_to_no_part() -> None:
    found = captured(lambda x: (x, x), spec(3))
    assert found.outputs == [found.arguments[0]] * 2
    assert divided(lambda x: (x, x), spec(3)).parts == []
