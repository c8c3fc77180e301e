"""Loops, branches and nested functions, with something of the host inside."""

from __future__ import annotations

import tensorflow as tf

from tests.tf_interop.programs.case import (
    Arguments,
    Generator,
    Instance,
    floats,
    given,
    mixed,
    text_file,
    weights,
    whole,
    words,
)


@mixed("StringLength")
def nested_functions() -> Instance:
    """Functions within functions; the innermost has an operator of the host."""
    w = weights(4, 4)

    @tf.function
    def measure(text: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.strings.length(text), tf.float32)

    @tf.function
    def layer(x: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ w) * measure(text)[:, None]

    def run(x: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        return layer(layer(x, text), tf.strings.join([text, text])) @ w

    return Instance(
        run, lambda rng: given(floats(rng, 3, 4), words(rng, ["a", "bc", "def"], 3)), [w]
    )


@mixed("AsString", "While")
def array_in_a_loop() -> Instance:
    """A TensorArray that a loop fills, and text made of what it holds."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        states = tf.TensorArray(tf.float32, size=5)
        state = x
        for i in tf.range(5):
            state = tf.tanh(state @ w)
            states = states.write(i, state)
        found = states.stack()
        return found, tf.strings.as_string(tf.shape(found))

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w])


@mixed("While", segments=2)
def loop_with_a_host_operator() -> Instance:
    """A loop that no device can run as a whole, since it prints in its body."""
    w, file = weights(4, 4), text_file()

    def run(x: tf.Tensor) -> tf.Tensor:
        y = x @ w
        i = tf.constant(0)
        while tf.reduce_sum(tf.abs(y)) > 1.0 and i < 4:
            y = tf.tanh(y @ w) * 0.5
            tf.print("round", i, output_stream=f"file://{file}")
            i += 1
        return y @ w

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w], file.read_text)


@mixed("If", segments=2)
def branch_with_a_host_operator() -> Instance:
    """A branch prints; which one is taken only a value of the device says."""
    w, file = weights(4, 4), text_file()

    def run(x: tf.Tensor) -> tf.Tensor:
        y = x @ w
        if tf.reduce_sum(y) > 0:
            tf.print("positive", output_stream=f"file://{file}")
            y = y * 2
        else:
            y = tf.nn.relu(y)
        return y @ w

    return Instance(
        run,
        lambda rng: given(floats(rng, 2, 4)),
        [w],
        lambda: file.read_text() if file.exists() else "",
    )


@mixed("StatelessCase", segments=2)
def switch_with_a_host_branch() -> Instance:
    """One of three branches reads text."""
    w = weights(4, 4)

    def run(x: tf.Tensor, which: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        y = x @ w
        chosen = tf.switch_case(
            which, [lambda: y, lambda: y * tf.strings.to_number(text), lambda: tf.tanh(y)]
        )
        return chosen @ w

    def inputs(rng: Generator) -> Arguments:
        return given(floats(rng, 2, 4), tf.constant(int(rng.integers(3))), tf.constant("2.5"))

    return Instance(run, inputs, [w])


@mixed("StatelessWhile")
def map_over_strings() -> Instance:
    """`tf.map_fn` with a parser as its function."""
    w = weights(3, 2)

    def run(lines: tf.Tensor) -> tf.Tensor:
        numbers = tf.map_fn(
            lambda line: tf.strings.to_number(tf.strings.split(line, sep=",")),
            lines,
            fn_output_signature=tf.TensorSpec([3], tf.float32),
        )
        return tf.nn.softmax(numbers @ w)

    return Instance(run, lambda rng: given(words(rng, ["1,2,3", "0.5,-1,2", "3,3,3"], 4)), [w])


@mixed("AsString", "While")
def loop_that_updates_a_variable() -> Instance:
    """The loop itself can be compiled, its variable with it; only text is for the host."""
    w, state = weights(4, 4), tf.Variable(tf.zeros([2, 4]))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for _ in tf.range(3):
            state.assign(tf.tanh(state @ w + x))
        return state @ w, tf.strings.as_string(tf.argmax(state @ w, axis=-1))

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w, state])


@mixed("StringLower", "MatMul Cumsum")
def gradient_through_a_function() -> Instance:
    """A gradient of a custom_gradient function, beside text."""
    w = weights(4, 4)

    @tf.custom_gradient
    def clipped(x: tf.Tensor) -> tuple[tf.Tensor, object]:
        return x * 2, lambda upstream: tf.clip_by_value(upstream, -0.1, 0.1)

    def run(x: tf.Tensor, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(clipped(tf.cumsum(x @ w)) ** 2)
        return tape.gradient(loss, w), tf.strings.lower(text)

    return Instance(run, lambda rng: given(floats(rng, 3, 4), words(rng, ["A", "Bc"], 2)), [w])


@mixed("TensorListSetItem")
def array_that_grows() -> Instance:
    """A TensorArray without a size, which compiled code could not enlarge."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        states = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in range(3):
            x = tf.tanh(x @ w)
            states = states.write(i, x)
        return states.stack() * 2, states.concat()

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w])


@mixed("EmptyTensorList While StatelessWhile")
def gradient_of_an_open_loop() -> Instance:
    """The backward loop needs all values of the forward one, and these have no largest number."""
    w = weights(4, 4)

    def run(x: tf.Tensor, times: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            y = x @ w
            done = tf.constant(0)
            while done < times:
                y, done = tf.tanh(y @ w), done + 1
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, w), y @ w

    def inputs(rng: Generator) -> Arguments:
        return given(floats(rng, 2, 4), tf.constant(int(rng.integers(1, 4))))

    return Instance(run, inputs, [w])


@whole("EmptyTensorList While StatelessWhile")
def gradient_of_a_loop_of_known_length() -> Instance:
    """The backward loop needs all values of the forward one, as many as there are turns."""
    w = weights(4, 4)

    def run(x: tf.Tensor, times: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            y = x @ w
            for _ in tf.range(times):
                y = tf.tanh(y @ w)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, w), y @ w

    def inputs(rng: Generator) -> Arguments:
        return given(floats(rng, 2, 4), tf.constant(int(rng.integers(1, 4))))

    return Instance(run, inputs, [w])


@mixed("AsString", "LogSoftmax While")
def functions_of_tensorflow_1() -> Instance:
    """The CTC loss calls functions of the first kind, which are operations by their own names."""

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        labels = tf.constant([[1, 2]])
        loss = tf.nn.ctc_loss(labels, x, tf.constant([2]), tf.constant([4]))
        return loss, tf.strings.as_string(tf.shape(loss))

    return Instance(run, lambda rng: given(floats(rng, 4, 1, 4)))
