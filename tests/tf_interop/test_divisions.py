"""A law: however a function is divided, it gives and leaves what TensorFlow gives and leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import HostFallbackWarning
from tests.tf_interop.helpers import numbers, on_host

SIZE = 20
VARIABLES = 2


@dataclass(frozen=True)
class Step:
    """An operation on values that there are already.

    Attributes:
        what: a name in `STEPS`.
        first: which value it takes, counted from the last one.
        second: another one.
        variable: which variable, where it concerns one.
    """

    what: str
    first: int
    second: int
    variable: int


class State:
    """What a function may write."""

    def __init__(self) -> None:
        self.variables = [tf.Variable(numbers(SIZE, seed=seed)) for seed in range(VARIABLES)]
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.5)


def _write(state: State, step: Step, x: Any, y: Any) -> Any:
    state.variables[step.variable].assign(x)
    return y


def _add(state: State, step: Step, x: Any, y: Any) -> Any:
    state.variables[step.variable].assign_add(x * 0.1)
    return y


def _read(state: State, step: Step, x: Any, y: Any) -> Any:
    return state.variables[step.variable] + x


def _insert(state: State, step: Step, x: Any, y: Any) -> Any:
    state.table.insert(tf.constant([step.variable], tf.int64), tf.reshape(tf.reduce_sum(x), [1]))
    return y


def _lookup(state: State, step: Step, x: Any, y: Any) -> Any:
    found = state.table.lookup(tf.constant([step.variable], tf.int64))
    return x + tf.ensure_shape(found, [1])


def _loop(state: State, step: Step, x: Any, y: Any) -> Any:
    variable = state.variables[step.variable]

    def body(index: Any, value: Any) -> Any:
        return index + 1, tf.tanh(value + variable)

    return tf.while_loop(lambda index, _: index < 2, body, [0, x])[1]


def _branch(state: State, step: Step, x: Any, y: Any) -> Any:
    variable = state.variables[step.variable]
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x + variable, lambda: y * 0.5)


def _call(state: State, step: Step, x: Any, y: Any) -> Any:
    @tf.function
    def inner(x: Any, y: Any) -> Any:
        state.variables[step.variable].assign_sub(y * 0.1)
        return tf.sin(x) + state.variables[step.variable]

    return inner(x, y)


def _keep(state: State, step: Step, x: Any, y: Any) -> Any:
    return tf.reduce_sum(tf.boolean_mask(x, y > 0)) + y


STEPS: dict[str, Callable[[State, Step, Any, Any], Any]] = {
    "multiply": lambda state, step, x, y: tf.tanh(x) * y,
    "outer product": lambda state, step, x, y: tf.tanh(
        tf.linalg.matvec(tf.tensordot(tf.tanh(x), tf.tanh(y), 0), x)
    ),
    "on the host": lambda state, step, x, y: on_host(x) + y,
    "alias": lambda state, step, x, y: tf.identity(x),
    "add a half": lambda state, step, x, y: x + 0.5,
    "sort": lambda state, step, x, y: tf.sort(x),
    "split and put together": lambda state, step, x, y: tf.concat(
        [tf.split(x, 2)[1], tf.split(y, 2)[0]], 0
    ),
    "read": _read,
    "write": _write,
    "add": _add,
    "insert": _insert,
    "look up": _lookup,
    "loop": _loop,
    "branch": _branch,
    "call": _call,
    "keep": _keep,
}
steps = st.builds(
    Step,
    what=st.sampled_from(list(STEPS)),
    first=st.integers(0, 5),
    second=st.integers(0, 5),
    variable=st.integers(0, VARIABLES - 1),
)


def function_of(state: State, program: Sequence[Step], results: Sequence[int]) -> Any:
    def function(a: Any, b: Any) -> Any:
        values = [a, b]
        for step in program:
            x, y = (values[-1 - place % len(values)] for place in (step.first, step.second))
            values.append(STEPS[step.what](state, step, x, y))
        return [values[-1 - place % len(values)] for place in results]

    return tf.function(function, autograph=False)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    program=st.lists(steps, min_size=1, max_size=8),
    results=st.lists(st.integers(0, 6), min_size=1, max_size=3),
)
def test_results_and_state_are_those_of_tensorflow(program: list[Step], results: list[int]) -> None:
    ours, theirs = State(), State()
    plain = function_of(theirs, program, results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        fast = tf_interop.function(function_of(ours, program, results))
        for call in range(3):
            a, b = numbers(SIZE, seed=call + 5), numbers(SIZE, seed=call + 50)
            found, expected = fast(a, b), plain(a, b)
            left = (
                [*found, *ours.variables, ours.table.export()[1]],
                [*expected, *theirs.variables, theirs.table.export()[1]],
            )
            report = fast.compiled((a, b), {}).record.report()
            note(str([(item.placement, dict(item.operators)) for item in report.segments]))
            note(str([str(item) for item in report.fallback_reasons if item.kind == "failed"]))
            assert not [item for item in report.fallback_reasons if item.kind == "failed"]
            for one, other in zip(*left, strict=True):
                np.testing.assert_allclose(
                    np.sort(one) if one.shape == (2,) else one,
                    np.sort(other) if other.shape == (2,) else other,
                    rtol=2e-4,
                    atol=2e-4,
                )
