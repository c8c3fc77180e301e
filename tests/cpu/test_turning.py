"""Products with transposed weights: where they are turned round, and that they give the same."""

import numpy as np
import pytest

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder import Builder
from pjrt_bridge.stablehlo.interpreter import evaluate
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.turning import TurnedProducts


def program(x, y, dtype="float32", permutation=(1, 0)):
    kind = dtypes.of(dtype)
    wide = dtypes.of("float32") if kind.bits < 32 else kind
    builder = Builder([TensorType(x, kind), TensorType(y, kind)])
    left, right = builder.parameters
    if permutation is not None:
        right = builder.transpose(right, permutation)
    found = TurnedProducts().product(builder, left, right, wide=wide, dtype=wide)
    return builder.finish([found])


@pytest.mark.parametrize("rows", [2, 17, 64])
@pytest.mark.parametrize("sides", [(256, 256), (300, 257), (200, 600)])
def test_a_turned_product_is_the_product(rows, sides):
    features, depth = sides
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, depth), np.float32)
    y = random.standard_normal((features, depth), np.float32)
    written = program(x.shape, y.shape)
    assert "inlineable" in written.text
    expected = x.astype(np.float64) @ y.T.astype(np.float64)
    (found,) = pjrt_bridge.client("cpu").compile(written)(x, y)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=5e-4)
    if rows == 2:
        (told,) = evaluate(written, x, y)
        np.testing.assert_allclose(told, expected, rtol=0, atol=5e-4)


@pytest.mark.parametrize(
    ("x", "y", "dtype", "permutation", "turned"),
    [
        ((64, 256), (256, 256), "float32", (1, 0), True),
        ((64, 256), (256, 256), "float64", (1, 0), True),
        ((65, 256), (256, 256), "float32", (1, 0), False),
        ((1, 256), (256, 256), "float32", (1, 0), False),
        ((2, 128), (128, 128), "float32", (1, 0), False),
        ((64, 256), (256, 256), "float32", None, False),
        ((64, 256), (256, 256), "float32", (0, 1), False),
        ((64, 256), (256, 256), "bfloat16", (1, 0), False),
        ((2, 64, 256), (2, 256, 256), "float32", (0, 2, 1), False),
    ],
)
def test_what_is_turned(x, y, dtype, permutation, turned):
    assert ("inlineable" in program(x, y, dtype, permutation).text) == turned


def test_an_infinity_in_a_weight_stays_in_its_column():
    x, y = np.zeros((4, 256), np.float32), np.ones((256, 256), np.float32)
    y[7, 3] = np.inf
    (found,) = pjrt_bridge.client("cpu").compile(program(x.shape, y.shape))(x, y)
    broken = np.isnan(np.asarray(found))
    assert broken[:, 7].all()
    assert broken.sum() == 4
