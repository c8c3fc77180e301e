"""Reductions of expressions by the custom call: numbers, which ones are calls, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernel_attributes import (
    Expression,
    ExpressionRead,
    ExpressionResult,
    ExpressionStep,
)
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import reduced_expressions
from pjrt_bridge_cpu.expressions import AVX2, AVX512, OPERATIONS, PORTABLE
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.reduced_expressions import HOWS, LEAST, TARGET, reduce
from tests.cpu.helpers import emitted
from tests.extent import examples
from tests.stablehlo.patterns.computed import computed

FLOAT32, BFLOAT16, BOOL = map(dtypes.of, ("float32", "bfloat16", "bool"))
VECTORS = (PORTABLE, AVX2, AVX512)
NUMPY: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}
Sizes = tuple[int, int, int]
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert reduced_expressions.can_reduce(client)


def called(
    client: Client,
    expression: Expression,
    how: Any,
    sizes: Sizes,
    arrays: Sequence[Any],
    vectors: int = AVX512,
) -> Any:
    b = Builder([TensorType(item.shape, dtypes.of(str(item.dtype))) for item in arrays])
    result = reduce(b, expression, how, sizes, b.parameters, vectors=vectors)
    assert result is not None
    return np.asarray(client.compile(b.finish([result]))(*arrays)[0])


def whole(x: Any) -> Expression:
    read = ExpressionRead(0, ((x.size, 1),))
    return Expression((ExpressionStep("read"),), (read,), (ExpressionResult(0, x.shape, FLOAT32),))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from([1, 2, 3, 40]),
    st.sampled_from([1, 2, 31, 33, 500, 513, 1025]),
    st.sampled_from([1, 2, 7, 64, 513, 1030]),
    st.sampled_from(HOWS),
    st.sampled_from([FLOAT32, BFLOAT16, BOOL]),
    st.sampled_from(VECTORS),
)
def test_the_numbers_are_those_of_numpy(
    client: Client, outer: int, length: int, inner: int, how: str, dtype: Any, vectors: int
) -> None:
    """Of a product of an array and one that is repeated along what is reduced."""
    if outer * length * inner > 200_000:
        outer = 1
    rng = np.random.default_rng(0)
    x = rng.normal(0, 9, (outer, length, inner)).astype(dtype.numpy)
    scale = rng.normal(0, 9, (outer, inner)).astype(np.float32)
    steps = (
        ExpressionStep("read"),
        ExpressionStep("read", number=1),
        ExpressionStep("multiply", (0, 1)),
    )
    reads = (
        ExpressionRead(0, ((x.size, 1),)),
        ExpressionRead(0, ((outer, inner), (length, 0), (inner, 1))),
    )
    expression = Expression(steps, reads, (ExpressionResult(2, x.shape, FLOAT32),))
    found = called(client, expression, how, x.shape, [x, scale], vectors)
    products = computed(expression, [x, scale])
    expected = NUMPY[how](products, axis=1).reshape(-1)
    size = np.abs(products).max() * math.sqrt(length)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * size)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "shape", [(3, 100_000, 1), (1, 1_000_000, 1), (1, 70_000, 9), (5000, 60, 1), (1, 300, 3000)]
)
def test_large_ones_are_divided_among_threads(client: Client, shape: Sizes, how: str) -> None:
    x = np.random.default_rng(0).normal(1, 1, shape).astype(np.float32)
    found = called(client, whole(x), how, shape, [x])
    expected = NUMPY[how](x.astype(np.float64), axis=1).reshape(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5000, 1), (9, 70, 1), (2, 300, 5), (1, 300, 1500)])
@pytest.mark.parametrize("how", ["max", "min"])
def test_nan_wins(client: Client, shape: Sizes, how: str) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[0, 37, 0] = np.nan
    found = called(client, whole(x), how, shape, [x])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x).any(1).reshape(-1))


def test_infinities_are_summed(client: Client) -> None:
    x = np.ones((1, 5000, 1), np.float32)
    x[0, 9] = np.inf
    assert called(client, whole(x), "sum", x.shape, [x]) == [np.inf]
    x[0, 4000] = -np.inf
    assert np.isnan(called(client, whole(x), "sum", x.shape, [x])).all()


def test_sums_of_many_are_exact(client: Client) -> None:
    x = np.full((1, 3_000_000, 1), 0.1, np.float32)
    exact = np.float64(np.float32(0.1)) * x.size
    for shape in (x.shape, (1, 1_000_000, 3)):
        found = called(client, whole(x.reshape(shape)), "sum", shape, [x.reshape(shape)])
        np.testing.assert_allclose(found, exact / shape[2], rtol=1e-6)


CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "a sum": (lambda x: x.sum(), 1),
    "rows": (lambda x: (x * x).sum(-1), 1),
    "columns": (lambda x: x.exp().sum(0), 1),
    "in the middle": (lambda x: x.view(40, 20, 30).amax(1), 1),
    "a variance": (lambda x: x.var(0), 2),
    "log of a sum of exponentials": (lambda x: x.logsumexp(1), 2),
    "sides": (lambda x: x.view(8, 5, 20, 30).sum((0, 2, 3)), 1),
    "a transposed one": (lambda x: (x.t() * 2).sum(0), 1),
    "channels last": (
        lambda x: (x.view(8, 5, 20, 30).permute(0, 3, 1, 2) + 1).sum((0, 2, 3)),
        1,
    ),
    "products": (lambda x: x.prod(0), 0),
    "64 bits": (lambda x: x.double().sum(), 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_which_functions_of_torch_are_calls(name: str) -> None:
    function, count = CALLS[name]
    x = torch.randn(800, 30)
    assert emitted(function, x).count(f"@{TARGET}") == count
    found = torch.compile(function, backend="pjrt")(x)
    torch.testing.assert_close(found, function(x), rtol=1e-5, atol=1e-4)


def test_small_ones_are_loops() -> None:
    assert TARGET not in emitted(lambda x: x.sum(), torch.randn(LEAST - 1))
    assert TARGET in emitted(lambda x: x.sum(), torch.randn(LEAST))


@pytest.mark.parametrize(
    ("shape", "is_call"), [((900, 23), False), ((900, 24), True), ((900, 8, 63), False)]
)
def test_narrow_ones_are_loops(shape: tuple[int, ...], is_call: bool) -> None:
    assert (TARGET in emitted(lambda x: x.sum(1), torch.randn(shape))) == is_call


def test_programs_for_other_plugins_have_none() -> None:
    x = np.zeros((800, 30), np.float32)
    b = Builder([TensorType(x.shape, FLOAT32)])
    kernels = XlaKernels()
    assert not kernels.reduces_last("sum", b.parameters[0])
    assert kernels.reduced_expression(b, whole(x), "sum", (1, 800, 30), b.parameters) is None


READ, WRITE = OPERATIONS.index("read"), OPERATIONS.index("write")
WHOLE: dict[str, Any] = {
    "numbers": np.array([1.0], np.float64),
    "reads": np.array([0, 1, 24, 1, *[0] * 10], np.int64),
    "steps": np.array([READ, 0, 0, 0, 0], np.int64),
    "vectors": np.array([AVX512], np.int64),
    "reduced": np.array([2, 3, 4, 0], np.int64),
}
X, RESULT = TensorType((2, 3, 4), FLOAT32), TensorType((2, 4), FLOAT32)
UNWRITTEN = "not those that the bridge writes"
REFUSED: dict[str, tuple[dict[str, Any], TensorType, str]] = {
    "no sizes": ({"reduced": np.array([2, 3, 4], np.int64)}, RESULT, UNWRITTEN),
    "nothing to reduce": ({"reduced": np.array([2, 0, 4, 0], np.int64)}, RESULT, UNWRITTEN),
    "sizes that overflow": (
        {"reduced": np.array([1 << 40, 1 << 40, 1, 0], np.int64)},
        RESULT,
        UNWRITTEN,
    ),
    "an unknown reduction": ({"reduced": np.array([2, 3, 4, 3], np.int64)}, RESULT, UNWRITTEN),
    "more than it reads": ({"reduced": np.array([2, 4, 4, 0], np.int64)}, RESULT, "24 elements"),
    "another result": ({}, TensorType((2, 3), FLOAT32), "elements that are left"),
    "truths": ({}, TensorType((2, 4), BOOL), "elements that are left"),
    "no steps": ({"steps": np.zeros(0, np.int64)}, RESULT, "not those|elements that are left"),
    "a step that writes": (
        {"steps": np.array([READ, 0, 0, 0, 0, WRITE, 0, 0, 0, 0], np.int64)},
        RESULT,
        UNWRITTEN,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    changed, result, reason = REFUSED[name]
    b = Builder([X])
    config = {**WHOLE, **changed}
    (found,) = b.custom_call(TARGET, b.parameters, [result], backend_config=config)
    executable = client.compile(b.finish([found]))
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(np.zeros(X.shape, np.float32))[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_reduce
