"""Steps of training that compile whole: gradients, optimizers, running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tests.tf_interop.programs.case import Instance, floats, given, numbers, weights, whole
from tests.tf_interop.programs.layers import keras_model, values


def _step(model: Any, optimizer: Any, features: Sequence[int]) -> Instance:
    """A step on a classifier of three classes."""
    optimizer.build(model.trainable_variables)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def run(x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = losses(labels, logits)
        found = tape.gradient(loss, model.trainable_variables)
        found, norm = tf.clip_by_global_norm(found, 1.0)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return loss, norm

    return Instance(
        run,
        lambda rng: given(floats(rng, 8, *features), numbers(rng, 3, 8)),
        [*values(model), *(v.value for v in optimizer.variables)],
    )


@whole("MatMul")
def adam_step() -> Instance:
    """An MLP and Adam with a schedule."""
    layers = tf.keras.layers
    model = keras_model(layers.Dense(8, "tanh"), layers.Dense(3), shape=(4,))
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    return _step(model, tf.keras.optimizers.Adam(schedule), [4])


@whole("Conv2D Conv2DBackpropFilter", tolerance=1e-4)
def batch_normalization_step() -> Instance:
    """Convolution, BatchNormalization in training, pooling, SGD with momentum."""
    layers = tf.keras.layers
    model = keras_model(
        layers.Conv2D(4, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(4, 3),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
        shape=(8, 8, 2),
    )
    return _step(model, tf.keras.optimizers.SGD(0.05, momentum=0.9), [8, 8, 2])


@whole("While")
def recurrent_step() -> Instance:
    """The gradient of a loop."""
    layers = tf.keras.layers
    model = keras_model(layers.LSTM(6), layers.Dense(3), shape=(5, 4))
    return _step(model, tf.keras.optimizers.RMSprop(0.01), [5, 4])


@whole("MatMul")
def second_order() -> Instance:
    """A gradient of a gradient, and a Jacobian."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.tanh(x @ w))
            first = inner.gradient(y, x)
            penalty = tf.reduce_sum(first**2)
        return outer.gradient(penalty, w), first

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w])


@whole("MatMul")
def accumulated_gradients() -> Instance:
    """Gradients are added to variables; each second call applies them."""
    w, step = weights(4, 2), tf.Variable(0, dtype=tf.int64)
    held = tf.Variable(tf.zeros([4, 2]))

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w) ** 2)
        held.assign_add(tape.gradient(loss, w))
        step.assign_add(1)
        if step % 2 == 0:
            w.assign_sub(0.1 * held)
            held.assign(tf.zeros_like(held))
        return loss

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, held, step])


@whole("MatMul")
def moving_average() -> Instance:
    """One variable is written by two assignments and read before, between and after."""
    w, mean = weights(4, 4), tf.Variable(tf.zeros([4]))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        before = mean * 1
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x @ w, axis=0))
        between = mean * 1
        mean.assign_sub(between / 2)
        return before, between, mean + 0

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, mean])


@whole("While", tolerance=1e-4)
def connectionist_temporal_classification() -> Instance:
    """Its loops call functions by their names, as TensorFlow 1 writes calls."""
    dense = weights(6, 5)

    def run(x: tf.Tensor, labels: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            losses = tf.nn.ctc_loss(
                labels,
                x @ dense,
                lengths,
                tf.constant([8, 6]),
                logits_time_major=False,
                blank_index=0,
            )
            loss = tf.reduce_mean(losses)
        found = tape.gradient(loss, dense)
        dense.assign_sub(0.1 * found)
        return losses, found

    return Instance(
        run,
        lambda rng: given(floats(rng, 2, 8, 6), 1 + numbers(rng, 4, 2, 3), tf.constant([3, 2])),
        [dense],
    )
