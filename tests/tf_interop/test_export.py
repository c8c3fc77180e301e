"""TensorFlow functions as programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import NotExportable, ProgramError, UnsupportedDtype
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge.stablehlo.program.bytecode import is_artifact
from tests.tf_interop.helpers import numbers, spec

VERSIONS = ["0.9.0", "1.0.0", "1.8.0", bindings.current_version()]


def run(client: Client, program: Program, *given: Any) -> list[Any]:
    with client.compile(program) as executable:
        buffers = [client.put(np.asarray(array)) for array in given]
        return [buffer.to_numpy() for buffer in executable.execute(buffers)]


def network() -> tuple[Any, list[Any]]:
    weights, bias = tf.Variable(numbers(4, 3)), tf.Variable(numbers(3, seed=1))

    def function(x: Any) -> Any:
        hidden = tf.nn.softmax(x @ weights + bias)
        return tf.math.erf(hidden), tf.argmax(hidden, 1)

    return function, [weights, bias]


@pytest.mark.parametrize("version", VERSIONS)
def test_artifacts_of_any_version_run(client: Client, version: str) -> None:
    function, variables = network()
    program = tf_interop.export(function, spec(2, 4), target=version)
    artifact = program.portable_artifact(version)
    assert is_artifact(artifact)
    x = numbers(2, 4)
    for made in (program, Program.from_portable_artifact(artifact)):
        found = run(client, made, x, *variables)
        for one, other in zip(found, function(x), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_parameters_are_arguments_then_what_is_held() -> None:
    function, _ = network()
    program = tf_interop.export(function, spec(2, 4))
    signature = program.signature
    assert [item.type.shape for item in signature.parameters] == [(2, 4), (4, 3), (3,)]
    assert [(item.type.shape, str(item.type.dtype)) for item in signature.results] == [
        ((2, 3), "float32"),
        ((2,), "int64"),
    ]


def test_updates_are_results_in_the_order_of_the_variables(client: Client) -> None:
    one, two = tf.Variable([1.0, 2.0]), tf.Variable([3.0])

    def function(x: Any) -> Any:
        two.assign_add(tf.reduce_sum(x, keepdims=True))
        one.assign(one * x)
        return x + 1

    concrete = tf.function(function).get_concrete_function(spec(2))
    handles = concrete.captured_inputs
    program = tf_interop.export(concrete, spec(2))
    x = np.float32([5, 6])
    values = {id(one.handle): [1.0, 2.0], id(two.handle): [3.0]}
    new = {id(one.handle): [5.0, 12.0], id(two.handle): [14.0]}
    found = run(client, program, x, *(np.float32(values[id(item)]) for item in handles))
    assert found[0].tolist() == [6.0, 7.0]
    assert [item.tolist() for item in found[1:]] == [new[id(item)] for item in handles]
    # Nothing was executed.
    assert one.numpy().tolist() == [1.0, 2.0]


def test_tensors_and_python_values_as_specs(client: Client) -> None:
    def function(x: Any, count: int, *, how: str) -> Any:
        return getattr(tf, f"reduce_{how}")(x, 0) * count

    program = tf_interop.export(function, numbers(3, 2), 4, how="max")
    (found,) = run(client, program, numbers(3, 2))
    np.testing.assert_allclose(found, tf.reduce_max(numbers(3, 2), 0) * 4)


def test_a_keras_model(client: Client) -> None:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(3, "gelu"), layers.Dense(2)])
    program = tf_interop.export(model, spec(5, 4), target="1.0.0")
    x = numbers(5, 4)
    (found,) = run(client, program, x, *(item.numpy() for item in model.variables))
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-6)


def test_refusals_list_all_reasons() -> None:
    def function(x: Any) -> Any:
        text = tf.strings.as_string(x)
        counts = tf.unique_with_counts(tf.cast(x, tf.int32))[2]
        return tf.strings.length(text), counts, x + tf.random.normal([3])

    with pytest.raises(NotExportable, match="cannot become one program") as error:
        tf_interop.export(function, spec(3))
    for name in ("AsString", "UniqueWithCounts", "RandomStandardNormal"):
        assert any(reason.startswith(f"{name}:") for reason in error.value.reasons)
    assert all(__file__ in reason for reason in error.value.reasons)


@pytest.mark.parametrize("shape", [None, [None, 3]])
def test_sizes_have_to_be_known(shape: Any) -> None:
    with pytest.raises(NotExportable, match="give every size"):
        tf_interop.export(lambda x: x * 2, tf.TensorSpec(shape))


def test_values_have_to_be_known() -> None:
    def function(x: Any, n: Any) -> Any:
        return tf.reshape(x, [n, -1])

    with pytest.raises(NotExportable, match="the value of 'n:0' is needed to compile"):
        tf_interop.export(function, spec(6), spec(dtype=tf.int32))
    assert tf_interop.export(function, spec(6), 2).signature.results[0].type.shape == (2, 3)


def test_sizes_that_depend_on_data() -> None:
    def function(x: Any) -> Any:
        return tf.tile(x, tf.cast(x[:1], tf.int32))

    with pytest.raises(NotExportable, match="a size or an axis in it depends on data"):
        tf_interop.export(function, spec(300))


def test_types_that_no_device_has() -> None:
    with pytest.raises(UnsupportedDtype, match="found type string"):
        tf_interop.export(lambda s: s, tf.TensorSpec([], tf.string))


@pytest.mark.parametrize("version", ["0.1.0", "99.0.0", "one"])
def test_versions_that_there_are_none_of(version: str) -> None:
    with pytest.raises(ProgramError):
        tf_interop.export(lambda x: x * 2, spec(3), target=version)
