"""Operators and element types that compile whole."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tf_interop.programs.case import (
    Arguments,
    Generator,
    Instance,
    floats,
    given,
    numbers,
    weights,
    whole,
)


@whole("Einsum")
def einsum() -> Instance:
    """Products over named dimensions."""

    def run(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (
            tf.einsum("bij,bjk->bik", a, b),
            tf.einsum("bij,bjk->k", a, b),
            tf.einsum("bij->bji", a),
        )

    return Instance(run, lambda rng: given(floats(rng, 2, 3, 4), floats(rng, 2, 4, 5)))


@whole("Svd Cholesky Qr", tolerance=1e-4)
def decompositions() -> Instance:
    """Of matrices; what signs are free is multiplied together again."""

    def run(a: tf.Tensor) -> tuple[tf.Tensor, ...]:
        s, u, v = tf.linalg.svd(a)
        again = u @ tf.linalg.diag(s) @ tf.transpose(v)
        square = tf.transpose(a) @ a + tf.eye(4)
        factor = tf.linalg.cholesky(square)
        q, r = tf.linalg.qr(a)
        return s, again, factor, q @ r, tf.linalg.triangular_solve(factor, square)

    return Instance(run, lambda rng: given(floats(rng, 5, 4)))


@whole("TopKV2")
def ordering() -> Instance:
    """Sorting, the largest, where they are."""

    def run(x: tf.Tensor) -> tuple[Any, ...]:
        largest = tf.math.top_k(x, 3)
        return tf.sort(x, axis=-1), tf.argsort(x), largest, tf.argmin(x, axis=0)

    return Instance(run, lambda rng: given(floats(rng, 4, 9)))


@whole("FFT RFFT")
def fourier() -> Instance:
    """Complex and real transforms, and parts of complex numbers."""

    def run(x: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, ...]:
        spectrum = tf.signal.rfft(x)
        back = tf.signal.irfft(spectrum * 2)
        return tf.signal.fft(z), tf.abs(spectrum), back, tf.math.angle(z), tf.math.conj(z) * z

    def inputs(rng: Generator) -> Arguments:
        return given(floats(rng, 3, 8), tf.complex(floats(rng, 2, 8), floats(rng, 2, 8)))

    return Instance(run, inputs)


@whole("MatMul", tolerance=1e-12)
def float64() -> Instance:
    """Double precision."""
    held = tf.Variable(tf.cast(weights(4, 4), tf.float64))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.tanh(x @ held)
        held.assign_add(tf.transpose(y) @ y * 0.125)
        return y, y > 0

    return Instance(run, lambda rng: given(floats(rng, 3, 4, dtype=tf.float64)), [held])


@whole("MatMul", tolerance=2e-2)
def bfloat16() -> Instance:
    """Eight bits of precision."""
    held = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.tanh(x @ tf.cast(held, tf.bfloat16))
        return y, tf.reduce_max(y)

    return Instance(run, lambda rng: given(floats(rng, 3, 4, dtype=tf.bfloat16)), [held])


@whole("MatMul", tolerance=2e-3)
def float16() -> Instance:
    """Eleven bits of precision, and a variable of that type."""
    held = tf.Variable(tf.cast(weights(4, 4), tf.float16))

    def run(x: tf.Tensor) -> tf.Tensor:
        held.assign(held * 0.5)
        return tf.tanh(x @ held)

    return Instance(run, lambda rng: given(floats(rng, 3, 4, dtype=tf.float16)), [held])


@whole("Mul")
def complex64() -> Instance:
    """Complex arguments, results and variables."""
    held = tf.Variable(tf.constant([1 + 2j, 3 - 1j], tf.complex64))

    def run(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = z * held
        held.assign_add(y[0])
        return tf.exp(y * 0.1), tf.math.real(y)

    return Instance(
        run, lambda rng: given(tf.complex(floats(rng, 3, 2), floats(rng, 3, 2))), [held]
    )


@whole("FloorDiv FloorMod")
def integers() -> Instance:
    """Integers of every width; what overflows wraps around, what divides rounds down."""
    types = [tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64]

    def run(*xs: tf.Tensor) -> list[tf.Tensor]:
        found = []
        for x in xs:
            three = tf.cast(3, x.dtype)
            found += [x * three + x, x // three, x % three, tf.reduce_max(x)]
        return found

    def inputs(rng: Generator) -> Arguments:
        return given(*(numbers(rng, 100, 3, 4, dtype=dtype) for dtype in types))

    return Instance(run, inputs)


@whole("LogicalAnd Select")
def truths() -> Instance:
    """Truth values as arguments, results and variables."""
    held = tf.Variable([True, False, True, False])

    def run(a: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        both = a & held
        held.assign(tf.reduce_any(both, axis=0) ^ True)
        return both, tf.raw_ops.Select(condition=both, x=x, y=-x), tf.reduce_all(a)

    def inputs(rng: Generator) -> Arguments:
        return given(floats(rng, 3, 4) > 0, floats(rng, 3, 4))

    return Instance(run, inputs, [held])


@whole("Exp")
def extreme_values() -> Instance:
    """NaN, infinities, zeros of both signs, and numbers that are almost nothing."""

    def run(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (
            tf.exp(x),
            tf.maximum(x, 0.0),
            tf.math.is_nan(x / x),
            tf.math.divide_no_nan(1.0, x),
            tf.reduce_max(x[:4]),
            tf.sign(x),
        )

    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, -1e30, 1.0]
    return Instance(run, lambda _: given(tf.constant(special)))


@whole("Mul")
def empty_and_scalar() -> Instance:
    """Tensors without elements, and of no dimension."""

    def run(nothing: tf.Tensor, scalar: tf.Tensor) -> tuple[tf.Tensor, ...]:
        joined = tf.concat([nothing, nothing * scalar], axis=0)
        return joined, tf.reduce_sum(nothing), scalar * 2, tf.zeros([0, 2]) + scalar

    return Instance(run, lambda rng: given(tf.zeros([0, 3]), tf.constant(rng.normal(), tf.float32)))


@whole("While")
def loop_with_captured_variables() -> Instance:
    """A loop that ends by what it computes, with weights from outside."""
    w, rounds = weights(4, 4), tf.Variable(0)

    def run(x: tf.Tensor) -> tf.Tensor:
        while tf.reduce_sum(tf.abs(x)) > 0.5:
            x = tf.tanh(x @ w) * 0.7
            rounds.assign_add(1)
        return x

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w, rounds])


@whole("If")
def branch_with_captured_variables() -> Instance:
    """A branch whose sides use different variables, and one updates its own."""
    w, state = weights(4, 4), tf.Variable(tf.zeros([4]))

    def run(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0:
            state.assign_add(tf.reduce_mean(x, axis=0))
            y = x @ w
        else:
            y = x + state
        return y

    return Instance(run, lambda rng: given(floats(rng, 2, 4)), [w, state])


@whole("Cumsum ScatterNd GatherNd")
def indexing() -> Instance:
    """Gathers, scatters, slices, running sums, one-hot rows."""

    def run(x: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (
            tf.gather(x, rows),
            tf.gather_nd(x, rows[:, None]),
            tf.scatter_nd(rows[:, None], tf.gather(x, rows), [6, 4]),
            tf.tensor_scatter_nd_add(x, rows[:, None], tf.gather(x, rows)),
            tf.one_hot(rows, 6),
            x[1:-1:2, None, ::-1],
            tf.cumsum(x, axis=0, reverse=True),
            tf.math.unsorted_segment_sum(x, tf.range(6) % 3, 3),
        )

    return Instance(run, lambda rng: given(floats(rng, 6, 4), numbers(rng, 6, 3)))


@whole("StatelessWhile")
def scan() -> Instance:
    """`tf.scan`, and a function that `vectorized_map` applies to rows."""
    w = weights(4, 4)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        states = tf.scan(lambda state, row: tf.tanh(state + row), x, tf.zeros([4]))
        return states, tf.vectorized_map(lambda row: tf.linalg.matvec(w, row), x)

    return Instance(run, lambda rng: given(floats(rng, 5, 4)), [w])
