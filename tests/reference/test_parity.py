"""What holds for every plugin, asked of one in C++ and of the one in Python."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pjrt_bridge.errors import (
    BufferUnavailable,
    Closed,
    InvalidArgument,
    OptionError,
    ProgramError,
    SignatureMismatch,
)
from pjrt_bridge.runtime import Client, CompileOptions, Plugin
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests import programs
from tests.plugins import cpu_plugin

COUNT = {"cpu": "cpu_device_count", "reference": "device_count"}
ONES = np.ones(64, np.float32)


@pytest.fixture(scope="session", params=COUNT)
def two(request: pytest.FixtureRequest, plugin: Plugin) -> Client:
    """Two devices of either plugin."""
    made = plugin if request.param == "reference" else cpu_plugin()
    return made.client({COUNT[request.param]: 2})


SOURCES = {
    "add": programs.elementwise("tensor<3x2xTYPE>"),
    "maximum": programs.elementwise("tensor<3x2xTYPE>", op="maximum"),
    "subtract": programs.elementwise("tensor<3x2xTYPE>", op="subtract"),
    "multiply": programs.elementwise("tensor<3x2xTYPE>", op="multiply"),
}
TYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "ui16": np.uint16, "i64": np.int64}


@pytest.mark.parametrize("op", SOURCES)
@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
@settings(max_examples=5, suppress_health_check=[HealthCheck.differing_executors])
def test_arithmetic(two: Client, op: str, kind: str, data: st.DataObject) -> None:
    # Compilers flush subnormal numbers, an interpreter does not.
    elements = st.integers(-100, 100) if kind.startswith("f") else None
    arrays = [data.draw(hnp.arrays(TYPES[kind], (3, 2), elements=elements)) for _ in range(2)]
    program = Program.parse(SOURCES[op].replace("TYPE", kind))
    (found,) = two.compile(program)(*arrays)
    (expected,) = evaluate(program, *arrays)
    np.testing.assert_array_equal(np.asarray(found), expected)


@given(array=hnp.arrays(np.int16, hnp.array_shapes(max_dims=3, max_side=4)), data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.differing_executors])
def test_arrays_come_back(two: Client, array: Any, data: st.DataObject) -> None:
    given_array = array.transpose(data.draw(st.permutations(range(array.ndim))))[::-1]
    for where in two.devices:
        buffer = two.put(given_array, where)
        assert np.array_equal(buffer, given_array)
        assert (buffer.shape, buffer.device) == (given_array.shape, where)
        assert np.array_equal(buffer.copy_to(two.devices[0]), given_array)


def test_small_floats(two: Client) -> None:
    array = np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16)
    assert np.asarray(two.put(array)).tobytes() == array.tobytes()


def test_donated_arguments_are_gone(two: Client) -> None:
    add = two.compile(programs.ALIASED_ADD)
    given_buffer, one = two.put(ONES, copy=True), two.put(ONES)
    (result,) = add.execute([given_buffer, one])
    with pytest.raises(BufferUnavailable, match="was donated to executable 'add'"):
        add.execute([given_buffer, one])
    assert np.asarray(result).sum() == 128


def test_replicas(two: Client) -> None:
    add = two.compile(programs.ADD, options=CompileOptions(num_replicas=2))
    rows = [[two.put(ONES * i, d), two.put(ONES, d)] for i, d in enumerate(two.devices)]
    assert [np.asarray(result)[0] for (result,) in add.execute_sharded(rows)] == [1, 2]


def test_serialization(two: Client) -> None:
    again = two.deserialize(two.compile(programs.ADD).serialize())
    assert np.asarray(again(ONES, ONES)[0]).sum() == 128


def test_errors_have_equal_classes(two: Client) -> None:
    add = two.compile(programs.ADD)
    with pytest.raises(SignatureMismatch):
        add(ONES.astype(np.float64), ONES)
    with pytest.raises(ProgramError):
        two.compile("nonsense")
    with pytest.raises(OptionError):
        two.compile(programs.ADD, options=CompileOptions(num_replicas=3))
    with pytest.raises(InvalidArgument):
        two.compile(programs.ADD, options=CompileOptions(env={"xla_no_such_flag": 1}))
    add.close()
    with pytest.raises(Closed):
        add(ONES, ONES)
