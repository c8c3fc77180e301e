"""TensorFlow: tf.function, plain and compiled by XLA, and the bridge, all of the same function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks.case import Case, TensorFlowWork
from benchmarks.competitors import Absent, Timer, timer


def prepare(case: Case, name: str) -> Timer:
    """A timer of the case's function; nothing is traced before its first call.

    Raises:
        Absent: the case has no function of TensorFlow.
    """
    if case.tensorflow is None:
        raise Absent("no TensorFlow function for this case")
    work = case.tensorflow()
    return timer(partial(function_of(work, name), *work.inputs))


def function_of(work: TensorFlowWork, name: str) -> Callable[..., Any]:
    """The work's function as a competitor has it."""
    made: Callable[..., Any]
    if name == "tf_interop":
        # TensorFlow's own competitors go without the bridge in their process.
        from pjrt_bridge import tf_interop

        made = tf_interop.function(work.function, fallback="error" if work.whole else "host")
    else:
        made = tf.function(work.function, jit_compile=name == "jit_compile")
    return made
