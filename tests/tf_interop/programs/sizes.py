"""Sizes that only the data knows: filters, ragged and sparse tensors, segments."""

from __future__ import annotations

import tensorflow as tf

from tests.tf_interop.programs.case import (
    Arguments,
    Generator,
    Instance,
    floats,
    given,
    mixed,
    numbers,
    weights,
)


@mixed("UniqueWithCounts", segments=2)
def unique_with_counts() -> Instance:
    """Classes are found by a model, counted, and weighted by their number."""
    w = weights(4, 5)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        classes = tf.argmax(x @ w, axis=-1)
        values, index, counts = tf.unique_with_counts(classes)
        share = tf.cast(counts, tf.float32) / tf.cast(tf.size(classes), tf.float32)
        return values * 10, tf.gather(share, index), tf.nn.softmax(share)

    return Instance(run, lambda rng: given(floats(rng, 12, 4)), [w])


@mixed("Where", segments=2)
def boolean_mask() -> Instance:
    """Rows with a positive score go on to a second layer."""
    first, second = weights(4, 4), weights(4, 2, seed=1)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden = tf.tanh(x @ first)
        kept = tf.boolean_mask(hidden, tf.reduce_sum(hidden, axis=-1) > 0)
        return kept @ second, tf.shape(kept)

    return Instance(run, lambda rng: given(floats(rng, 10, 4)), [first, second])


@mixed("Where")
def where_with_one_argument() -> Instance:
    """Indices of what is true, and a calculation with them."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = x @ w
        places = tf.where(y > 0.5)
        return places * 2, tf.exp(tf.gather_nd(y, places))

    return Instance(run, lambda rng: given(floats(rng, 6, 4)), [w])


@mixed("Where", segments=2)
def shape_dependent_reshape() -> Instance:
    """A shape that is computed from the shape of what was kept."""
    w = weights(6, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.nn.elu(x @ w)
        kept = tf.boolean_mask(y, y[:, 0] > 0)
        shape = tf.shape(kept)
        flat = tf.reshape(kept, [shape[0] * shape[1] // 2, 2])
        return tf.transpose(flat) * 2, tf.zeros(shape) + 1

    return Instance(run, lambda rng: given(floats(rng, 9, 6)), [w])


@mixed("Where")
def nothing_kept() -> Instance:
    """A filter that keeps no row at all: sizes of 0 behind it."""
    w = weights(4, 3)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        kept = tf.boolean_mask(x, tf.reduce_max(x, axis=-1) > 1e6)
        return kept @ w, tf.reduce_sum(kept) + tf.reduce_sum(x @ w)

    return Instance(run, lambda rng: given(floats(rng, 5, 4)), [w])


@mixed("DynamicPartition", segments=2)
def dynamic_partition() -> Instance:
    """Experts: rows are divided, computed by different weights and put together again."""
    gate, experts = weights(4, 2), [weights(4, 4, seed=1), weights(4, 4, seed=2)]

    def run(x: tf.Tensor) -> tf.Tensor:
        chosen = tf.argmax(x @ gate, axis=-1, output_type=tf.int32)
        rows = tf.dynamic_partition(x, chosen, 2)
        places = tf.dynamic_partition(tf.range(tf.shape(x)[0]), chosen, 2)
        done = [tf.nn.relu(part @ w) for part, w in zip(rows, experts, strict=True)]
        return tf.dynamic_stitch(places, done)

    return Instance(run, lambda rng: given(floats(rng, 9, 4)), [gate, *experts])


@mixed("ListDiff")
def setdiff() -> Instance:
    """Rows that were not chosen."""
    w = weights(4, 3)

    def run(x: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
        rest, _ = tf.raw_ops.ListDiff(x=tf.range(tf.shape(x)[0]), y=chosen)
        return tf.gather(x @ w, rest) * 2

    return Instance(run, lambda rng: given(floats(rng, 8, 4), numbers(rng, 8, 3)), [w])


@mixed("SegmentSum")
def segment_sum() -> Instance:
    """Sums over rows that belong together, then a layer."""
    first, second = weights(4, 4), weights(4, 2, seed=1)

    def run(x: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
        return tf.math.segment_sum(tf.tanh(x @ first), owners) @ second

    def inputs(rng: Generator) -> Arguments:
        return given(floats(rng, 8, 4), tf.sort(numbers(rng, 4, 8)))

    return Instance(run, inputs, [first, second])


@mixed("SparseTensorDenseMatMul")
def sparse_dense_matmul() -> Instance:
    """A sparse matrix as an argument."""
    w = weights(4, 4)

    def run(a: tf.SparseTensor, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.sparse.sparse_dense_matmul(a, x @ w)) * 2

    def inputs(rng: Generator) -> Arguments:
        dense = tf.identity(rng.standard_normal((6, 5)).astype("f4"))
        return given(tf.sparse.from_dense(tf.where(dense > 0.3, dense, 0.0)), floats(rng, 5, 4))

    return Instance(run, inputs, [w])


@mixed("RaggedTensorToTensor")
def ragged_to_dense() -> Instance:
    """A ragged argument is padded for a layer, and cut to its lengths again."""
    w = weights(6, 4)

    def run(x: tf.RaggedTensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
        padded = x.to_tensor(shape=[None, 6])
        y = tf.tanh(padded @ w)
        return y, tf.RaggedTensor.from_tensor(padded * 2, lengths=x.row_lengths())

    def inputs(rng: Generator) -> Arguments:
        lengths = rng.integers(0, 6, 5)
        values = floats(rng, int(lengths.sum()))
        return given(tf.RaggedTensor.from_row_lengths(values, lengths))

    return Instance(run, inputs, [w])


@mixed("StringFormat")
def sizes_as_data() -> Instance:
    """Shapes and bounds that are values of arguments: compile-time constants of XLA's kernels."""
    w = weights(4, 4)

    def run(
        x: tf.Tensor, shape: tf.Tensor, times: tf.Tensor, begin: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        y = tf.reshape(x @ w, shape)
        cut = tf.slice(y, tf.stack([begin, 0]), tf.stack([1, shape[1]]))
        said = tf.strings.format("{}", times)
        return tf.tile(cut, tf.stack([times, 1])) * 2, tf.range(times) + 1, said

    def inputs(rng: Generator) -> Arguments:
        shape = tf.constant([[8, 2], [2, 8], [4, 4]][rng.integers(3)])
        times = tf.constant(int(rng.integers(1, 4)))
        return given(floats(rng, 4, 4), shape, times, tf.constant(1))

    return Instance(run, inputs, [w])
