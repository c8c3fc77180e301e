"""Example inputs from short descriptions, as tensors of TensorFlow."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge import dtypes as element_types
from pjrt_bridge import example_inputs
from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.example_inputs import Numbers
from pjrt_bridge.tf_interop import dtypes

_WORDS = re.compile(r"str\[(?P<words>.*)\]")


def example_input(text: str) -> Any:
    """One argument: a `.npy` file, words, or random numbers of a type and shape.

    Args:
        text: a path, `str[ant,bee]` (a vector of strings), `f32[8,64]` (normally distributed),
            `i64[4,128]<1000` (integers from 0 to below 1000; below 2 without a limit), `i1[3]`
            (booleans), `f32[]` (a scalar).

    Raises:
        DataError: neither a description nor a file that can be read.
    """
    words = _WORDS.fullmatch(text.strip())
    if words is not None:
        return tf.constant(words["words"].split(",") if words["words"] else [], tf.string)
    return example_inputs.read(text, _drawn, tf.constant, "str[ant,bee]")


def _drawn(numbers: Numbers) -> Any:
    dtype = tf.dtypes.as_dtype(_name(numbers.element))
    random = np.random.default_rng()
    if dtype.is_floating or dtype.is_complex:
        return tf.constant(random.standard_normal(numbers.shape).astype(dtype.as_numpy_dtype))
    drawn = random.integers(numbers.limit, size=numbers.shape)
    return tf.constant(np.asarray(drawn).astype(dtype.as_numpy_dtype))


def _name(element: str) -> str:
    name = dtypes.name_of(element_types.from_stablehlo(element))
    if name is None:
        raise UnsupportedDtype(f"TensorFlow has no element type {element!r} that a device has")
    return name
