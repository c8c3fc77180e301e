"""Products of few rows by the custom call: numbers, which products are calls, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.jax_interop import torch_op
from pjrt_bridge.registry.targets import for_client, kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import thin_products
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.thin_products import (
    AVX2,
    AVX512,
    AVX512_BF16,
    PORTABLE,
    TARGET,
    multiply,
    swapped,
)
from tests.extent import examples
from tests.plugins import run_python

FLOAT32, BFLOAT16, INT8 = map(dtypes.of, ("float32", "bfloat16", "int8"))
FLOATS = (FLOAT32, BFLOAT16)


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert thin_products.can_multiply_thin(client)


def numbers(rng: np.random.Generator, type: TensorType) -> Any:
    """Such that sums of products of them are exact."""
    found = rng.integers(-4, 5, type.shape).astype(np.float32)
    if type.dtype.is_float:
        for special in (np.nan, np.inf, -np.inf, -0.0):
            found[rng.random(type.shape) < 0.002] = special
    return found.astype(type.dtype.numpy)


def portable(x: TensorType, weights: TensorType, result: dtypes.DType, turned: bool) -> Program:
    """The same in StableHLO, summed in float32."""
    builder = Builder([x, weights])
    left, right = (convert(builder, side, FLOAT32) for side in builder.parameters)
    right = builder.transpose(right, (0, 2, 1)) if turned else right
    product = Kernels().product(builder, left, right, accumulator=FLOAT32, dtype=result)
    return builder.finish([product])


SIZES = st.one_of(st.integers(0, 20), st.integers(21, 200), st.sampled_from([64, 128, 256]))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(0, 3),
    st.one_of(st.integers(0, 15), st.integers(16, 50)),
    SIZES,
    SIZES,
    st.sampled_from(FLOATS),
    st.sampled_from([FLOAT32, BFLOAT16, INT8]),
    st.sampled_from(FLOATS),
    st.booleans(),
    st.sampled_from([PORTABLE, AVX2, AVX512, AVX512_BF16]),
    st.integers(0, 99),
)
def test_it_is_the_product(
    client: Client,
    batches: int,
    rows: int,
    inner: int,
    columns: int,
    x_dtype: dtypes.DType,
    weight_dtype: dtypes.DType,
    dtype: dtypes.DType,
    turned: bool,
    vectors: int,
    seed: int,
) -> None:
    x = TensorType((batches, rows, inner), x_dtype)
    sizes = (columns, inner) if turned else (inner, columns)
    weights = TensorType((batches, *sizes), weight_dtype)
    builder = Builder([x, weights])
    product = multiply(builder, *builder.parameters, dtype, transposed=turned, vectors=vectors)
    rng = np.random.default_rng(seed)
    arrays = [numbers(rng, x), numbers(rng, weights)]
    (found,) = client.compile(builder.finish([product]))(*arrays)
    expected: Any = np.zeros((batches, rows, columns), np.float32)
    if inner:
        # The interpreter takes no sums over nothing.
        (expected,) = evaluate(portable(x, weights, dtype, turned), *arrays)
    left, right = (np.asarray(side).astype(np.float64) for side in (found, expected))
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("rows", [1, 11])
@pytest.mark.parametrize("turned", [True, False])
def test_large_ones_are_divided_among_threads(client: Client, rows: int, turned: bool) -> None:
    x = TensorType((1, rows, 300), BFLOAT16)
    weights = TensorType((1, 5000, 300) if turned else (1, 300, 5000), BFLOAT16)
    builder = Builder([x, weights])
    product = multiply(builder, *builder.parameters, FLOAT32, transposed=turned)
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, x), numbers(rng, weights)]
    (found,) = client.compile(builder.finish([product]))(*arrays)
    left, right = (array.astype(np.float32) for array in arrays)
    with np.errstate(invalid="ignore"):
        expected = left @ (right.transpose(0, 2, 1) if turned else right)
    np.testing.assert_array_equal(np.asarray(found), expected)


def test_what_is_rounded_is_a_nan_or_nearest(client: Client) -> None:
    """A NaN whose bits are the last ones would round to an infinity."""
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x3F808000, 0x3F818000, 0x7F7FFFFF], np.uint32)
    x = bits.view(np.float32).reshape(5, 1, 1)
    builder = Builder([TensorType(x.shape, FLOAT32), TensorType(x.shape, FLOAT32)])
    product = multiply(builder, *builder.parameters, BFLOAT16, transposed=False)
    (found,) = client.compile(builder.finish([product]))(x, np.ones_like(x))
    expected = [np.nan, np.nan, 1.0, 1.015625, np.inf]
    np.testing.assert_array_equal(np.asarray(found).astype(np.float32).ravel(), expected)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As weight-only quantization writes it."""
    return functional.linear(x, weight.to(x.dtype)) * 0.5


