"""Example inputs from short descriptions, for commands that call a function of the user's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge import dtypes as element_types
from pjrt_bridge.errors import DataError, UnsupportedDtype
from pjrt_bridge.tf_interop import dtypes

_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](<(?P<limit>\d+))?")
_WORDS = re.compile(r"str\[(?P<words>.*)\]")
_LIMIT = 2
"""Random integers are below it where nothing else is said: indices of almost any table."""


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
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        return _from_file(text)
    try:
        dtype = tf.dtypes.as_dtype(_name(found["dtype"]))
    except UnsupportedDtype as error:
        raise DataError(f"input {text!r}: {error}") from error
    shape = [int(size) for size in found["shape"].split(",") if size.strip()]
    random = np.random.default_rng()
    if dtype.is_floating or dtype.is_complex:
        return tf.constant(random.standard_normal(shape).astype(dtype.as_numpy_dtype))
    numbers = random.integers(int(found["limit"] or _LIMIT), size=shape)
    return tf.constant(np.asarray(numbers).astype(dtype.as_numpy_dtype))


def _name(element: str) -> str:
    name = dtypes.name_of(element_types.from_stablehlo(element))
    if name is None:
        raise UnsupportedDtype(f"TensorFlow has no element type {element!r} that a device has")
    return name


def _from_file(path: str) -> Any:
    if not Path(path).is_file():
        raise DataError(
            f"input {path!r}: no such file, and no description such as 'f32[8,64]', "
            "'i64[4,128]<1000' or 'str[ant,bee]'"
        )
    try:
        return tf.constant(np.load(path, allow_pickle=False))
    except (ValueError, EOFError, TypeError) as error:
        raise DataError(f"input {path}: cannot be read as a .npy file: {error}") from error
