"""The dispatcher on TensorFlow's own tensors, through its own functions for capsules."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.tf_interop import compat
from tests import programs
from tests.conftest import Census
from tests.counting import resident, settled
from tests.plugins import require_dispatcher
from tests.runtime.dispatch.launching import Launcher
from tests.runtime.ownership.pending import Pending
from tests.tf_interop.helpers import address

require_dispatcher()


@pytest.fixture(scope="module")
def capsules() -> plans.Capsules:
    return compat.capsules()


NAMES = {
    "bool": "i1",
    "int8": "i8",
    "int64": "i64",
    "uint8": "ui8",
    "uint32": "ui32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1), (2, 5)], ids=str)
def test_types_and_shapes(
    client: Client, capsules: plans.Capsules, name: str, shape: tuple[int, ...]
) -> None:
    before = settled()
    text = "".join(f"{size}x" for size in shape) + NAMES[name]
    count = int(np.prod(shape))
    value = tf.cast(tf.reshape(tf.range(count), shape), name)
    with client.compile(programs.elementwise(f"tensor<{text}>")) as executable:
        add = Launcher(executable, (), capsules)
        (result,) = add(value, value)
        assert result.dtype == value.dtype
        assert result.shape == shape
        expected = np.add(value.numpy(), value.numpy())
        assert result.numpy().tolist() == expected.tolist()
        # TensorFlow computes with it.
        assert tf.identity(result).numpy().tolist() == expected.tolist()
        (again,) = add.plan.call((result, value), add.kept.parts)
        assert again.numpy().tolist() == np.add(expected, value.numpy()).tolist()
        del result, again, add
    assert live() == before


def test_memory_is_shared_both_ways(
    no_leaks: Census, client: Client, capsules: plans.Capsules
) -> None:
    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), capsules)
        launch = add.start(tf.ones(64), tf.ones(64))
        assert (launch.shared, launch.copied) == (512, 0)
        launch.finish()
        one, two = launch.outputs[0].tensor(), launch.outputs[0].tensor()
        assert address(one) == address(two)
        assert address(one) % 64 == 0
        del launch, one
        gc.collect()
        assert two.numpy().tolist() == [2.0] * 64


def test_results_pass_between_frameworks_on_their_way(
    no_leaks: Census, client: Client, capsules: plans.Capsules
) -> None:
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        of_torch = Launcher(executable, [value.buffer])
        of_tensorflow = Launcher(executable, (), capsules)
        one = of_torch.start(torch.ones(64))
        two = of_tensorflow.start(one.outputs[0], tf.ones(64))
        three = Launcher(executable).start(two.outputs[0], torch.ones(64))
        assert (two.shared, three.shared) == (256, 256)
        value.arrive()
        three.finish()
        assert three.tensors()[0].tolist() == [8.0] * 64
        two.finish()
        assert two.tensors()[0].numpy().tolist() == [7.0] * 64


@pytest.mark.parametrize(
    "value",
    [
        lambda: tf.constant(["a"] * 64),
        lambda: tf.Variable(tf.ones(64)).handle,
        lambda: tf.raw_ops.EmptyTensorList(
            element_shape=[64], max_num_elements=1, element_dtype=tf.float32
        ),
        lambda: tf.cast(tf.ones(64), tf.qint8),
        lambda: tf.ones(63),
        lambda: tf.ones(64, tf.int32),
        lambda: tf.Variable(tf.ones(64)),
        lambda: tf.ragged.constant([[1.0], []]),
        lambda: np.ones(64, np.float32),
    ],
    ids=["string", "resource", "variant", "qint8", "shape", "type", "variable", "ragged", "NumPy"],
)
def test_what_does_not_fit_as_it_is(
    client: Client, capsules: plans.Capsules, value: Callable[[], Any]
) -> None:
    before = settled()
    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), capsules)
        assert add.start(value(), tf.ones(64)) == 0
        assert add(tf.ones(64), tf.ones(64))[0].numpy().tolist() == [2.0] * 64
        del add
    assert live() == before


def test_a_variable_is_read_where_it_lies(
    no_leaks: Census, client: Client, capsules: plans.Capsules
) -> None:
    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), capsules)
        variable = tf.Variable(tf.ones(64))
        for step in range(1, 4):
            launch = add.start(variable.value(), tf.ones(64))
            assert launch.shared == 512
            # It gets other memory, because the launch holds this one.
            variable.assign_add(tf.ones(64))
            launch.finish()
            assert launch.tensors()[0].numpy().tolist() == [step + 1.0] * 64


def test_a_kept_value(no_leaks: Census, client: Client, capsules: plans.Capsules) -> None:
    with client.compile(programs.ADD) as executable:
        plan = Launcher(executable, (), capsules).plan
        weight = tf.constant(np.arange(64, dtype=np.float32))
        kept = plans.PinnedBuffers([None, client.put(weight)], [0, address(weight)])
        for _ in range(3):
            launch = plan.launch([tf.ones(64), weight], kept.parts, None)
            assert launch.shared == 256
            launch.finish()
            assert launch.tensors()[0].numpy()[63] == 64
        assert plan.call((tf.ones(64), weight), kept.parts)[0].numpy()[63] == 64
        assert plan.launch([tf.ones(64), weight + 0], kept.parts, None) is None
        assert plan.call((tf.ones(64), tf.constant("text")), kept.parts) is None


def test_results_dropped_by_threads_of_tensorflow(
    no_leaks: Census, client: Client, capsules: plans.Capsules
) -> None:
    """A tf.function drops its inputs wherever the last kernel that reads them ran."""

    @tf.function
    def consume(value: Any) -> Any:
        parts = [tf.math.sin(value + float(index)) for index in range(8)]
        return tf.add_n(parts)

    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), capsules)
        before = settled()
        for _ in range(50):
            consume(add(tf.ones(64), tf.ones(64))[0])
        gc.collect()
        assert live() == before


def test_many_calls_leave_nothing(
    no_leaks: Census, client: Client, capsules: plans.Capsules
) -> None:
    with client.compile(programs.ADD) as executable:
        add = Launcher(executable, (), capsules)
        one, two = tf.ones(64), tf.ones(64)
        for _ in range(1000):
            add.plan.call((one, two), add.kept.parts)
        alive, grown = settled(), []
        # Other threads of the process may take memory in one of the rounds.
        for _ in range(3):
            before = resident()
            for _ in range(5000):
                add.plan.call((one, two), add.kept.parts)
            assert live() == alive
            grown.append(resident() - before)
        assert min(grown) < 4 << 20
