"""Norms of rows by the custom call: numbers, which norms are calls, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Norm
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import norms
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.norms import AVX2, AVX512, PORTABLE, TARGET, normalize
from tests.extent import examples

FLOAT32, BFLOAT16, FLOAT64 = map(dtypes.of, ("float32", "bfloat16", "float64"))
EPS = 1e-5


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert norms.can_normalize(client)


def exact(rows: int, length: int, centered: bool) -> Program:
    """The same in StableHLO, in float64."""
    b = Builder([TensorType((rows, length), FLOAT64)] * 3)
    value, scale, shift = b.parameters

    def mean(of: Value) -> Value:
        return b.divide(b.reduce_sum(of, (1,)), b.full((rows,), length, FLOAT64))

    def spread(of: Value) -> Value:
        return b.broadcast_in_dim(of, (rows, length), (0,))

    center = mean(value) if centered else b.full((rows,), 0.0, FLOAT64)
    beyond = b.subtract(value, spread(center))
    variance = mean(b.multiply(beyond, beyond))
    rstd = b.rsqrt(b.add(variance, b.full((rows,), EPS, FLOAT64)))
    normal = b.multiply(beyond, spread(rstd))
    return b.finish([b.add(b.multiply(normal, scale), shift), center, rstd])


def repeated(side: Any, rows: int, length: int) -> Any:
    """Sets of weights, as each element of the rows has one."""
    sets, count = side.shape
    each = np.repeat(side, length // count if count else 0, 1)
    return np.tile(each, (rows // sets, 1)).astype(np.float64)


def called(
    client: Client,
    arrays: Sequence[Any],
    dtype: dtypes.DType,
    centered: bool,
    vectors: int = AVX512,
    *,
    rounded: bool = False,
) -> list[Any]:
    builder = Builder([TensorType(item.shape, dtypes.of(str(item.dtype))) for item in arrays])
    x, weight, bias = builder.parameters
    how = {"centered": centered, "rounded": rounded, "vectors": vectors}
    results = normalize(builder, x, weight, bias, eps=EPS, dtype=dtype, **how)
    executable = client.compile(builder.finish(list(results)))
    return [np.asarray(item).astype(np.float64) for item in executable(*arrays)]


SIZES = st.one_of(st.integers(0, 20), st.integers(60, 200), st.sampled_from([64, 4096, 4160, 9001]))


@settings(max_examples=examples(120), deadline=None)
@given(
    st.integers(0, 9),
    SIZES,
    *[st.sampled_from([1, 1, 3, 8])] * 2,
    *[st.sampled_from([FLOAT32, BFLOAT16])] * 4,
    st.booleans(),
    st.sampled_from([PORTABLE, AVX2, AVX512]),
    st.sampled_from([0.0, 1.0, 1e4]),
    st.integers(0, 99),
)
def test_it_is_the_norm(
    client: Client,
    rows: int,
    count: int,
    sets: int,
    side: int,
    x_dtype: dtypes.DType,
    dtype: dtypes.DType,
    weight_dtype: dtypes.DType,
    bias_dtype: dtypes.DType,
    centered: bool,
    vectors: int,
    mean: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    rows, length = rows * sets, count * side
    drawn = rng.standard_normal((rows, length)) * 10.0 ** rng.integers(-3, 4) + mean
    x = drawn.astype(x_dtype.numpy)
    weight, bias = (
        rng.standard_normal((sets, count)).astype(dtype.numpy)
        for dtype in (weight_dtype, bias_dtype)
    )
    y, center, rstd = called(client, [x, weight, bias], dtype, centered, vectors)
    if not rows or not length:
        # The interpreter takes no sums over nothing.
        assert np.isnan([*center[: length or rows], *rstd]).all() or centered is False
        assert y.shape == (rows, length)
        return
    scale, shift = (repeated(item, rows, length) for item in (weight, bias))
    wide = [x.astype(np.float64), scale, shift]
    expected, expected_center, expected_rstd = (
        np.asarray(item) for item in evaluate(exact(rows, length, centered), *wide)
    )
    # The mean is rounded. What is beyond it is off by as much, and the variance by the square.
    unit = 16 * 2.0**-23
    off = unit * np.abs(wide[0]).max(1) * expected_rstd
    spread = unit + off**2
    assert (np.abs(rstd / expected_rstd - 1) <= spread).all()
    np.testing.assert_allclose(center, expected_center, rtol=0, atol=unit * np.abs(wide[0]).max())
    normal = np.abs(wide[0] - expected_center[:, None]) * expected_rstd[:, None]
    error = (off + spread)[:, None] * (1 + normal) * np.abs(scale) + unit * np.abs(shift)
    rounding = 2.0**-8 * np.abs(expected) if dtype == BFLOAT16 else 0
    assert (np.abs(y - expected) <= 2 * error + rounding).all()


SPECIAL: dict[str, Sequence[float]] = {
    "a NaN": [1, np.nan, 2, 3],
    "an infinity": [1, np.inf, 2, 3],
    "both infinities": [-np.inf, np.inf, 2, 3],
    "zeros": [0, -0.0, 0, 0],
    "squares that overflow": [1e30, -1e30, 0, 0],
    "subnormal numbers": [1e-40, 2e-40, 0, 0],
}


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("vectors", [PORTABLE, AVX2, AVX512])
@pytest.mark.parametrize("length", [4, 67, 128])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_numbers_stay_in_their_row(
    client: Client, name: str, length: int, vectors: int, centered: bool
) -> None:
    x = np.ones((3, length), np.float32)
    x[1, -4:] = SPECIAL[name]
    weight, bias = np.ones((1, length), np.float32), np.zeros((1, length), np.float32)
    y, _, rstd = called(client, [x, weight, bias], FLOAT32, centered, vectors)
    # In float32 a square of 1e30 is an infinity, whose reciprocal root is 0.
    sides = (repeated(item, 3, length) for item in (weight, bias))
    wide = [x.astype(np.float64), *sides]
    expected, _, expected_rstd = (
        np.asarray(item) for item in evaluate(exact(3, length, centered), *wide)
    )
    if name == "squares that overflow":
        expected_rstd, expected = expected_rstd.copy(), expected.copy()
        expected_rstd[1], expected[1] = 0, 0
    np.testing.assert_allclose(rstd, expected_rstd, rtol=1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_one_column_is_the_bias(client: Client) -> None:
    x, ones = np.full((5, 1), 3e8, np.float32), np.ones((1, 1), np.float32)
    y, mean, rstd = called(client, [x, ones, 7 * ones], FLOAT32, centered=True)
    np.testing.assert_array_equal(y, 7)
    np.testing.assert_array_equal(mean, np.float64(np.float32(3e8)))
    np.testing.assert_allclose(rstd, EPS**-0.5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("vectors", [PORTABLE, AVX2, AVX512])
@pytest.mark.parametrize("length", [1, 37, 192])
def test_what_is_rounded_before_the_weight(
    client: Client, length: int, vectors: int, dtype: dtypes.DType
) -> None:
    rng = np.random.default_rng(length)
    x = (rng.standard_normal((5, length)) * 7).astype(BFLOAT16.numpy)
    x[2, -1], x[3, 0] = np.nan, np.inf
    weight = rng.standard_normal((1, length)).astype(np.float32)
    bias = np.full((1, length), -0.0, np.float32)
    y, _, rstd = called(client, [x, weight, bias], dtype, False, vectors, rounded=True)
    with np.errstate(invalid="ignore"):
        normal = x.astype(np.float32) * rstd.astype(np.float32)[:, None]
    product = normal.astype(BFLOAT16.numpy).astype(np.float32) * weight
    np.testing.assert_array_equal(y, product.astype(dtype.numpy).astype(np.float64))


def test_large_ones_are_divided_among_threads(client: Client) -> None:
    x = np.random.default_rng(0).standard_normal((3000, 257)).astype(np.float32)
    ones = np.ones((1, 257), np.float32)
    y, _, _ = called(client, [x, ones, ones - 1], FLOAT32, centered=True)
    expected = functional.layer_norm(torch.from_numpy(x), (257,), eps=EPS)
    np.testing.assert_allclose(y, expected.numpy(), atol=1e-5)


@pytest.fixture
def normalized(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the calls that were written."""
    found: list[tuple[int, ...]] = []

    def noting(b: Builder, x: Value, *sides: Value, **how: Any) -> Any:
        found.append(x.shape)
        return normalize(b, x, *sides, **how)

    monkeypatch.setattr(norms, "normalize", noting)
    return found