def in_order(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.reshape(256, 96).to(x.dtype)


CASES = {
    "one row": (linear, (1, 256), torch.bfloat16, torch.bfloat16, True),
    "rows of several tokens": (linear, (3, 5, 256), torch.bfloat16, torch.bfloat16, True),
    "int8": (scaled, (4, 256), torch.bfloat16, torch.int8, True),
    "int8 by float32": (scaled, (4, 256), torch.float32, torch.int8, True),
    "bfloat16 by float32": (scaled, (4, 256), torch.float32, torch.bfloat16, True),
    "weights in the order of the product": (in_order, (4, 256), torch.bfloat16, torch.int8, True),
    "float32": (linear, (4, 256), torch.float32, torch.float32, True),
    "float32 in the same order": (in_order, (100, 256), torch.float32, torch.float32, False),
    "the same of a small program": (in_order, (4, 256), torch.float32, torch.float32, True),
    "many rows": (linear, (16, 256), torch.bfloat16, torch.bfloat16, False),
    "few weights": (linear, (1, 8), torch.bfloat16, torch.bfloat16, False),
    "few weights of a small program": (linear, (20, 24), torch.float32, torch.float32, True),
}


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the weights of the calls that were written."""
    found: list[tuple[int, ...]] = []

    def noting(b: Builder, x: Any, weights: Any, dtype: Any, **how: Any) -> Any:
        found.append(weights.shape)
        return multiply(b, x, weights, dtype, **how)

    monkeypatch.setattr(thin_products, "multiply", noting)
    return found


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
def test_which_products_of_torch_are_calls(name: str, multiplied: list[tuple[int, ...]]) -> None:
    function, shape, dtype, weight_dtype, calls = CASES[name]
    x = torch.randn(shape).to(dtype)
    weight = (torch.randn(96, shape[-1]) * 4).to(weight_dtype)
    with torch.no_grad():
        found = torch.compile(function, backend="pjrt")(x, weight)
        expected = function(x.float(), weight.float())
    # Whether it lowers is asked before it is written.
    assert bool(multiplied) == calls
    largest = float(expected.abs().max())
    tolerance = 2.0**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=tolerance * largest)


@pytest.mark.usefixtures("fresh")
def test_products_that_jax_wrote(multiplied: list[tuple[int, ...]]) -> None:
    def layer(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.tanh(x @ weight.astype(x.dtype)) * 2

    x, weight = torch.ones(2, 256).bfloat16(), torch.randint(-1, 2, (256, 96)).to(torch.int8)
    operator = torch_op(layer)
    found = torch.compile(lambda *given: operator(*given), backend="pjrt")(x, weight)
    expected = torch.tanh(x.float() @ weight.float()) * 2
    torch.testing.assert_close(found.float(), expected, rtol=2.0**-7, atol=0)
    assert set(multiplied) == {(1, 256, 96)}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
def test_each_of_a_few_steps_of_a_recurrent_layer(
    layer: type[torch.nn.RNNBase], multiplied: list[tuple[int, ...]]
) -> None:
    """Its product with the state has few rows; more steps are one call (`recurrences.py`)."""
    model, x = layer(64, 128), torch.randn(3, 3, 64)
    with torch.no_grad():
        found, _ = torch.compile(model, backend="pjrt")(x)
        expected, _ = model(x)
    torch.testing.assert_close(found, expected)
    gates = {torch.nn.GRU: 3, torch.nn.LSTM: 4, torch.nn.RNN: 1}[layer]
    assert (1, gates * 128, 128) in multiplied


def test_where_the_call_was_slower_it_is_not_made(client: Client) -> None:
    class Slower(XlaKernels):
        can_multiply_thin = True

        def pays(self, load: Any, dtype: dtypes.DType) -> bool:
            return load.size < 256 * 256

    for columns in (128, 256):
        builder = Builder([TensorType((1, 256), BFLOAT16), TensorType((256, columns), BFLOAT16)])
        product = Slower().product(
            builder, *builder.parameters, accumulator=FLOAT32, dtype=BFLOAT16
        )
        assert (TARGET in builder.finish([product]).text) == (columns == 128)


@pytest.mark.parametrize(("inner", "turned"), [(32, True), (32, False), (64, True)])
def test_short_sums_along_weights_are_left(inner: int, turned: bool) -> None:
    kernels = XlaKernels()
    kernels.can_multiply_thin = True
    sizes = (1024, inner) if turned else (inner, 1024)
    builder = Builder([TensorType((8, inner), BFLOAT16), TensorType(sizes, BFLOAT16)])
    x, y = builder.parameters
    y = builder.transpose(y, (1, 0)) if turned else y
    product = kernels.product(builder, x, y, accumulator=FLOAT32, dtype=BFLOAT16)
    assert (TARGET in builder.finish([product]).text) == (inner == 64 or not turned)


@pytest.mark.parametrize(("inner", "is_turned"), [(8, True), (32, False)])
def test_weights_of_short_sums_are_turned_in_small_programs(
    client: Client, inner: int, is_turned: bool
) -> None:
    kernels = XlaKernels()
    kernels.can_multiply_thin = True
    x, w = (np.random.default_rng(0).random((64, inner), np.float32) for _ in range(2))
    builder = Builder([TensorType(x.shape, FLOAT32), TensorType(w.shape, FLOAT32)])
    left, right = builder.parameters
    right = builder.transpose(right, (1, 0))
    product = kernels.small_product(builder, left, right, accumulator=FLOAT32, dtype=FLOAT32)
    assert product is not None
    program = builder.finish([product])
    assert ("dense<[1, 3]>" not in program.text) == is_turned
    found = client.compile(program)(x, w)[0].to_numpy()
    np.testing.assert_allclose(found, x @ w.T, rtol=1e-5)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(40, 10), (10, 40), (12, 14), (40, 1)])
def test_small_products_of_few_columns_are_those_of_transposed_sides(
    client: Client, rows: int, columns: int, turned: bool, dtype: dtypes.DType
) -> None:
    kernels = XlaKernels()
    kernels.can_multiply_thin = True
    random = np.random.default_rng(0)
    x, y = (random.integers(-4, 5, (2, *size)) for size in ((rows, 32), (32, columns)))
    given = y.swapaxes(1, 2) if turned else y
    arrays = [array.astype(dtype.numpy) for array in (x, given)]
    builder = Builder([TensorType(array.shape, dtype) for array in arrays])
    left, right = builder.parameters
    right = builder.transpose(right, (0, 2, 1)) if turned else right
    product = kernels.small_product(builder, left, right, accumulator=FLOAT32, dtype=FLOAT32)
    assert product is not None
    program = builder.finish([product])
    is_swapped = f"-> tensor<2x{columns}x{rows}xf32>" in program.text
    assert is_swapped == (columns < min(rows, 16))
    found = client.compile(program)(*arrays)[0].to_numpy()
    np.testing.assert_array_equal(found, x @ y)


@pytest.mark.parametrize(
    ("shape", "is_call"),
    [
        ((256, 256, 8), True),
        ((2, 300, 270, 2), True),
        ((256, 256, 9), False),
        ((256, 256, 1), False),
        ((256, 255, 8), False),
        ((255, 256, 8), False),
    ],
)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("turned", [True, False])
def test_long_products_of_few_columns_are_those_of_transposed_sides(
    client: Client, shape: tuple[int, ...], is_call: bool, dtype: dtypes.DType, turned: bool
) -> None:
    kernels = XlaKernels()
    kernels.can_multiply_thin = True
    *batch, rows, inner, columns = shape
    random = np.random.default_rng(0)
    x, y = (random.integers(-4, 5, (*batch, *size)) for size in ((rows, inner), (inner, columns)))
    given = y.swapaxes(-1, -2) if turned else y
    arrays = [array.astype(dtype.numpy) for array in (x, given)]
    builder = Builder([TensorType(array.shape, dtype) for array in arrays])
    left, right = builder.parameters
    right = builder.transpose(right, swapped(right.rank)) if turned else right
    product = kernels.product(builder, left, right, accumulator=FLOAT32, dtype=FLOAT32)
    program = builder.finish([product])
    assert (TARGET in program.text) == is_call
    found = client.compile(program)(*arrays)[0].to_numpy()
    np.testing.assert_array_equal(found, x @ y)


@pytest.mark.parametrize("batch", [64, 512])
@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("is_moved", [True, False])
@pytest.mark.parametrize("size", [8, 32])
def test_many_products_with_vectors_are_left_to_the_compiler(
    batch: int, is_left: bool, is_moved: bool, size: int
) -> None:
    """And so are short ones, where the matrices do not lie one behind the other: as sums."""
    kernels = XlaKernels()
    kernels.can_multiply_thin = True
    matrices, vectors = (batch, size, size), (batch, 1, size) if is_left else (batch, size, 1)
    order = (1, 0, 2) if is_moved else (0, 1, 2)
    shape = tuple(matrices[dim] for dim in order)
    builder = Builder([TensorType(shape, FLOAT32), TensorType(vectors, FLOAT32)])
    matrix, vector = builder.parameters
    matrix = builder.transpose(matrix, order) if is_moved else matrix
    sides = (vector, matrix) if is_left else (matrix, vector)
    found = kernels.small_product(builder, *sides, accumulator=FLOAT32, dtype=FLOAT32)
    assert (found is None) == (batch == 512 or (is_moved and size == 8))


def test_programs_for_other_plugins_have_none() -> None:
    builder = Builder([TensorType((1, 256), BFLOAT16), TensorType((256, 256), BFLOAT16)])
    product = XlaKernels().product(
        builder, *builder.parameters, accumulator=FLOAT32, dtype=BFLOAT16
    )
    assert TARGET not in builder.finish([product]).text


WITHOUT_TORCH = """
import sys
from pathlib import Path
from pjrt_bridge.registry import client
from pjrt_bridge.registry.targets import for_client
from pjrt_bridge.stablehlo import Program
import ml_dtypes, numpy as np

cpu = client("cpu")
program = for_client(Program.from_text(Path(sys.argv[1]).read_text()), cpu)
found = cpu.compile(program)(np.ones((1, 256), ml_dtypes.bfloat16), np.ones((96, 256), np.int8))
print(np.asarray(found[0]).min(), "pjrt_bridge.thin" in program.text, "torch" in sys.modules)
"""

PROGRAM = """
func.func @main(%x: tensor<1x256xbf16>, %w: tensor<96x256xi8>) -> tensor<1x96xbf16> {
  %0 = stablehlo.convert %w : (tensor<96x256xi8>) -> tensor<96x256xbf16>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [1]
    : (tensor<1x256xbf16>, tensor<96x256xbf16>) -> tensor<1x96xbf16>
  return %1 : tensor<1x96xbf16>
}
"""


def test_a_process_without_torch_makes_the_call(tmp_path: Path) -> None:
    (tmp_path / "program.mlir").write_text(PROGRAM)
    assert run_python(WITHOUT_TORCH, str(tmp_path / "program.mlir")) == "256 True False"


def test_files_get_it_too(client: Client) -> None:
    assert TARGET in for_client(Program.from_text(PROGRAM), client).text


def call_of(how: Any, *types: TensorType) -> Program:
    builder = Builder(types[:-1])
    config = {} if how is None else {"how": how}
    return builder.finish(
        builder.custom_call(TARGET, builder.parameters, types[-1:], backend_config=config)
    )


X, W, Y = (TensorType(shape, FLOAT32) for shape in ((1, 2, 3), (1, 3, 4), (1, 2, 4)))
IN_ORDER = np.array([False, AVX512], np.int64)
REFUSED: dict[str, tuple[Any, Sequence[TensorType], str]] = {
    "no attribute": (None, (X, W, Y), "not those that the bridge writes"),
    "one number": (np.array([0], np.int64), (X, W, Y), "not those that the bridge writes"),
    "other integers": (np.array([0, 2], np.int32), (X, W, Y), "not those that the bridge writes"),
    "unknown vectors": (np.array([0, 4], np.int64), (X, W, Y), "not those that the bridge writes"),
    "no vectors": (np.array([0, -1], np.int64), (X, W, Y), "not those that the bridge writes"),
    "one operand": (IN_ORDER, (X, Y), "two operands and one result"),
    "other weights": (IN_ORDER, (X, TensorType(W.shape, dtypes.of("int32")), Y), "element types"),
    "another result": (IN_ORDER, (X, W, TensorType(Y.shape, INT8)), "element types"),
    "transposed": (np.array([1, 2], np.int64), (X, W, Y), "do not fit each other"),
    "another rank": (IN_ORDER, (TensorType((2, 3), FLOAT32), W, Y), "do not fit each other"),
    "another batch": (IN_ORDER, (X, TensorType((2, 3, 4), FLOAT32), Y), "do not fit each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    how, types, reason = REFUSED[name]
    executable = client.compile(call_of(how, *types))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types[:-1]]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_multiply_thin
