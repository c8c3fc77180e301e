"""Python in the middle, prints, summaries, assertions: what has to happen once, and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf_interop.programs.case import (
    Instance,
    floats,
    given,
    mixed,
    text_file,
    weights,
)


@mixed("EagerPyFunc", segments=2)
def py_function_with_a_variable() -> Instance:
    """Python reads and updates a variable that the function itself reads before and after."""
    w, total = weights(4, 4), tf.Variable(1.0)

    def add(x: tf.Tensor) -> tf.Tensor:
        total.assign_add(tf.reduce_sum(x))
        return x * total

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        before = total * 2
        y = tf.py_function(add, [x @ w + before], tf.float32)
        y.set_shape(x.shape)
        return tf.tanh(y @ w), total + before

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, total])


@mixed("PyFunc", segments=2)
def numpy_function() -> Instance:
    """NumPy sorts rows between two layers, and its results have no shape."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.numpy_function(lambda a: np.sort(a, axis=-1)[::-1], [x @ w], tf.float32)
        return tf.ensure_shape(y, [None, 4]) @ w

    return Instance(run, lambda rng: given(floats(rng, 5, 4)), [w])


@mixed("EagerPyFunc")
def python_in_order() -> Instance:
    """Calls of Python that nothing but their order connects."""
    w, calls = weights(4, 4), list[str]()

    def run(x: tf.Tensor) -> tf.Tensor:
        tf.py_function(lambda: calls.append("first"), [], [])
        y = x @ w
        tf.py_function(lambda: calls.append("second"), [], [])
        z = tf.tanh(y) @ w
        tf.py_function(lambda a: calls.append(f"third {a.shape}"), [z], [])
        return z + 1

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w], lambda: list(calls))


@mixed("PrintV2")
def prints_in_order() -> Instance:
    """Lines of a file, some of them with values of the device."""
    w, file = weights(4, 4), text_file()
    to = f"file://{file}"

    def run(x: tf.Tensor) -> tf.Tensor:
        tf.print("begin", tf.shape(x), output_stream=to)
        y = x @ w
        tf.print("positive:", tf.reduce_all(tf.nn.relu(y) >= 0), output_stream=to)
        z = tf.tanh(y) @ w
        tf.print("end", tf.rank(z), output_stream=to)
        return z

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w], file.read_text)


@mixed("While")
def loop_over_a_variable_with_a_print() -> Instance:
    """A loop that updates a variable and prints, between two layers."""
    w, state, file = weights(4, 4), tf.Variable(tf.zeros([4])), text_file()

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = x @ w
        for i in tf.range(3):
            state.assign_add(tf.reduce_mean(y, axis=0) / (tf.cast(i, tf.float32) + 1))
            tf.print("round", i, output_stream=f"file://{file}")
        return tf.tanh(y + state) @ w, state * 2

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, state], file.read_text)


@mixed("WriteSummary")
def summaries() -> Instance:
    """Values for TensorBoard, with a step that a variable counts."""
    w, step = weights(4, 4), tf.Variable(0, dtype=tf.int64)
    folder = Path(tempfile.mkdtemp(prefix="pjrt-bridge-"))
    writer = tf.summary.create_file_writer(str(folder))

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.relu(x @ w)
        with writer.as_default():
            step.assign_add(1)
            tf.summary.write("mean", tf.reduce_mean(y), step=step)
            tf.summary.write("size", tf.size(y), step=step)
        return y @ w

    def seen() -> list[tuple[int, str]]:
        writer.flush()
        (file,) = folder.iterdir()
        events = [tf.compat.v1.Event.FromString(raw) for raw in _records(file)]
        return [(event.step, value.tag) for event in events for value in event.summary.value]

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, step], seen)


def _records(file: Path) -> list[bytes]:
    return [record.numpy() for record in tf.data.TFRecordDataset(str(file))]


@mixed("If CheckNumerics")
def assertions() -> Instance:
    """What must hold of the data: of an argument and of a value of the device."""
    w = weights(4, 4)

    def run(x: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(tf.reduce_max(x), limit, message="x is too large")
        y = tf.nn.softmax(x @ w)
        tf.debugging.assert_near(tf.reduce_sum(y), tf.cast(tf.shape(x)[0], tf.float32), atol=1e-3)
        return tf.debugging.assert_all_finite(y @ w, "result")

    return Instance(run, lambda rng: given(floats(rng, 3, 4), tf.constant(100.0)), [w])


@mixed("QueueEnqueueV2 QueueDequeueV2")
def queue() -> Instance:
    """Values that wait in a queue for the next call."""
    w, waiting = weights(4, 4), tf.queue.FIFOQueue(10, [tf.float32], shapes=[[3, 4]])
    waiting.enqueue(tf.ones([3, 4]))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        waiting.enqueue(tf.tanh(x @ w))
        return waiting.dequeue() @ w, waiting.size()

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w], waiting.size)


@mixed("IteratorGetNext")
def iterator_inside() -> Instance:
    """The function itself takes the next elements of a dataset."""
    w = weights(4, 4)
    rows = np.random.default_rng(5).standard_normal((40, 4)).astype(np.float32)
    iterator: Any = iter(tf.data.Dataset.from_tensor_slices(rows).batch(4).repeat())

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden = tf.tanh(x @ w)
        return hidden @ w + next(iterator), next(iterator) @ w

    return Instance(run, lambda rng: given(floats(rng, 4, 4)), [w])
