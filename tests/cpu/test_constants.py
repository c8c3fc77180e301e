"""What XLA's CPU compiler computes of constants is what its programs compute of arguments."""

import numpy as np
import pytest

from pjrt_bridge import Client, dtypes
from pjrt_bridge.stablehlo import Builder, TensorType
from tests.stablehlo.builder.test_elementwise import BINARY, DIRECTIONS, UNARY

EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 0.5, 1e30, -1e-30])
PAIRS = [grid.ravel() for grid in np.meshgrid(EDGES, EDGES)]


def computed(client: Client, name: str, arrays: list[np.ndarray], *, known: bool) -> np.ndarray:
    types = [TensorType(array.shape, dtypes.from_numpy(array.dtype)) for array in arrays]
    builder = Builder([] if known else types)
    given = [builder.constant(array) for array in arrays] if known else builder.parameters
    program = builder.finish([getattr(builder, name)(*given)])
    (found,) = client.compile(program)(*([] if known else arrays))
    return found.to_numpy()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY, "divide", "remainder", "atan2"])
def test_constants_are_computed_as_arguments_are(client: Client, name: str, dtype: str) -> None:
    arrays = [EDGES] if name in UNARY else PAIRS
    with np.errstate(all="ignore"):
        given = [array.astype(dtype) for array in arrays]
    of_constants, of_arguments = (
        computed(client, name, given, known=known) for known in (True, False)
    )
    tolerance = 16 * np.finfo(dtype).eps
    np.testing.assert_allclose(of_constants, of_arguments, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("name", ["divide", "remainder"])
def test_divisions_that_trap_do_not_end_the_process(client: Client, name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    left = np.array([0, 7, limits.min, limits.min, limits.max], dtype)
    right = np.array([0, 0, 0, -1 if limits.min else 1, 2], np.int64).astype(dtype)
    of_constants, of_arguments = (
        computed(client, name, [left, right], known=known) for known in (True, False)
    )
    np.testing.assert_array_equal(of_constants, of_arguments)
    by_zero = np.array(-1).astype(dtype) if name == "divide" else left[:3]
    np.testing.assert_array_equal(of_constants[:3], np.broadcast_to(by_zero, 3))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
def test_signed_constants_are_compared_as_signed_without_a_stated_type(
    client: Client, element: str, direction: str
) -> None:
    """TensorFlow's programs state no type of comparison."""
    tensor = f"tensor<3x{element}>"
    (found,) = client.compile(f"""
        func.func @main() -> tensor<3xi1> {{
          %0 = stablehlo.constant dense<[5, -7, 0]> : {tensor}
          %1 = stablehlo.constant dense<0> : {tensor}
          %2 = stablehlo.compare {direction}, %0, %1 : ({tensor}, {tensor}) -> tensor<3xi1>
          return %2 : tensor<3xi1>
        }}""")()
    np.testing.assert_array_equal(found.to_numpy(), DIRECTIONS[direction]([5, -7, 0], 0))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_of_no_elements_wins(client: Client, name: str) -> None:
    """The mean of nothing is computed by the compiler, too, though it is one of an argument."""
    builder = Builder([TensorType((0,), dtypes.of("float32"))])
    (nothing,) = builder.parameters
    zero = builder.constant(np.zeros((), np.float32))
    mean = builder.divide(builder.reduce_sum(nothing, (0,)), zero)
    program = builder.finish([getattr(builder, name)(mean, zero)])
    (found,) = client.compile(program)(np.zeros(0, np.float32))
    assert np.isnan(found.to_numpy())
