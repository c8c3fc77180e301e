"""Whether two nested results of TensorFlow are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def assert_same(found: Any, expected: Any, tolerance: float, where: str) -> None:
    """Compare structures, element types, shapes and values.

    Args:
        tolerance: largest difference, relative to the largest magnitude of the expected value, for
            floats and complex numbers; everything else has to be equal.
    """
    tf.nest.assert_same_structure(found, expected, expand_composites=True)
    pairs = zip(
        tf.nest.flatten(found, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
        strict=True,
    )
    for index, (one, other) in enumerate(pairs):
        _assert_same(one, other, tolerance, f"{where}, value {index}")


def _assert_same(found: Any, expected: Any, tolerance: float, where: str) -> None:
    assert isinstance(found, tf.Tensor) == isinstance(expected, tf.Tensor), (
        f"{where}: {type(found)} instead of {type(expected)}"
    )
    if isinstance(expected, tf.Tensor | tf.Variable):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        inexact = expected.dtype.is_floating or expected.dtype.is_complex
        found, expected = found.numpy(), expected.numpy()
        if inexact:
            assert_close(found, expected, tolerance, where)
            return
    np.testing.assert_array_equal(found, expected, err_msg=where)


def assert_close(found: Any, expected: Any, tolerance: float, where: str) -> None:
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    found, expected = np.asarray(found, wide), np.asarray(expected, wide)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=where)
    size = np.abs(expected[finite]).max(initial=0)
    difference = np.abs(found[finite] - expected[finite]).max(initial=0)
    assert difference <= tolerance * size, f"{where}: differs by {difference} of {size}"
