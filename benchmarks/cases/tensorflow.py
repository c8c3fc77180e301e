"""TensorFlow: functions that compile whole, and such that strings, tables or sizes divide.

Those that compile whole are the Keras models of the questions that users ask first: a layer, a
perceptron, a convolutional network, a block of a transformer. The device part of the others takes
0.2 ms or more, so that what the borders cost can be told from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.case import Asked, Case, TensorFlowWork

_WHOLE = ("tf.function", "jit_compile", "tf_interop")
_MIXED = ("tf.function", "tf_interop")
_Made = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
"""Takes the module `tensorflow`; gives a function and its arguments."""


def _work(made: _Made, *, whole: bool) -> Callable[[], TensorFlowWork]:
    def work() -> TensorFlowWork:
        import tensorflow

        # Also of TensorFlow's own generators.
        tensorflow.keras.utils.set_random_seed(0)
        return TensorFlowWork(*made(tensorflow), whole=whole)

    return work


def _whole(name: str, made: _Made, *asked: Asked, quick: bool = False) -> Case:
    return Case(name, _WHOLE, tensorflow=_work(made, whole=True), asked=asked, quick=quick)


def _mixed(name: str, made: _Made, *, quick: bool = False) -> Case:
    asked = (Asked("tf_interop", 1.3, ("tf.function",)),)
    return Case(name, _MIXED, tensorflow=_work(made, whole=False), asked=asked, quick=quick)


# -- wholly compilable -----------------------------------------------------------------------------


def _dense(tf: Any) -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((8,)), layers.Dense(8)]), (tf.random.normal([1, 8]),)


def _perceptron(tf: Any) -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((128,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )


def _mlp(tf: Any) -> Any:
    return _perceptron(tf), (tf.random.normal([32, 128]),)


def _convnet(tf: Any) -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    return model, (tf.random.normal([8, 32, 32, 3]),)


def _transformer(tf: Any) -> Any:
    layers = tf.keras.layers
    given = layers.Input((64, 128))
    normal = layers.LayerNormalization()(given)
    attended = layers.Add()([given, layers.MultiHeadAttention(4, 32)(normal, normal)])
    wide = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(attended))
    model = tf.keras.Model(given, layers.Add()([attended, layers.Dense(128)(wide)]))
    return model, (tf.random.normal([2, 64, 128]),)


def _training(tf: Any) -> Any:
    model = _perceptron(tf)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    def step(x: Any, target: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(target, model(x))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    target = tf.random.uniform([32], maxval=10, dtype=tf.int32)
    return step, (tf.random.normal([32, 128]), target)


# -- mixed -----------------------------------------------------------------------------------------


def _weights(tf: Any, *shape: int) -> Any:
    return tf.Variable(tf.random.normal(shape) * 0.1)


def _lookup(tf: Any) -> Any:
    words = [f"word {index}" for index in range(1000)]
    known = tf.lookup.KeyValueTensorInitializer(words, list(range(len(words))))
    table = tf.lookup.StaticHashTable(known, 0)
    embedding = _weights(tf, len(words), 128)
    hidden = [_weights(tf, 128, 512), _weights(tf, 512, 512), _weights(tf, 512, 512)]
    head = _weights(tf, 512, 10)

    def classify(text: Any) -> Any:
        x = tf.gather(embedding, table.lookup(text))
        for weights in hidden:
            x = tf.nn.relu(x @ weights)
        return tf.nn.softmax(x @ head)

    return classify, (tf.constant([words[7 * index % len(words)] for index in range(128)]),)


def _picture(tf: Any) -> Any:
    pixels = tf.random.uniform([128, 128, 3], maxval=256, dtype=tf.int32)
    picture = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8))
    first, second = _weights(tf, 3, 3, 3, 16), _weights(tf, 3, 3, 16, 32)

    def classify(picture: Any) -> Any:
        pixels = tf.image.decode_jpeg(picture, channels=3)
        x = tf.image.resize(tf.cast(pixels, tf.float32) / 255, [96, 96])[None]
        for weights in (first, second):
            x = tf.nn.relu(tf.nn.conv2d(x, weights, 2, "SAME"))
        return tf.reduce_mean(x, [1, 2])

    return classify, (picture,)


def _unique(tf: Any) -> Any:
    def count(x: Any, names: Any) -> Any:
        hidden = tf.nn.relu(x @ x)
        _, _, counts = tf.unique_with_counts(names)
        together = tf.reduce_sum(hidden) + tf.cast(tf.reduce_sum(counts), tf.float32)
        return hidden @ hidden + together

    names = tf.random.uniform([256], maxval=50, dtype=tf.int32)
    return count, (tf.random.normal([256, 256]), names)


def _mask(tf: Any) -> Any:
    def keep(x: Any) -> Any:
        hidden = tf.nn.relu(x @ x)
        kept = tf.boolean_mask(hidden, tf.reduce_sum(hidden, 1) > tf.reduce_mean(hidden) * 256)
        return tf.reduce_sum(tf.tanh(kept @ x))

    return keep, (tf.random.normal([256, 256]),)


def _beside(tf: Any) -> Any:
    def chain(x: Any, text: Any) -> Any:
        letters = tf.reduce_sum(tf.strings.length(text))
        for _ in range(3):
            x = tf.nn.relu(x @ x) / 100
        return tf.tanh(x) + tf.cast(letters, tf.float32)

    text = tf.constant([f"text {index}" for index in range(64)])
    return chain, (tf.random.normal([256, 256]), text)


_COMPILED = Asked("tf_interop", 1.0, ("jit_compile",))

CASES = (
    _whole("Dense of 8, batch 1", _dense, _COMPILED, quick=True),
    _whole("MLP 128-256-256-10, batch 32", _mlp, _COMPILED),
    _whole("ConvNet of 2 layers, 8 x 32 x 32", _convnet, _COMPILED),
    _whole("transformer block of 128, 2 x 64 tokens", _transformer, _COMPILED),
    _whole("MLP 128-256-256-10, batch 32, step with Adam", _training),
    _mixed("strings looked up in a table, embedded, MLP", _lookup, quick=True),
    _mixed("JPEG decoded, resized, ConvNet", _picture),
    _mixed("products around unique_with_counts", _unique),
    _mixed("products around boolean_mask", _mask),
    _mixed("products beside lengths of strings", _beside),
)
