"""Random numbers on a device that are TensorFlow's own.

XLA's kernels of stateless random operations draw the same bits as TensorFlow's on the CPU, but make
floats of other bits of a word. Where that is so, floats of 32 bits are made here of the bits, as
TensorFlow makes them; other floats are left to TensorFlow.

Source: TensorFlow's `core/lib/random/random_distributions.h` (`Uint32ToFloat`, `BoxMullerFloat`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

_PHILOX = 1
_LEAST = 1e-7
"""The least number of which Box and Muller's method takes the logarithm."""


def refusal(made: Any) -> str | None:
    """Why an operation would give other numbers on a device; None where it gives the same."""
    if made.type.startswith(_DRAWS) and made.type not in _SAME:
        return "XLA draws other numbers than TensorFlow"
    if made.type not in _REWRITTEN or made.get_attr("dtype") == tf.float32:
        return None
    return f"XLA draws other numbers of type {made.get_attr('dtype').name} than TensorFlow"


def is_rewritten(made: Any) -> bool:
    """Whether `rewritten` has to make the results of an operation."""
    return made.type in _REWRITTEN


def rewritten(made: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """The results of an operation, with TensorFlow's numbers; None for operations of other kinds.

    Args:
        made: the operation.
        inputs: tensors of the function that is being traced.
    """
    rewrite = _REWRITTEN.get(made.type)
    return None if rewrite is None else [rewrite(*inputs)]


def _uniform(shape: Any, key: Any, counter: Any, alg: Any) -> Any:
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=alg, dtype=tf.uint32
    )
    # A mantissa behind the exponent of 1.
    mantissa = tf.bitwise.bitwise_and(bits, tf.constant(0x7FFFFF, tf.uint32))
    word = tf.bitwise.bitwise_or(mantissa, tf.constant(0x3F800000, tf.uint32))
    return tf.bitcast(word, tf.float32) - 1


def _normal(shape: Any, key: Any, counter: Any, alg: Any) -> Any:
    count = tf.reduce_prod(tf.cast(shape, tf.int32))
    pairs = (count + 1) // 2
    uniform = tf.reshape(_uniform(tf.stack([2 * pairs]), key, counter, alg), [-1, 2])
    radius = tf.sqrt(-2 * tf.math.log(tf.maximum(uniform[:, 0], _LEAST)))
    angle = 2 * math.pi * uniform[:, 1]
    both = tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], axis=1)
    return tf.reshape(tf.reshape(both, [-1])[:count], shape)


def _seeded(draw: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def seeded(shape: Any, seed: Any) -> Any:
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        return draw(shape, key, counter, tf.constant(_PHILOX))

    return seeded


_REWRITTEN: Mapping[str, Callable[..., Any]] = {
    "StatelessRandomNormal": _seeded(_normal),
    "StatelessRandomNormalV2": _normal,
    "StatelessRandomUniform": _seeded(_uniform),
    "StatelessRandomUniformV2": _uniform,
}
_SAME = frozenset(_REWRITTEN) | {
    "StatelessRandomGetAlg",
    "StatelessRandomGetKeyCounter",
    "StatelessRandomGetKeyCounterAlg",
    "StatelessRandomUniformFullInt",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
}
_DRAWS = (
    "StatelessMultinomial",
    "StatelessParameterized",
    "StatelessRandom",
    "StatelessShuffle",
    "StatelessTruncated",
)
