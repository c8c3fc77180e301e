"""What functions hold goes when they go, and calls leave nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

import pjrt_bridge
from pjrt_bridge import tf_interop
from tests.conftest import Census

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def use(run: Callable[[tf.Tensor], object], sizes: Sequence[int]) -> None:
    fast = tf_interop.function(run)
    for size in sizes:
        for _ in range(3):
            fast(tf.ones([size]))
    assert tf_interop.explain(fast, tf.ones([sizes[0]])).bytes_copied == 0


def test_functions_leave_nothing_behind() -> None:
    def make() -> Callable[[tf.Tensor], object]:
        state = tf.Variable(tf.ones([64]))
        return lambda x: (state.assign_add(x) * 2, tf.strings.as_string(tf.shape(state)))

    pjrt_bridge.client("cpu")
    census = Census()
    use(make(), [64])
    use(lambda x: x * 2, [3, 5])
    census.check()


def test_results_outlive_the_function() -> None:
    fast = tf_interop.function(lambda x: (tf.exp(x), x + 1), fallback="error")
    found = [fast(tf.fill([100], float(number))) for number in range(4)]
    gone = weakref.ref(fast)
    del fast
    gc.collect()
    assert gone() is None
    for number, (one, other) in enumerate(found):
        np.testing.assert_allclose(one, np.full(100, np.exp(number)), rtol=1e-5)
        np.testing.assert_array_equal(other, np.full(100, number + 1.0))


def test_an_object_goes_although_its_method_was_compiled() -> None:
    class Scaled:
        @tf_interop.function
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x * 2

    one = Scaled()
    np.testing.assert_array_equal(one.call(tf.ones([3])), [2.0] * 3)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
