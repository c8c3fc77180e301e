"""Groups in the batch of a convolution, as groups of features."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge.stablehlo.sharding.groups import without_batch_groups

F32 = dtypes.of("float32")
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
    found = without_batch_groups(program)
    assert found is not program
    assert without_batch_groups(found) is found
    rng = np.random.default_rng(0)
    arguments = [
        rng.random(parameter.type.shape, np.float32) for parameter in program.signature.parameters
    ]
    (expected,), (result,) = (client.compile(one)(*arguments) for one in (program, found))
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-5)


def test_what_has_none_stays() -> None:
    program = convolution(("NC01", "OI01"), 1)
    assert without_batch_groups(program) is program
