"""Random numbers: states in variables, seeds as arguments, and kernels with states of their own."""

from __future__ import annotations

import tensorflow as tf

from tests.tf_interop.programs.case import Instance, floats, given, mixed, weights, whole, words


@mixed("StringLength")
def random_generator() -> Instance:
    """A Generator's state advances with each draw, and in each call."""
    w, generator = weights(4, 4), tf.random.Generator.from_seed(7)

    def run(x: tf.Tensor, text: tf.Tensor) -> tuple[tf.Tensor, ...]:
        noise = generator.normal([3, 4])
        again = generator.uniform([2], maxval=100, dtype=tf.int32)
        return (x + noise) @ w, again, tf.strings.length(text) + 1

    return Instance(
        run,
        lambda rng: given(floats(rng, 3, 4), words(rng, ["a", "bc"], 2)),
        [w, generator.state],
    )


@mixed("AsString")
def stateless_random() -> Instance:
    """Draws from a seed that is an argument."""
    w = weights(4, 4)

    def run(x: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        noise = tf.random.stateless_normal([3, 4], seed)
        kept = tf.random.stateless_uniform([3, 4], seed + 1) > 0.5
        y = tf.where(kept, x + noise, 0.0) @ w
        chosen = tf.random.stateless_uniform([4], seed, maxval=9, dtype=tf.int32)
        return y, tf.strings.as_string(chosen)

    return Instance(
        run,
        lambda rng: given(floats(rng, 3, 4), tf.constant(rng.integers(0, 99, 2))),
        [w],
    )


@mixed("RandomStandardNormal RandomUniform", segments=1)
def stateful_random() -> Instance:
    """Kernels that keep a state themselves: a compiled program would draw other numbers."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        noise = tf.random.normal([3, 4], seed=11)
        return (x + noise) @ w, tf.random.uniform([2], seed=12) * 2

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w])


@mixed("RandomShuffle", segments=2)
def shuffle() -> Instance:
    """Rows in an order of chance between two layers."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.random.shuffle(tf.tanh(x @ w), seed=3) @ w

    return Instance(run, lambda rng: given(floats(rng, 6, 4)), [w])


@whole("StatelessRandomNormalV2 MatMul")
def generator_on_the_device() -> Instance:
    """The state of a Generator is an argument and a result of the program."""
    w, generator = weights(4, 4), tf.random.Generator.from_seed(3, alg="philox")

    def run(x: tf.Tensor) -> tf.Tensor:
        return (x + generator.normal([3, 4])) @ w

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, generator.state])


@whole("MatMul")
def dropout() -> Instance:
    """Keras' Dropout while training, whose seed is a variable."""
    layer, w = tf.keras.layers.Dropout(0.5, seed=4), weights(4, 4)

    def run(x: tf.Tensor) -> tf.Tensor:
        return layer(x @ w, training=True)

    state = layer.seed_generator.state.value
    return Instance(run, lambda rng: given(floats(rng, 8, 4)), [w, state])
