"""Models that compile whole: one device segment each."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tf_interop.programs.case import Instance, floats, given, numbers, weights, whole


def keras_model(*layers: Any, shape: tuple[int, ...]) -> Any:
    """A Sequential model for batches of a shape."""
    return tf.keras.Sequential([tf.keras.Input(shape), *layers])


def values(model: Any) -> list[tf.Variable]:
    """TensorFlow's variables of a Keras model."""
    return [variable.value for variable in model.variables]


@whole("MatMul")
def dense() -> Instance:
    """A layer of Keras, called with one row of eight numbers."""
    layer = tf.keras.layers.Dense(4, activation="relu", kernel_initializer="ones")
    layer.build((None, 8))
    return Instance(layer, lambda rng: given(floats(rng, 1, 8)), values(layer))


@whole("MatMul")
def mlp() -> Instance:
    """Three dense layers of Keras."""
    dense = tf.keras.layers.Dense
    model = keras_model(dense(32, "relu"), dense(32, "gelu"), dense(10), shape=(16,))
    return Instance(model, lambda rng: given(floats(rng, 8, 16)), values(model))


@whole("Conv2D MaxPool MatMul")
def convnet() -> Instance:
    """Convolutions, pooling and a head."""
    layers = tf.keras.layers
    model = keras_model(
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.DepthwiseConv2D(3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(5),
        shape=(12, 12, 3),
    )
    return Instance(model, lambda rng: given(floats(rng, 2, 12, 12, 3)), values(model))


@whole("BatchMatMulV2 Softmax")
def transformer_block() -> Instance:
    """Attention and an MLP with residuals and layer normalization."""
    wide = 16
    qkv, out = weights(wide, 3 * wide), weights(wide, wide, seed=1)
    up, down = weights(wide, 4 * wide, seed=2), weights(4 * wide, wide, seed=3)
    norm = tf.keras.layers.LayerNormalization(epsilon=1e-5)
    norm.build((None, None, wide))

    def attend(x: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(x)
        heads = tf.reshape(x @ qkv, [shape[0], shape[1], 3, 4, wide // 4])
        q, k, v = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))
        scores = tf.nn.softmax(q @ tf.transpose(k, [0, 1, 3, 2]) / 2.0)
        return tf.reshape(tf.transpose(scores @ v, [0, 2, 1, 3]), shape) @ out

    def run(x: tf.Tensor) -> tf.Tensor:
        x = x + attend(norm(x))
        return x + tf.nn.gelu(norm(x) @ up) @ down

    return Instance(
        run, lambda rng: given(floats(rng, 2, 6, wide)), [qkv, out, up, down, *values(norm)]
    )


@whole("While")
def gru() -> Instance:
    """A recurrent layer of Keras: a loop over steps."""
    model = keras_model(tf.keras.layers.GRU(8, return_sequences=True), shape=(5, 4))
    return Instance(model, lambda rng: given(floats(rng, 2, 5, 4)), values(model))


@whole("While")
def lstm() -> Instance:
    """The same with two states."""
    model = keras_model(tf.keras.layers.LSTM(8), shape=(5, 4))
    return Instance(model, lambda rng: given(floats(rng, 2, 5, 4)), values(model))


@whole("Conv2DBackpropInput")
def transposed_convolution() -> Instance:
    """The layer that makes images larger."""
    model = keras_model(
        tf.keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same"), shape=(6, 6, 3)
    )
    return Instance(model, lambda rng: given(floats(rng, 2, 6, 6, 3)), values(model))


@whole("ResizeBilinear AvgPool")
def pooled_and_resized() -> Instance:
    """Sampling of images: average pooling, resizing up and down, padding."""

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        small = tf.nn.avg_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 2, 2, "VALID")
        return tf.image.resize(small, (16, 12)), tf.image.resize(x, (3, 3), "nearest")

    return Instance(run, lambda rng: given(floats(rng, 2, 8, 8, 3)))


@whole("BatchMatMulV2 MatMul")
def attention_of_keras() -> Instance:
    """MultiHeadAttention with a mask, as a model of two inputs."""
    keras = tf.keras
    x, memory = keras.Input((4, 8)), keras.Input((6, 8))
    y = keras.layers.MultiHeadAttention(2, 4)(x, memory)
    model = keras.Model([x, memory], keras.layers.Dense(3)(y))
    return Instance(
        model, lambda rng: given([floats(rng, 2, 4, 8), floats(rng, 2, 6, 8)]), values(model)
    )


@whole("MatMul")
def embedding_bag() -> Instance:
    """An embedding of Keras, averaged, with integers as arguments."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((5,), dtype="int32"),
            layers.Embedding(10, 8, embeddings_initializer="ones"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3, kernel_initializer="ones"),
        ]
    )
    return Instance(model, lambda rng: given(numbers(rng, 10, 4, 5)), values(model))
