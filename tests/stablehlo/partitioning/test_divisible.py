"""Operations as a partitioner divides them rightly."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client, Plugin, ShardedBuffer, ShardedExecutable
from pjrt_bridge.stablehlo import Builder, Mesh, Program, Sharding, TensorType, shard
from pjrt_bridge.stablehlo.partitioning.divisible import divisible

F32 = dtypes.of("float32")
Spec = tuple[str | None, ...]
SIZES = {"N": 6, "C": 2, "0": 4, "1": 3}
KERNEL = {"I": 2, "O": 3, "0": 3, "1": 2}


def convolution(sides: tuple[str, str], groups: int) -> Program:
    """One of both sides in the order of these letters."""
    shapes = [
        tuple(sizes[letter] for letter in side)
        for side, sizes in zip(sides, (SIZES, KERNEL), strict=True)
    ]
    builder = Builder([TensorType(shape, F32) for shape in shapes])
    result = builder.convolution(
        *builder.parameters,
        window_strides=(1, 1),
        padding=((1, 1), (0, 1)),
        lhs_dilation=(1, 1),
        rhs_dilation=(1, 1),
        feature_group_count=1,
        batch_group_count=groups,
        dimension_numbers=(*sides, "NC01"),
        out_dtype=F32,
    )
    return builder.finish([result])


@pytest.mark.parametrize("left", ["".join(letters) for letters in itertools.permutations("NC01")])
def test_the_numbers_are_the_same(client: Client, left: str) -> None:
    program = convolution((left, "OI01"), 3)
    found = divisible(program)
    assert found is not program
    assert "batch_group_count = 1" in found.text
    rng = np.random.default_rng(0)
    arguments = [
        rng.random(parameter.type.shape, np.float32) for parameter in program.signature.parameters
    ]
    (expected,), (result,) = (client.compile(one)(*arguments) for one in (program, found))
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-5)


def test_what_has_none_stays() -> None:
    program = convolution(("NC01", "OI01"), 1)
    assert divisible(program).text == program.text
    other = Builder([TensorType((2,), F32)])
    unchanged = other.finish(other.parameters)
    assert divisible(unchanged) is unchanged


@pytest.fixture(scope="module")
def many(plugin: Plugin) -> Iterator[Client]:
    """Four devices."""
    with plugin.client({"cpu_device_count": 4}) as client:
        yield client


SPECS = [
    spec
    for spec in itertools.product((None, "x", "y"), repeat=4)
    if spec.count("x") < 2 and spec.count("y") < 2
]


@pytest.mark.parametrize(
    ("left", "right", "how"),
    [
        ((None, None, "x", None), (None, "x", None, None), {}),
        ((None, "x", None, None), ("y", None, "x", None), {}),
        ((None, None, None, "x"), ("y", None, None, None), {"window_strides": (2, 2)}),
        ((None, "x", None, None), (None, None, None, "x"), {"rhs_dilation": (2, 3)}),
        (("x", None, None, None), (None, None, None, None), {"batch_group_count": 2}),
        ((None, "x", None, None), (None, "y", None, None), {"batch_group_count": 2}),
    ],
)
def test_the_numbers_over_a_mesh(
    many: Client, left: Spec, right: Spec, how: dict[str, Any]
) -> None:
    _compare_over_mesh(many, left, right, how)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("left", SPECS)
def test_many_shardings(many: Client, left: Spec, stride: int) -> None:
    for right in random.Random(str(left)).sample(SPECS, 3):
        _compare_over_mesh(many, left, right, {"window_strides": (stride, stride)})


def _compare_over_mesh(client: Client, left: Spec, right: Spec, how: dict[str, Any]) -> None:
    """Compare a convolution over two by two devices with one device."""
    groups = how.get("batch_group_count", 1)
    builder = Builder([TensorType((8, 8, 8, 6), F32), TensorType((8, 8, 4, 2), F32)])
    result = builder.convolution(
        *builder.parameters,
        **{
            "window_strides": (1, 1),
            "padding": ((1, 1), (1, 1)),
            "lhs_dilation": (1, 1),
            "rhs_dilation": (1, 1),
            "feature_group_count": 1,
            "batch_group_count": groups,
            "dimension_numbers": ("CN01", "IO01", "NC01")
            if groups > 1
            else ("NC01", "OI01", "NC01"),
            "out_dtype": F32,
            **how,
        },
    )
    program = builder.finish([result])
    rng = np.random.default_rng(0)
    x, y = (rng.random(item.type.shape, np.float32) for item in program.signature.parameters)
    (expected,) = client.compile(program)(x, y)
    mesh = Mesh.of({"x": 2, "y": 2})
    shardings = [Sharding.of(mesh, spec, 4) for spec in (left, right)]
    executable = ShardedExecutable(client, shard(program, mesh, shardings, [None]))
    arguments = [
        ShardedBuffer.put(client, data, sharding)
        for data, sharding in zip((x, y), shardings, strict=True)
    ]
    (found,) = executable.execute(arguments)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)
