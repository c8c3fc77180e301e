"""How arguments and results are nested, named and made."""

from __future__ import annotations

import tempfile
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.tf_interop.programs.case import (
    Arguments,
    Generator,
    Instance,
    floats,
    given,
    mixed,
    weights,
    whole,
    words,
)


class Scores(NamedTuple):
    """A result with names."""

    logits: Any
    best: Any


class Box(tf.experimental.ExtensionType):
    """A dataclass of tensors that TensorFlow knows."""

    corner: tf.Tensor
    size: tf.Tensor


@mixed("StringUpper")
def nested_results() -> Instance:
    """Dicts, lists, named tuples, an extension type, None, and constants."""
    w = weights(4, 4)

    def run(x: tf.Tensor, text: tf.Tensor) -> dict[str, Any]:
        y = x @ w
        return {
            "scores": Scores(y, tf.argmax(y, axis=-1)),
            "nothing": None,
            "list": [tf.strings.upper(text), (y * 2, {"inner": x})],
            "box": Box(corner=y[0], size=tf.shape(y)),
            "constant": tf.constant([1.0, 2.0]),
            "twice": (y, y),
            "empty": {},
        }

    return Instance(run, lambda rng: given(floats(rng, 3, 4), words(rng, ["a", "b"], 2)), [w])


@mixed("StringJoin")
def nested_arguments() -> Instance:
    """The same kinds as arguments."""
    w = weights(4, 4)

    def run(batch: dict[str, Any], box: Box, pair: tuple[Any, None]) -> tuple[tf.Tensor, ...]:
        y = batch["x"] @ w + box.corner + tf.cast(box.size[0], tf.float32)
        return tf.nn.relu(y), tf.strings.join([pair[0], *batch["texts"]])

    def inputs(rng: Generator) -> Arguments:
        batch = {"x": floats(rng, 3, 4), "texts": [words(rng, ["a", "b"], 2)]}
        box = Box(corner=floats(rng, 4), size=tf.constant([3, 4]))
        return given(batch, box, (words(rng, ["c", "d"], 2), None))

    return Instance(run, inputs, [w])


@mixed("StringJoin")
def keyword_arguments() -> Instance:
    """Keywords in another order, with defaults, and keyword-only ones."""
    w = weights(4, 4)

    def run(x: Any, y: Any = None, *, scale: Any = 2.0, text: Any) -> tuple[tf.Tensor, ...]:
        z = (x if y is None else x - y) @ w * scale
        return z, tf.strings.join([text, tf.constant("?")])

    def inputs(rng: Generator) -> Arguments:
        named = dict(text=words(rng, ["a", "b"], 2), y=floats(rng, 3, 4))
        if rng.integers(2):
            named["scale"] = tf.constant(3.0)
        return given(floats(rng, 3, 4), **named)

    return Instance(run, inputs, [w])


@mixed("AsString", calls=4)
def python_scalars() -> Instance:
    """Numbers, truths and texts of Python, each value a trace of its own."""
    w = weights(4, 4)

    def run(x: Any, times: int, scale: float, flag: bool, mode: str) -> tuple[tf.Tensor, ...]:
        for _ in range(times):
            x = tf.tanh(x @ w) * scale
        text = tf.strings.as_string(tf.shape(x) if flag else tf.argmax(x, axis=-1))
        return text, x if mode == "keep" else -x

    def inputs(rng: Generator) -> Arguments:
        flag = bool(rng.integers(2))
        return given(floats(rng, 3, 4), int(rng.integers(1, 3)), 0.5, flag=flag, mode="keep")

    return Instance(run, inputs, [w])


