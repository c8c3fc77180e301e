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
