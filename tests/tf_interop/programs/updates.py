"""Variables that device and host read and write in turn."""

from __future__ import annotations

import tensorflow as tf

from tests.tf_interop.programs.case import (
    Instance,
    floats,
    given,
    mixed,
    numbers,
    text_file,
    weights,
    words,
)


@mixed("AsString", segments=1)
def device_then_host_then_device() -> Instance:
    """Each read has to see what was written last before it."""
    w, state = weights(4, 4), tf.Variable(tf.zeros([3, 4], tf.float32))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state.assign(tf.round(x @ w * 8))
        first = tf.strings.as_string(state, precision=0)
        state.assign_add(tf.round(tf.tanh(state @ w) * 8))
        second = tf.strings.as_string(state, precision=0)
        state.assign(state * 2)
        return first, second, tf.identity(state)

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, state])


@mixed("EagerPyFunc", segments=2)
def host_writes_between() -> Instance:
    """The device writes, Python writes to the same variable, the device adds to that."""
    w, state = weights(4, 4), tf.Variable(tf.ones([4]))

    def halve() -> None:
        state.assign(state / 2)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # What Python functions write to, TensorFlow does not see.
        added = state.assign_add(tf.reduce_mean(x @ w, axis=0), read_value=False)
        with tf.control_dependencies([added]):
            halved = tf.py_function(halve, [], [])
        with tf.control_dependencies([halved]):
            state.assign_add(tf.reduce_mean(tf.tanh(x @ w), axis=0))
        return state + 1, x @ w

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, state])


@mixed("StringJoin")
def counters() -> Instance:
    """Counters of several types, each updated more than once in a call."""
    w = weights(4, 4)
    large, small, half = (tf.Variable(0, dtype=t) for t in (tf.int64, tf.int32, tf.float16))

    def run(x: tf.Tensor, name: tf.Tensor) -> tuple[tf.Tensor, ...]:
        large.assign_add(1)
        before = large + 10
        large.assign_add(2)
        small.assign_add(tf.size(x))
        half.assign_sub(0.5)
        small.assign(small * 2)
        large.assign_add(tf.cast(small, tf.int64))
        return tf.strings.join([name, tf.constant("x")]), before, x @ w, large + 0

    return Instance(
        run,
        lambda rng: given(floats(rng, 2, 4), words(rng, ["a", "b"])),
        [w, large, small, half],
    )


@mixed("AsString")
def optimizer_step() -> Instance:
    """A training step whose loss is written as text."""
    w, b = weights(4, 3), tf.Variable(tf.zeros([3]))
    optimizer = tf.keras.optimizers.Adam(0.05)
    optimizer.build([w, b])

    def run(x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = x @ w + b
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
        return loss, tf.strings.as_string(tf.argmax(x @ w + b, axis=-1))

    return Instance(
        run,
        lambda rng: given(floats(rng, 8, 4), numbers(rng, 3, 8)),
        [w, b, *(v.value for v in optimizer.variables)],
    )


@mixed("StringUpper AssignVariableOp")
def variable_of_strings() -> Instance:
    """A variable that no device can hold."""
    w, text = weights(4, 4), tf.Variable(["a", "b"])

    def run(x: tf.Tensor, more: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        old = tf.strings.upper(text)
        text.assign(more)
        return old, tf.tanh(x @ w)

    return Instance(
        run,
        lambda rng: given(floats(rng, 3, 4), words(rng, ["x", "y", "z"], 2)),
        [w],
        lambda: text.numpy().tolist(),
    )


@mixed("StringLength")
def rows_of_a_variable() -> Instance:
    """Parts of a variable are written: a scatter and a slice."""
    w, memory = weights(4, 4), tf.Variable(tf.zeros([6, 4]))

    def run(x: tf.Tensor, rows: tf.Tensor, name: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        memory.scatter_nd_update(rows[:, None], x @ w)
        memory[0].assign(memory[1] + tf.cast(tf.strings.length(name), tf.float32))
        memory.scatter_add(tf.IndexedSlices(x, rows))
        return memory @ w, tf.strings.length(name)

    return Instance(
        run,
        lambda rng: given(
            floats(rng, 2, 4), tf.constant(rng.permutation(6)[:2]), words(rng, ["a", "bcd"])
        ),
        [w, memory],
    )


@mixed("PrintV2")
def read_on_the_host_after_the_call() -> Instance:
    """A variable that the next call reads on the host although only the device writes it."""
    w, state, file = weights(4, 4), tf.Variable(tf.zeros([], tf.int32)), text_file()

    def run(x: tf.Tensor) -> tf.Tensor:
        tf.print("state", state, output_stream=f"file://{file}")
        y = x @ w
        state.assign_add(tf.reduce_sum(tf.cast(tf.shape(y), tf.int32)))
        return y

    return Instance(run, lambda rng: given(floats(rng, 3, 4)), [w, state], file.read_text)
