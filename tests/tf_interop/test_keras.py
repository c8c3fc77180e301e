"""`fit`, `evaluate` and `predict` of Keras with steps that the bridge compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop

# NumPy's, about how Keras reads its own variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def classifier() -> Any:
    """Dropout, running statistics, Adam and a metric: all the state that a step can have."""
    keras = tf.keras
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], run_eagerly=True)
    return model


def test_fit_trains_as_keras_does() -> None:
    x = tf.random.stateless_normal([40, 4], [0, 1])
    y = tf.cast(tf.reduce_sum(x, axis=1) > 0, tf.int32)
    plain, bridged = classifier(), classifier()
    bridged.train_step = tf_interop.function(bridged.train_step, fallback="error")
    bridged.test_step = tf_interop.function(bridged.test_step, fallback="error")
    bridged.predict_step = tf_interop.function(bridged.predict_step, fallback="error")
    histories = []
    for model in (plain, bridged):
        model.optimizer.learning_rate = 0.01
        # The last batch is smaller.
        options = dict(batch_size=16, epochs=3, shuffle=False, verbose=0)
        histories.append(model.fit(x, y, validation_data=(x, y), **options).history)
    expected, found = histories
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=name)
    assert found["loss"][-1] < found["loss"][0]
    one, other = (model.predict(x, verbose=0) for model in (plain, bridged))
    np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(bridged.variables, plain.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-4)


def test_stacked_recurrent_layers_train_on_the_device() -> None:
    keras = tf.keras
    keras.utils.set_random_seed(0)
    layers = [keras.layers.GRU(3, return_sequences=True), keras.layers.LSTM(3)]
    model = keras.Sequential([keras.Input((4, 2)), *layers])
    optimizer = keras.optimizers.SGD(0.1)
    x = tf.random.stateless_normal([3, 4, 2], [0, 1])
    before = model.get_weights()

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    left = []
    for run in (tf.function(step), tf_interop.function(step, fallback="error")):
        model.set_weights(before)
        losses = [float(run(x)) for _ in range(2)]
        left.append([losses, *model.get_weights()])
    for found, expected in zip(*left, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
