"""Functions of TensorFlow as flat lists of operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import function as functions_of_tensorflow_1

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.tf_interop.capture import capture, source_line
from tests.tf_interop.helpers import before, captured, of_type, spec, types


def test_calls_give_way_to_what_they_call() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tf.exp(x)

    @tf.function
    def outer(x: Any) -> Any:
        return inner(x) + inner(x * 2)

    found = captured(lambda x: tf.tanh(outer(x)), spec(3))
    assert sorted(types(found)) == ["AddV2", "Const", "Exp", "Exp", "Mul", "Tanh"]
    exps = [item.name for item in found.operations if item.type == "Exp"]
    # Calls on the way to an operation are in front of its name.
    assert all(name.count("/") == 2 and name.endswith("/Exp") for name in exps)
    assert len(set(exps)) == 2


def test_what_gradients_need_is_no_result() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tf.tanh(tf.sin(x)), None

    @tf.function
    def outer(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(inner(x)[0])
        # A call that is differentiated, and one that is not, of the same graph.
        return tape.gradient(total, x), inner(x)[0]

    assert len(capture(outer.get_concrete_function(spec(3))).outputs) == 2
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(inner(x)[0])
    tape.gradient(total, x)
    (value,) = capture(inner.get_concrete_function(spec(3))).outputs
    assert value in of_type(capture(inner.get_concrete_function(spec(3))), "Tanh").outputs


def test_values_lead_from_operation_to_operation() -> None:
    found = captured(lambda x, y: (tf.exp(x) + y, y), spec(3), spec(3))
    exp, add = of_type(found, "Exp"), of_type(found, "AddV2")
    x, y = found.arguments
    assert exp.inputs == (x,)
    assert add.inputs == (exp.outputs[0], y)
    assert found.outputs == [add.outputs[0], y]
    assert found.captures == {}


def test_aliases_are_the_values_themselves() -> None:
    def function(x: Any) -> Any:
        one, two = tf.identity_n([tf.stop_gradient(x), tf.identity(x)])
        return tf.exp(one), two

    found = captured(function, spec(3))
    assert types(found) == ["Exp"]
    assert found.operations[0].inputs == tuple(found.arguments)
    assert found.outputs[1] == found.arguments[0]


def test_what_gives_nothing_and_does_nothing_goes() -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> Any:
        tf.sin(x)
        tf.sin(variable)
        return tf.cos(x)

    assert types(captured(function, spec(2))) == ["Cos"]


def test_effects_keep_their_order() -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> Any:
        first = variable + x
        variable.assign(x)
        second = variable + x
        variable.assign_add(x)
        return first, second

    found = captured(function, spec(2))
    order = [item for item in found.operations if item.made.op_def.is_stateful]
    assert [item.type for item in order] == [
        "ReadVariableOp",
        "AssignVariableOp",
        "ReadVariableOp",
        "AssignAddVariableOp",
    ]
    for earlier, later in itertools.pairwise(order):
        assert earlier.name in before(found, later)
    assert [item.effect for item in order] == [False, True, False, True]


def test_effects_inside_of_calls_are_ordered_like_others() -> None:
    variable = tf.Variable(1.0)

    @tf.function
    def double() -> None:
        variable.assign(variable * 2)

    def function() -> Any:
        variable.assign_add(1.0)
        double()
        return variable.read_value()

    found = captured(function)
    add, assign = of_type(found, "AssignAddVariableOp"), of_type(found, "AssignVariableOp")
    (last,) = [item for item in found.operations if item.outputs == (found.outputs[0],)]
    reads = [item for item in found.operations if item.type == "ReadVariableOp"]
    assert reads[-1] is last
    assert add.name in before(found, reads[0])
    assert reads[0].name in before(found, assign)
    assert assign.name in before(found, last)


def test_an_edge_between_what_has_no_effect_goes() -> None:
    def function(x: Any) -> Any:
        with tf.control_dependencies([tf.exp(x)]):
            return tf.sin(x)

    found = captured(function, spec(2))
    assert types(found) == ["Sin"]
    assert found.operations[0].after == ()


def test_edges_through_what_has_no_effect_lead_to_effects() -> None:
    def function(x: Any) -> Any:
        tf.print("one")
        with tf.control_dependencies([tf.no_op()]):
            tf.print("two")
        return tf.sin(x)

    found = captured(function, spec(2))
    first, second = [item for item in found.operations if item.type == "PrintV2"]
    assert before(found, second) == [first.name]


def test_functions_of_tensorflow_1_are_inlined() -> None:
    @functions_of_tensorflow_1.Defun(tf.float32)
    def twice(x: Any) -> Any:
        return x * 2

    found = captured(lambda x: tf.exp(twice(x)), spec(2))
    assert sorted(types(found)) == ["Const", "Exp", "Mul"]


def test_loops_stay_and_give_the_resources_that_they_were_given() -> None:
    variable = tf.Variable([1.0, 2.0])

    def function(x: Any) -> Any:
        def body(index: Any, value: Any) -> Any:
            return index + 1, value * variable

        _, found = tf.while_loop(lambda index, _: index < 3, body, [0, x])
        return found

    found = captured(function, spec(2))
    loop = next(item for item in found.operations if "While" in item.type)
    handles = [value for value in loop.inputs if found.values[value].dtype == tf.resource]
    assert handles == list(found.captures)
    # Results that are resources have other numbers, which nobody reads.
    read = {value for item in found.operations for value in item.inputs}
    assert not {value for value in loop.outputs if found.values[value].dtype == tf.resource} & (
        read - set(handles)
    )


def test_what_a_function_holds() -> None:
    variable, table = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    found = captured(lambda x: x * variable + table, spec(2))
    held = list(found.captures.values())
    assert any(item is variable.handle for item in held)
    assert any(item is table for item in held)
    assert len(found.arguments) == 1


def test_numbers_in_the_code_are_operations_and_held_strings_are_not() -> None:
    found = captured(lambda x: tf.strings.join([x, "end"]) if True else x, spec(dtype=tf.string))
    assert types(found) == ["StringJoin"]
    (held,) = found.captures.values()
    assert held.numpy() == b"end"
    assert types(captured(lambda x: x + 2, spec())) == ["Const", "AddV2"]


def test_names_are_unique_and_can_be_imported() -> None:
    @tf.function
    def _hidden(x: Any) -> Any:
        return tf.exp(x, name="one") + tf.exp(x, name="one")

    found = captured(lambda x: _hidden(x) + _hidden(x), spec(2))
    names = [item.name for item in found.operations]
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.startswith("_")]


def test_operations_know_the_users_line() -> None:
    def function(x: Any) -> Any:
        return tf.linalg.matmul(x, x)  # the line

    source = of_type(captured(function, spec(2, 2)), "MatMul").source
    assert source is not None
    assert source.startswith(__file__)
    assert source.endswith("return tf.linalg.matmul(x, x)  # the line")


def test_an_operation_that_was_loaded_has_no_line() -> None:
    with tf.Graph().as_default() as graph:
        value = tf.constant(1.0)
    made = tf.Graph()
    with made.as_default():
        tf.import_graph_def(graph.as_graph_def(), name="")
    loaded = made.get_operation_by_name(value.op.name)
    found = source_line(loaded)
    assert found is None or found.startswith(__file__)


def test_deferred_captures_are_refused() -> None:
    value = tf.constant(1.0)

    @tf.function
    def function(x: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        held = graph.capture_call_time_value(lambda: value, tf.TensorSpec([], tf.float32))
        return x + held

    concrete = function.get_concrete_function(spec())
    with pytest.raises(NotExportable, match="deferred captures"):
        capture(concrete)
