"""Whatever reads and writes variables on device and host in turn sees what was written before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import tf_interop
from tests.tf_interop.comparing import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")

Step = Callable[["Machine", Any, Any], None]


class Machine:
    """Variables, a value that is computed on, and what was given and heard so far."""

    def __init__(self, file: Path) -> None:
        self.variables = [tf.Variable(tf.constant([1.0, 2.0, 3.0]) * i) for i in (1, 2, 3)]
        self.heard: list[Any] = []
        self.file = file
        self.value: Any = None
        self.given: list[Any] = []

    def hear(self, x: Any) -> Any:
        """Python's part: remember what came."""
        self.heard.append(x)
        return x * 1


def add(machine: Machine, v: Any, _: Any) -> None:
    v.assign_add(tf.round(machine.value) / 2)


def copy(machine: Machine, v: Any, other: Any) -> None:
    v.assign(other + machine.value)


def swap(_: Machine, v: Any, other: Any) -> None:
    held = v.read_value()
    v.assign(other)
    other.assign(held)


def read(machine: Machine, v: Any, _: Any) -> None:
    machine.value = machine.value + v / 8
    machine.given.append(v.read_value())


def compute(machine: Machine, v: Any, _: Any) -> None:
    machine.value = tf.tanh(machine.value * v)


def write_down(machine: Machine, v: Any, _: Any) -> None:
    tf.print(tf.round(v), output_stream=f"file://{machine.file}")


def call_python(machine: Machine, v: Any, _: Any) -> None:
    found = tf.py_function(machine.hear, [v], tf.float32)
    machine.given.append(tf.ensure_shape(found, [3]))


def through_text(_: Machine, v: Any, other: Any) -> None:
    v.assign(tf.strings.to_number(tf.strings.as_string(tf.round(other))))


def scatter(machine: Machine, v: Any, _: Any) -> None:
    v.scatter_nd_update([[1]], machine.value[:1])


def branch(_: Machine, v: Any, other: Any) -> None:
    # `tf.cond` instead of `if`: these functions are no part of what AutoGraph reads.
    def lower() -> Any:
        return v.assign_sub(tf.ones([3]), read_value=False)

    def raise_other() -> Any:
        return other.assign_add(tf.ones([3]), read_value=False)

    tf.cond(tf.reduce_sum(v) > 0, lower, raise_other)


def loop(machine: Machine, v: Any, _: Any) -> None:
    value = machine.value

    def body(i: Any) -> Any:
        v.assign(v / 2 + value)
        return (i + 1,)

    tf.while_loop(lambda i: i < 2, body, [0])


STEPS: Sequence[Step] = [
    add,
    branch,
    call_python,
    compute,
    copy,
    loop,
    read,
    scatter,
    swap,
    through_text,
    write_down,
]
VARIABLE = st.integers(0, 2)
PLANS = st.lists(st.tuples(st.sampled_from(STEPS), VARIABLE, VARIABLE), min_size=6, max_size=16)


def outcome(plan: Sequence[tuple[Step, int, int]], compiler: Callable[..., Any]) -> Any:
    """Results and variables after each of three calls, and what was heard and written down."""
    with TemporaryDirectory() as folder:
        machine = Machine(Path(folder) / "written")
        machine.file.touch()

        def run(x: Any) -> Any:
            machine.value, machine.given = x, []
            for step, i, j in plan:
                step(machine, machine.variables[i], machine.variables[j])
            return machine.value, machine.given

        compiled, calls = compiler(run), []
        for number in (1.0, 2.0, 3.0):
            found = compiled(tf.constant([0.5, -1.0, 2.0]) * number)
            calls.append((found, [tf.identity(v) for v in machine.variables]))
        return calls, machine.heard, machine.file.read_text()


@settings(max_examples=8, derandomize=True)
@given(PLANS)
def test_effects_are_those_of_tensorflow(plan: Sequence[tuple[Step, int, int]]) -> None:
    found, expected = outcome(plan, tf_interop.function), outcome(plan, tf.function)
    assert_same(found, expected, 1e-4, "outcome")
