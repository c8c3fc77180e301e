"""Collective operations: two replicas of a program on the CPU plugin, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime import CompileOptions
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.types import TensorType

ROWS = [np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * replica for replica in range(2)]
FLOATS = dtypes.of("float32")
PAIR = [[0, 1]]

Body = Callable[[Builder, Value], Value]


def replicas(body: Body) -> list[np.ndarray]:
    builder = Builder([TensorType((4, 2), FLOATS)])
    (x,) = builder.parameters
    program = builder.finish([body(builder, x)])
    client = pjrt_bridge.client("cpu", cpu_device_count=2)
    executable = client.compile(program, options=CompileOptions(num_replicas=2))
    rows = [[client.put(row, device)] for row, device in zip(ROWS, executable.devices, strict=True)]
    return [found.to_numpy() for (found,) in executable.execute_sharded(rows)]


def parts(array: np.ndarray, dim: int) -> list[np.ndarray]:
    return np.split(array, 2, dim)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda b, x: b.all_reduce(x, b.add, PAIR), [sum(ROWS)] * 2),
        (lambda b, x: b.all_reduce(x, b.maximum, [[0], [1]]), ROWS),
        (lambda b, x: b.all_gather(x, 1, PAIR), [np.concatenate(ROWS, 1)] * 2),
        (lambda b, x: b.all_gather(x, 0, [[1, 0]]), [np.concatenate(ROWS[::-1], 0)] * 2),
        (lambda b, x: b.reduce_scatter(x, b.add, 0, PAIR), parts(ROWS[0] + ROWS[1], 0)),
        (
            lambda b, x: b.all_to_all(x, 0, 1, PAIR),
            [np.concatenate([parts(row, 0)[at] for row in ROWS], 1) for at in range(2)],
        ),
    ],
)
def test_values_of_a_group(body: Body, expected: Sequence[np.ndarray]) -> None:
    for found, each in zip(replicas(body), expected, strict=True):
        np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda b, x: b.all_reduce(x, b.add, [[0, 1], [2]]), r"found the groups \[\[0, 1\], \[2\]"),
        (lambda b, x: b.all_gather(x, 0, [[0, 0]]), "each replica in one of them"),
        (lambda b, x: b.all_gather(x, 0, []), r"found the groups \[\], expected groups of one"),
        (lambda b, x: b.all_gather(x, 2, PAIR), "distinct dimensions of a rank 2 tensor"),
        (lambda b, x: b.all_to_all(x, 0, -1, PAIR), "concat_dim must be distinct dimensions"),
        (
            lambda b, x: b.reduce_scatter(x, b.add, 0, [[0, 1, 2]]),
            "dimension 0 of .*: found size 4, expected a multiple of 3",
        ),
    ],
)
def test_what_is_refused(body: Body, text: str) -> None:
    builder = Builder([TensorType((4, 2), FLOATS)])
    (x,) = builder.parameters
    with pytest.raises(ProgramError, match=text):
        body(builder, x)
    builder.finish([x])