def layer_norm(x: torch.Tensor, *sides: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], *sides)


def layer_norm_of_images(x: torch.Tensor, *sides: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[1:])


def group_norm(x: torch.Tensor, *sides: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, x.shape[1] // 4, *(side[: x.shape[1]] for side in sides))


def group_norm_of_images(x: torch.Tensor, *sides: torch.Tensor) -> torch.Tensor:
    return group_norm(x.permute(0, 3, 1, 2), *sides)


def instance_norm(x: torch.Tensor, *sides: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, x.shape[1], *(side[: x.shape[1]] for side in sides))


def rms_norm(x: torch.Tensor, *sides: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], *sides)


def rms_norm_of_llama(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


def rms_norm_by_a_root(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS))


CASES = {
    "weight and bias": (layer_norm, (4, 64, 96), 2, torch.float32, (256, 96)),
    "a weight": (layer_norm, (4, 64, 96), 1, torch.float32, (256, 96)),
    "neither": (layer_norm, (4, 64, 96), 0, torch.float32, (256, 96)),
    "bfloat16": (layer_norm, (4, 64, 96), 2, torch.bfloat16, (256, 96)),
    "several dimensions": (layer_norm_of_images, (8, 3, 32, 32), 0, torch.float32, (8, 3072)),
    "group norm": (group_norm, (4, 64, 96), 2, torch.float32, (64, 384)),
    "group norm of images": (group_norm, (4, 64, 4, 72), 2, torch.float32, (64, 1152)),
    "group norm, bfloat16": (group_norm, (4, 64, 96), 2, torch.bfloat16, (64, 384)),
    "group norm, a weight": (group_norm, (4, 64, 96), 1, torch.float32, (64, 384)),
    "group norm, neither": (group_norm, (4, 64, 96), 0, torch.float32, (64, 384)),
    "group norm of each channel": (instance_norm, (4, 64, 96), 2, torch.float32, (256, 96)),
    "group norm, float64": (group_norm, (4, 64, 96), 2, torch.float64, None),
    "group norm, few elements": (group_norm, (1, 4, 9), 2, torch.float32, None),
    "RMS norm": (rms_norm, (4, 64, 96), 1, torch.float32, (256, 96)),
    "RMS norm, bfloat16": (rms_norm, (4, 64, 96), 1, torch.bfloat16, (256, 96)),
    "RMS norm without a weight": (rms_norm, (4, 64, 96), 0, torch.float32, (256, 96)),
    "RMS norm of Llama": (rms_norm_of_llama, (4, 64, 96), 1, torch.bfloat16, (256, 96)),
    "RMS norm by a root": (rms_norm_by_a_root, (4, 64, 96), 1, torch.float32, (256, 96)),
    "RMS norm of a prime length": (rms_norm_of_llama, (2, 64, 131), 1, torch.float32, (128, 131)),
    "RMS norm of rows of one": (rms_norm, (20000, 1), 1, torch.float32, (20000, 1)),
    "RMS norm, float16": (rms_norm_of_llama, (4, 64, 96), 1, torch.float16, None),
    "RMS norm, float64": (rms_norm, (4, 64, 96), 1, torch.float64, None),
    "few elements": (layer_norm, (2, 24), 2, torch.float32, None),
    "float64": (layer_norm, (256, 96), 2, torch.float64, None),
    "float16": (layer_norm, (256, 96), 2, torch.float16, None),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
def test_which_norms_of_torch_are_calls(name: str, normalized: list[tuple[int, ...]]) -> None:
    function, shape, count, dtype, rows = CASES[name]
    x, *sides = (torch.randn(size).to(dtype) for size in (shape, *[shape[-1:]] * count))
    with torch.no_grad():
        found = torch.compile(function, backend="pjrt")(x, *sides)
    # Whether it lowers is asked before it is written.
    assert set(normalized) == ({rows} if rows else set())
    torch.testing.assert_close(found, function(x, *sides))


@pytest.mark.usefixtures("fresh")
def test_channels_last_stay_where_they_are() -> None:
    x, *sides = torch.randn(4, 8, 9, 64), torch.randn(64), torch.randn(64)
    found = torch.compile(group_norm_of_images, backend="pjrt")(x, *sides)
    expected = group_norm_of_images(x, *sides)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


TRAINED = {
    "layer norm": (layer_norm, 2, torch.float32),
    "group norm": (group_norm, 2, torch.float32),
    "group norm, bfloat16": (group_norm, 2, torch.bfloat16),
    "RMS norm": (rms_norm, 1, torch.float32),
    "RMS norm, bfloat16": (rms_norm, 1, torch.bfloat16),
    "RMS norm of Llama": (rms_norm_of_llama, 1, torch.float32),
    "RMS norm of Llama, bfloat16": (rms_norm_of_llama, 1, torch.bfloat16),
    "RMS norm by a root": (rms_norm_by_a_root, 1, torch.float32),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_those_of_the_call(name: str, normalized: list[tuple[int, ...]]) -> None:
    function, count, dtype = TRAINED[name]
    sizes = ((512, 64), *[(64,)] * count)
    values = [torch.randn(size).to(dtype) for size in sizes]

    def gradients(one: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        x, *sides = (value.to(dtype).requires_grad_() for value in values)
        result = one(x, *sides).double().sin().sum()
        return [item.double() for item in torch.autograd.grad(result, (x, *sides))]

    found = gradients(torch.compile(function, backend="pjrt"), dtype)
    assert normalized
    for one, eager, exact in zip(
        found, gradients(function, dtype), gradients(function, torch.float64), strict=True
    ):
        # As near to exact ones as eager's: each rounds where the other one does not.
        assert (one - exact).norm() <= 1.5 * (eager - exact).norm()


@pytest.mark.usefixtures("fresh")
def test_changing_rows_are_calls(normalized: list[tuple[int, ...]]) -> None:
    compiled = torch.compile(rms_norm_of_llama, backend="pjrt")
    weight = torch.randn(256)
    for rows in (100, 130, 171):
        x = torch.randn(rows, 256)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x, weight), rms_norm_of_llama(x, weight))
    assert normalized


@pytest.mark.usefixtures("fresh")
def test_changing_lengths_are_right() -> None:
    compiled = torch.compile(rms_norm_of_llama, backend="pjrt", dynamic=True)
    for length in (100, 130, 171):
        x, weight = torch.randn(200, length), torch.randn(length)
        torch.testing.assert_close(compiled(x, weight), rms_norm_of_llama(x, weight))


def test_programs_for_other_plugins_have_none() -> None:
    builder = Builder([TensorType((256, 96), FLOAT32)])
    how = Norm(1, EPS, is_centered=True, dtype=FLOAT32)
    assert XlaKernels().normalize(builder, builder.parameters[0], None, None, how) is None


def call_of(config: dict[str, Any], types: Sequence[TensorType], operands: int) -> Program:
    builder = Builder(types[:operands])
    results = builder.custom_call(
        TARGET, builder.parameters, types[operands:], backend_config=config
    )
    return builder.finish(list(results))


X, W, S = (TensorType(shape, FLOAT32) for shape in ((2, 3), (1, 3), (2,)))
WHOLE = (X, W, W, X, S, S)
HOW = {"how": np.array([1, 0, AVX512], np.int64), "eps": np.array([EPS], np.float64)}


def with_type(at: int, type: TensorType) -> Sequence[TensorType]:
    return (*WHOLE[:at], type, *WHOLE[at + 1 :])


REFUSED: dict[str, tuple[dict[str, Any], Sequence[TensorType], int, str]] = {
    "no attributes": ({}, WHOLE, 3, "not those that the bridge writes"),
    "no eps": ({"how": HOW["how"]}, WHOLE, 3, "not those that the bridge writes"),
    "eps of another type": (
        {**HOW, "eps": np.array([EPS], np.float32)},
        WHOLE,
        3,
        "not those that the bridge writes",
    ),
    "unknown vectors": (
        {**HOW, "how": np.array([1, 0, 3], np.int64)},
        WHOLE,
        3,
        "not those that the bridge writes",
    ),
    "two operands": (HOW, (X, W, X, S, S), 2, "three operands and three results"),
    "one result": (HOW, (X, W, W, X), 3, "three operands and three results"),
    "integers": (HOW, with_type(0, TensorType((2, 3), dtypes.of("int32"))), 3, "element type 4"),
    "weights of integers": (
        HOW,
        with_type(1, TensorType((1, 3), dtypes.of("int32"))),
        3,
        "expected float32 or bfloat16",
    ),
    "narrow statistics": (HOW, with_type(5, TensorType((2,), BFLOAT16)), 3, r"expected float32 \["),
    "another rank": (HOW, with_type(0, TensorType((1, 2, 3), FLOAT32)), 3, "rank 3, expected 2"),
    "weights of rank 1": (HOW, with_type(1, TensorType((3,), FLOAT32)), 3, "rank 1, expected 2"),
    "other biases": (HOW, with_type(2, TensorType((1, 4), FLOAT32)), 3, "do not fit each other"),
    "weights for other rows": (
        HOW,
        (X, *[TensorType((3, 3), FLOAT32)] * 2, X, S, S),
        3,
        "do not fit each other",
    ),
    "weights for other elements": (
        HOW,
        (X, *[TensorType((1, 2), FLOAT32)] * 2, X, S, S),
        3,
        "do not fit each other",
    ),
    "no weights": (
        HOW,
        (X, *[TensorType((0, 0), FLOAT32)] * 2, X, S, S),
        3,
        "do not fit each other",
    ),
    "another result": (HOW, with_type(3, TensorType((3, 3), FLOAT32)), 3, "do not fit each other"),
    "other statistics": (HOW, with_type(4, TensorType((3,), FLOAT32)), 3, "do not fit each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    config, types, operands, reason = REFUSED[name]
    executable = client.compile(call_of(config, types, operands))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types[:operands]]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_normalize