@mixed("StringLength")
def arrays_and_lists() -> Instance:
    """NumPy arrays, of memory that begins anywhere, and lists of Python."""
    w = weights(4, 4)

    def run(x: Any, y: Any, names: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(x, tf.float32) @ w + tf.cast(y, tf.float32), tf.strings.length(names)

    def inputs(rng: Generator) -> Arguments:
        store = rng.standard_normal(13).astype(np.float32)
        return given(store[1:].reshape(3, 4), [1.0, 2.0, 3.0, 4.0], np.array(["a", "bc"]))

    return Instance(run, inputs, [w])


@mixed("StringLower", segments=1)
def elements_of_a_dataset() -> Instance:
    """Batches of tf.data as they come: a dict of text and numbers, the last one smaller."""
    w = weights(4, 3)
    rng = np.random.default_rng(8)
    rows = {
        "x": rng.standard_normal((10, 4)).astype(np.float32),
        "name": rng.choice(np.array(["A", "B"], object), 10),
    }
    batches = iter(tf.data.Dataset.from_tensor_slices(rows).batch(4).prefetch(1))

    def run(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            "y": tf.nn.softmax(batch["x"] @ w),
            "name": tf.strings.lower(batch["name"]),
        }

    return Instance(run, lambda _: given(next(batches)), [w])


class Scorer(tf.Module):
    """A module with a table, for a SavedModel."""

    def __init__(self) -> None:
        super().__init__()
        entries = tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1])
        self.table = tf.lookup.StaticHashTable(entries, default_value=2)
        self.embedding = weights(3, 4)
        self.w = weights(4, 2, seed=1)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="names"),
            tf.TensorSpec([None, 4], tf.float32, name="x"),
        ]
    )
    def score(self, names: tf.Tensor, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scores of rows by the names of their owners."""
        hidden = tf.gather(self.embedding, self.table.lookup(names)) + x
        return {"scores": tf.nn.softmax(hidden @ self.w)}


def _scorer_arguments(rng: Generator) -> tuple[tf.Tensor, tf.Tensor]:
    size = int(rng.integers(2, 5))
    return words(rng, ["a", "b", "c"], size), floats(rng, size, 4)


@mixed("LookupTableFindV2")
def method_of_a_module() -> Instance:
    """A bound method that is a tf.function with a signature of its own."""
    module = Scorer()
    # The method does not keep its module.
    return Instance(
        module.score,
        lambda rng: given(*_scorer_arguments(rng)),
        [module.embedding, module.w],
        lambda: tf.identity(module.w),
    )


@mixed("LookupTableFindV2")
def saved_model_signature() -> Instance:
    """A signature of a SavedModel: a ConcreteFunction with arguments by keyword."""
    folder = tempfile.mkdtemp(prefix="pjrt-bridge-")
    tf.saved_model.save(Scorer(), folder)
    loaded = tf.saved_model.load(folder)

    def inputs(rng: Generator) -> Arguments:
        names, x = _scorer_arguments(rng)
        return given(names=names, x=x)

    instance = Instance(loaded.signatures["serving_default"], inputs)
    # A signature does not keep what it was loaded with.
    instance.seen = lambda: tf.identity(loaded.w)
    return instance


@mixed("StringLower")
def no_results() -> Instance:
    """A function that is called for what it leaves."""
    w, state, text = weights(4, 4), tf.Variable(tf.zeros([3, 4])), tf.Variable("X")

    def run(x: tf.Tensor) -> None:
        state.assign_add(x @ w)
        text.assign(tf.strings.lower(text))

    return Instance(
        run, lambda rng: given(floats(rng, 3, 4)), [w, state], lambda: text.numpy().decode()
    )


@whole("MatMul")
def arguments_as_results() -> Instance:
    """Arguments, variables and constants that are results; one argument nobody reads."""
    w = weights(4, 4)

    def run(x: tf.Tensor, unused: tf.Tensor) -> list[Any]:
        return [x, w, x @ w, tf.constant(3), x, None]

    return Instance(run, lambda rng: given(floats(rng, 3, 4), floats(rng, 2)), [w])


@whole("MatMul")
def several_sizes() -> Instance:
    """One signature with open dimensions, called with several sizes, one of them 0."""
    w = weights(4, 3)
    sizes = iter([3, 5, 3, 0, 1, 5])

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        count = tf.shape(x)[0]
        rows = tf.reshape(tf.tile(x, [2, 1]), [count, 2, 4])
        return tf.reduce_sum(rows, axis=1) @ w, tf.range(count) * 2

    return Instance(run, lambda rng: given(floats(rng, next(sizes), 4)), [w])


@whole("Mul")
def sparse_gradient() -> Instance:
    """IndexedSlices as a result: the gradient of an embedding."""
    embedding = weights(6, 4)

    def run(rows: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(embedding, rows) ** 2)
        return tape.gradient(loss, embedding)

    def inputs(rng: Generator) -> Arguments:
        return given(tf.constant(rng.integers(0, 6, 3)))

    return Instance(run, inputs, [embedding])
