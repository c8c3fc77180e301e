"""Elementwise expressions by the custom call: numbers, which loops are calls, refusals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import (
    Expression,
    ExpressionRead,
    ExpressionResult,
    ExpressionStep,
)
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import expressions
from pjrt_bridge_cpu.expressions import AVX2, AVX512, OPERATIONS, PORTABLE, TARGET, compute
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import drawn_floats, last_places
from tests.extent import examples
from tests.stablehlo.patterns.computed import FUNCTIONS, computed

FLOAT32, BFLOAT16, BOOL = map(dtypes.of, ("float32", "bfloat16", "bool"))
VECTORS = (PORTABLE, AVX2, AVX512)
COUNTS = {"select": 3} | dict.fromkeys(
    ("add", "and", "divide", "equal", "less", "less_equal", "maximum", "minimum", "multiply"), 2
)
COUNTS |= dict.fromkeys(("not_equal", "or", "power", "subtract"), 2)
LOGICAL = ("and", "or", "not")


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert expressions.can_compute(client)


def called(
    client: Client, expression: Expression, arrays: Sequence[Any], vectors: int = AVX512
) -> Any:
    types = [TensorType(item.shape, dtypes.of(str(item.dtype))) for item in arrays]
    builder = Builder(types)
    results = compute(builder, expression, builder.parameters, vectors=vectors)
    assert results is not None
    return np.asarray(client.compile(builder.finish(results))(*arrays)[0])


def read(array: Any) -> ExpressionRead:
    return ExpressionRead(0, ((array.size, 1),))


def last(
    steps: Sequence[ExpressionStep], reads: tuple[ExpressionRead, ...], shape: tuple[int, ...]
) -> Expression:
    """The last step in float32."""
    return Expression(tuple(steps), reads, (ExpressionResult(len(steps) - 1, shape, FLOAT32),))


def one(operation: str, *arrays: Any, dtype: DType = FLOAT32) -> Expression:
    """An operation of arrays of one size."""
    count = len(arrays)
    steps = [ExpressionStep("read", number=at) for at in range(count)]
    steps.append(ExpressionStep(operation, tuple(range(count))))
    reads = tuple(read(item) for item in arrays)
    result = ExpressionResult(count, arrays[0].shape, dtype)
    return Expression(tuple(steps), reads, (result,))


NUMBERS = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.5, 0.6249, 0.9277, 3.9, -4.1, 20.0, -20.0, 88.7, -87.0),
        *(1e-30, 1e30, np.inf, -np.inf, np.nan),
    ],
    np.float32,
)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("operation", FUNCTIONS)
def test_each_operation(client: Client, operation: str, vectors: int) -> None:
    rng = np.random.default_rng(0)
    count = COUNTS.get(operation, 1)
    arrays = [
        np.concatenate([rng.permutation(np.repeat(NUMBERS, 20)), rng.normal(0, 9, 2000)])
        for _ in range(count)
    ]
    arrays = [item.astype(np.float32) for item in arrays]
    if operation in LOGICAL:
        arrays = [item > 0 for item in arrays]
    expression = one(operation, *arrays)
    found = called(client, expression, arrays, vectors)
    expected = computed(expression, arrays)
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=4e-7, atol=1e-37)


LAST_PLACES = {
    "cosine": 2,
    "exponential_minus_one": 2,
    "log_plus_one": 3,
    "sine": 2,
}


@pytest.mark.parametrize("operation", LAST_PLACES)
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), vectors=st.sampled_from(VECTORS))
def test_functions_are_right_to_some_last_places(
    client: Client, operation: str, seed: int, vectors: int
) -> None:
    x = drawn_floats(seed)
    expression = one(operation, x)
    found = called(client, expression, [x], vectors)
    with np.errstate(all="ignore"):
        expected = computed(expression, [x])
        rounded = expected.astype(np.float32)
    known = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~known], rounded[~known])
    assert last_places(found[known], expected[known]).max() <= LAST_PLACES[operation]


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("operation", ["sine", "cosine"])
def test_angles_beside_multiples_of_quarter_turns(
    client: Client, operation: str, vectors: int
) -> None:
    turns = np.array([1, 2, 7, 1001, 1 << 20, 1 << 23, 1 << 24, 1 << 27])
    at = (turns * math.pi / 2).astype(np.float32)[:, None]
    x = (at + np.arange(-500, 500, dtype=np.float32) * np.spacing(at)).reshape(-1)
    expression = one(operation, x)
    found = called(client, expression, [x], vectors)
    assert last_places(found, computed(expression, [x])).max() <= 2


@pytest.mark.parametrize("vectors", VECTORS)
def test_powers_of_special_numbers(client: Client, vectors: int) -> None:
    numbers = [0.0, 1.0, 2.0, 0.5, 3.0, np.inf, 1.5, 2.0**24, 2.0**24 - 1, 1e-30, 3e38]
    special = np.array([*numbers, *(-number for number in numbers), np.nan], np.float32)
    x, y = (side.ravel() for side in np.meshgrid(special, special))
    found = called(client, one("power", x, y), [x, y], vectors)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    # Threads may take what is below the normal numbers for zero.
    np.testing.assert_allclose(found, expected, rtol=2.5e-7, atol=np.finfo(np.float32).tiny)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])


def test_powers_of_simple_exponents_are_products(made: list[Expression]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.pow(x, 3) + torch.pow(x.abs(), 0.5) + torch.pow(x, -2)

    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.compile(function, backend="pjrt")(x), function(x))
    assert made
    assert all(step.operation != "power" for found in made for step in found.steps)


@pytest.mark.parametrize("operation", ["maximum", "minimum"])
def test_nan_wins(client: Client, operation: str) -> None:
    x = np.array([np.nan, 1, np.nan], np.float32)
    y = np.array([1, np.nan, np.nan], np.float32)
    assert np.isnan(called(client, one(operation, x, y), [x, y])).all()


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, BOOL], ids=str)
@pytest.mark.parametrize("source", [FLOAT32, BFLOAT16, BOOL], ids=str)
@pytest.mark.parametrize("vectors", VECTORS)
def test_conversions(client: Client, source: DType, dtype: DType, vectors: int) -> None:
    x = np.random.default_rng(0).normal(0, 9, 3000).round(1)
    x[:4] = [0, np.nan, np.inf, -0.0]
    given = x.astype(source.numpy)
    step = ExpressionStep("read")
    expression = Expression((step,), (read(x),), (ExpressionResult(0, x.shape, dtype),))
    found = called(client, expression, [given], vectors)
    expected = given.astype(np.float32).astype(dtype.numpy)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def way(data: st.DataObject, shape: Sequence[int], array: Sequence[int]) -> ExpressionRead:
    """A way to read some elements of an array of so many, as many as a shape has."""
    dims, room = [], math.prod(array) - 1
    for size in shape:
        step = data.draw(st.integers(0, room // max(size - 1, 1))) if size > 1 else 0
        step = data.draw(st.sampled_from([step, min(step, 1)]))
        room -= (size - 1) * step
        dims.append((size, step))
    return ExpressionRead(data.draw(st.integers(0, room)), tuple(dims))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 64, 65]), min_size=1, max_size=4),
    st.lists(st.sampled_from([FLOAT32, BFLOAT16, BOOL]), min_size=1, max_size=4),
    st.sampled_from(VECTORS),
    st.data(),
)
def test_ways_to_read(
    client: Client,
    shape: Sequence[int],
    types: Sequence[DType],
    vectors: int,
    data: st.DataObject,
) -> None:
    if math.prod(shape) > 20_000:
        shape = shape[:2]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 9, data.draw(st.integers(1, 3000))).astype(t.numpy) for t in types]
    reads = tuple(way(data, shape, item.shape) for item in arrays)
    steps = [ExpressionStep("read", number=at) for at in range(len(arrays))]
    for at in range(1, len(arrays)):
        steps.append(ExpressionStep("add", (len(steps) - 1 if at > 1 else 0, at)))
    expression = last(steps, reads, tuple(shape))
    found = called(client, expression, arrays, vectors)
    np.testing.assert_allclose(found, computed(expression, arrays), rtol=1e-5, atol=1e-5)


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.sampled_from(VECTORS))
def test_many_steps(client: Client, data: st.DataObject, vectors: int) -> None:
    """Numbers and sums of products become a part of other steps; registers are used again."""
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 7, 100, 1500]))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size).astype(np.float32) for size in ((rows, columns), columns)]
    reads = (read(arrays[0]), ExpressionRead(0, ((rows, 0), (columns, 1))))
    steps = [ExpressionStep("read", number=at) for at in range(2)]
    steps.append(ExpressionStep("number", number=0.75))
    for _ in range(data.draw(st.integers(1, 20))):
        kind = data.draw(st.sampled_from(["add", "subtract", "multiply", "tanh", "maximum"]))
        recent = st.integers(max(0, len(steps) - 4), len(steps) - 1)
        operands = [data.draw(recent) for _ in range(1 if kind == "tanh" else 2)]
        steps += [ExpressionStep(kind, tuple(operands)), ExpressionStep("tanh", (len(steps),))]
    shape = (rows, columns)
    expression = last(steps, reads, shape)
    found = called(client, expression, arrays, vectors)
    np.testing.assert_allclose(found, computed(expression, arrays), rtol=1e-4, atol=1e-5)


def test_more_values_than_registers_are_left_to_the_compiler() -> None:
    builder = Builder([TensorType((4,), FLOAT32)] * 12)
    steps = [ExpressionStep("read", number=at) for at in range(12)]
    steps += [ExpressionStep("exponential", (at,)) for at in range(12)]
    steps += [ExpressionStep("add", (12, 13))]
    for at in range(14, 24):
        steps.append(ExpressionStep("add", (len(steps) - 1, at)))
    reads = (ExpressionRead(0, ((4, 1),)),) * 12
    expression = last(steps, reads, (4,))
    assert compute(builder, expression, builder.parameters) is None


@pytest.mark.parametrize("count", [1, 1024, 1025, 5000])
@pytest.mark.parametrize("kinds", [1, 5, 11, 12, 40])
def test_numbers_have_registers_of_their_own_if_there_are_enough(
    client: Client, kinds: int, count: int
) -> None:
    """They are filled once; a last block that is short leaves them as they are."""
    x = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    steps = [ExpressionStep("read")]
    for at in range(kinds):
        steps += [ExpressionStep("number", number=at / 7 - 1)]
        steps += [
            ExpressionStep("maximum" if at % 2 else "minimum", (len(steps) - 2, len(steps) - 1))
        ]
    expression = last(steps, (read(x),), x.shape)
    described = expressions.described(expression, AVX512)
    assert described is not None
    computing = [step for step in described["steps"].reshape(-1, 5) if step[0] != expressions.WRITE]
    computed_by = Counter(to for _, to, *_ in computing)
    numbers = [to for operation, to, *_ in computing if operation == OPERATIONS.index("number")]
    are_own = all(computed_by[to] == 1 for to in numbers)
    assert are_own == (kinds <= expressions.REGISTERS - 2)
    np.testing.assert_allclose(called(client, expression, [x]), computed(expression, [x]), 1e-6)


def test_results_that_are_a_number_throughout(client: Client) -> None:
    x = np.ones(3000, np.float32)
    steps = [ExpressionStep("read"), ExpressionStep("number", number=0.1)]
    steps.append(ExpressionStep("maximum", (0, 1)))
    results = tuple(ExpressionResult(at, x.shape, FLOAT32) for at in (1, 2))
    expression = Expression(tuple(steps), (read(x),), results)
    builder = Builder([TensorType(x.shape, FLOAT32)])
    made = compute(builder, expression, builder.parameters)
    assert made is not None
    number, largest = client.compile(builder.finish(made))(x)
    np.testing.assert_array_equal(np.asarray(number), np.full(3000, 0.1, np.float32))
    np.testing.assert_array_equal(np.asarray(largest), x)


def test_large_ones_are_divided_among_threads(client: Client) -> None:
    x = np.random.default_rng(0).standard_normal((3000, 257)).astype(np.float32)
    expression = one("tanh", x)
    np.testing.assert_allclose(called(client, expression, [x]), np.tanh(x), rtol=1e-6)


def test_nothing_is_computed_of_nothing(client: Client) -> None:
    x = np.zeros((0, 3), np.float32)
    expression = last([ExpressionStep("read")], (ExpressionRead(0, ((0, 1),)),), (0, 3))
    assert called(client, expression, [x]).shape == (0, 3)


# -- which loops are calls ------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Expression]:
    """The expressions that were written."""
    found: list[Expression] = []

    def noting(
        b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Sequence[Value] | None:
        found.append(expression)
        return compute(b, expression, operands)

    monkeypatch.setattr(expressions, "compute", noting)
    return found


def bias_and_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x + bias)


def gated(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * (x - bias)


def rotated(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * bias.cos() + torch.cat([-right, left], -1) * bias.sin()


def heads(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x + bias).view(16, 32, 4, 32).transpose(1, 2).contiguous()


def masked(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.where(x > bias, x.exp(), torch.full_like(x, -1e9))


def angles(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x + bias).sin()


def turned(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x + bias).t().contiguous()


def turned_in_small_tiles(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x.view(1024, 8, 8).transpose(1, 2).contiguous()


CALLS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "bias and GELU": (bias_and_gelu, 1),
    "gated": (gated, 1),
    "rotated": (rotated, 1),
    "heads": (heads, 1),
    "masked": (masked, 1),
    "angles": (angles, 1),
    "turned": (turned, 1),
    "turned in small tiles": (turned_in_small_tiles, 0),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_which_functions_of_torch_are_calls(
    name: str, dtype: torch.dtype, made: list[Expression]
) -> None:
    function, count = CALLS[name]
    x, bias = torch.randn(512, 128).to(dtype), torch.randn(128).to(dtype)
    found = torch.compile(function, backend="pjrt")(x, bias)
    # Whether it lowers is asked before it is written.
    assert bool(made) == bool(count)
    expected = function(x.float(), bias.float())
    # Half precision is rounded once, where eager mode rounds after each operation.
    close = {"rtol": 0.02, "atol": 0.03} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, expected.to(dtype), **close)
    assert found.stride() == expected.stride()


@pytest.mark.usefixtures("fresh")
def test_small_ones_are_loops(made: list[Expression]) -> None:
    """Where the program runs on the calling thread anyway (`small_programs`)."""
    x, bias = torch.randn(3, 16), torch.randn(16)
    torch.testing.assert_close(
        torch.compile(bias_and_gelu, backend="pjrt")(x, bias), bias_and_gelu(x, bias)
    )
    assert not made


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("function", "is_call"), [(bias_and_gelu, False), (gated, True)])
def test_large_ones_of_costly_functions_are_loops(
    function: Callable[..., torch.Tensor], is_call: bool, made: list[Expression]
) -> None:
    x, bias = torch.randn(4100, 128), torch.randn(128)
    found = torch.compile(function, backend="pjrt")(x, bias)
    torch.testing.assert_close(found, function(x, bias))
    assert bool(made) == is_call


def simple(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x.clamp(max=1), y * 0.1)


def simple_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.copy_(simple(x, y))


def waves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + y.cos() * 3


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("function", "size", "is_call"),
    [
        (simple, 1 << 19, True),
        (simple, 1 << 20, False),
        (simple_in_place, 1 << 20, True),
        (waves, 1 << 20, True),
    ],
)
def test_long_ones_are_loops_unless_they_overwrite_or_have_sines(
    function: Callable[..., torch.Tensor], size: int, is_call: bool, made: list[Expression]
) -> None:
    x, y = torch.randn(size), torch.randn(size)
    expected = function(x.clone(), y)
    torch.testing.assert_close(torch.compile(function, backend="pjrt")(x, y), expected)
    assert bool(made) == is_call


@pytest.mark.usefixtures("fresh")
def test_gradients(made: list[Expression]) -> None:
    x, bias = torch.randn(512, 128, requires_grad=True), torch.randn(128, requires_grad=True)
    pairs = [
        torch.autograd.grad(function(x, bias).sin().sum(), (x, bias))
        for function in (torch.compile(bias_and_gelu, backend="pjrt"), bias_and_gelu)
    ]
    assert made
    for found, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_programs_for_other_plugins_have_none() -> None:
    builder = Builder([TensorType((256, 96), FLOAT32)])
    x = np.zeros((256, 96), np.float32)
    assert XlaKernels().expression(builder, one("tanh", x), builder.parameters) is None


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_compute


# -- refusals -------------------------------------------------------------------------------------


def way_of(first: int, *dims: tuple[int, int]) -> list[int]:
    """A way to read, as the call takes it."""
    flat = [number for dim in dims for number in dim]
    return [first, len(dims), *flat, *[0] * (2 * Expression.MOST_DIMS - len(flat))]


def config(
    *steps: tuple[int, ...], reads: Sequence[int] = tuple(way_of(0, (6, 1))), vectors: int = AVX512
) -> dict[str, Any]:
    return {
        "numbers": np.array([1.0], np.float64),
        "reads": np.array(reads, np.int64),
        "steps": np.array(steps, np.int64).reshape(-1),
        "vectors": np.array([vectors], np.int64),
    }


READ, NUMBER, WRITE, ADD, ADD_NUMBER, SELECT = map(
    OPERATIONS.index, ("read", "number", "write", "add", "add_number", "select")
)
BEGIN, END = (READ, 0, 0, 0, 0), (WRITE, 0, 0, 0, 0)
WHOLE = config(BEGIN, END)
X = TensorType((2, 3), FLOAT32)
UNWRITTEN = "not those that the bridge writes"
REFUSED: dict[str, tuple[dict[str, Any], Sequence[TensorType], str]] = {
    "no attributes": ({}, (X, X), UNWRITTEN),
    "no steps": ({**WHOLE, "steps": np.zeros(3, np.int64)}, (X, X), UNWRITTEN),
    "numbers of another type": (
        {**config((NUMBER, 0, 0, 0, 0), END), "numbers": np.zeros(1, np.int64)},
        (X, X),
        UNWRITTEN,
    ),
    "unknown vectors": (config(BEGIN, END, vectors=3), (X, X), UNWRITTEN),
    "an unknown operation": (config(BEGIN, (99, 1, 0, 0, 0), END), (X, X), UNWRITTEN),
    "a negative operation": (config(BEGIN, (-1, 1, 0, 0, 0), END), (X, X), UNWRITTEN),
    "no such operand": (config((READ, 0, 1, 0, 0), END), (X, X), UNWRITTEN),
    "no such number": (config((NUMBER, 0, 1, 0, 0), END), (X, X), UNWRITTEN),
    "no such number in a step": (config(BEGIN, (ADD_NUMBER, 1, 0, 1, 0), END), (X, X), UNWRITTEN),
    "no such result": (config(BEGIN, (WRITE, 1, 0, 0, 0)), (X, X), UNWRITTEN),
    "no such register": (config(BEGIN, (ADD, 12, 0, 0, 0), END), (X, X), UNWRITTEN),
    "an operand beyond the registers": (config(BEGIN, (ADD, 1, 0, 12, 0), END), (X, X), UNWRITTEN),
    "a third beyond the registers": (config(BEGIN, (ADD, 1, 0, 0, -1), END), (X, X), UNWRITTEN),
    "a register without a value": (config(BEGIN, (ADD, 1, 0, 2, 0), END), (X, X), UNWRITTEN),
    "a third without a value": (config(BEGIN, (SELECT, 1, 0, 0, 2), END), (X, X), UNWRITTEN),
    "a result without a value": (config(BEGIN, (WRITE, 0, 1, 0, 0)), (X, X), UNWRITTEN),
    "what a step reads itself": (config(BEGIN, (ADD, 0, 0, 0, 0), END), (X, X), UNWRITTEN),
    "too many steps": (config(*[BEGIN] * 200, END), (X, X), UNWRITTEN),
    "no way for an operand": (config(BEGIN, END, reads=()), (X, X), UNWRITTEN),
    "a way for one more": (
        config(BEGIN, END, reads=[*way_of(0, (6, 1)), *way_of(0, (6, 1))]),
        (X, X),
        UNWRITTEN,
    ),
    "elements behind the last": (config(BEGIN, END, reads=way_of(1, (6, 1))), (X, X), "6 elements"),
    "strides beyond it": (config(BEGIN, END, reads=way_of(0, (6, 2))), (X, X), "6 elements"),
    "strides that overflow": (
        config(BEGIN, END, reads=way_of(0, (6, 1 << 62))),
        (X, X),
        "6 elements",
    ),
    "negative strides": (config(BEGIN, END, reads=way_of(5, (6, -1))), (X, X), "6 elements"),
    "negative places": (config(BEGIN, END, reads=way_of(-1, (6, 1))), (X, X), "6 elements"),
    "no dimensions": (config(BEGIN, END, reads=way_of(0)), (X, X), "6 elements"),
    "fewer elements": (config(BEGIN, END, reads=way_of(0, (5, 1))), (X, X), "6 elements"),
    "sizes that overflow": (
        config(BEGIN, END, reads=way_of(0, *[(1 << 32, 0)] * 3)),
        (X, X),
        "6 elements",
    ),
    "many dimensions": (
        config(BEGIN, END, reads=[0, 7, *way_of(0, (6, 1))[2:]]),
        (X, X),
        "6 elements",
    ),
    "integers": (WHOLE, (TensorType((2, 3), dtypes.of("int32")), X), "element type 4"),
    "a result of integers": (WHOLE, (X, TensorType((2, 3), dtypes.of("int32"))), "element type 4"),
}


def call_of(config: dict[str, Any], types: Sequence[TensorType]) -> Program:
    builder = Builder(types[:1])
    results = builder.custom_call(TARGET, builder.parameters, types[1:], backend_config=config)
    return builder.finish(list(results))


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    attributes, types, reason = REFUSED[name]
    executable = client.compile(call_of(attributes, types))
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(np.zeros(types[0].shape, types[0].dtype.numpy))[0])


@pytest.mark.parametrize(("count", "reason"), [(5, "1 to 4 results"), (2, "different sizes")])
def test_results_that_do_not_fit_are_refused(client: Client, count: int, reason: str) -> None:
    sizes = [(2, 3)] + [(2, 3) if count > 2 else (3, 3)] * (count - 1)
    types = [X, *(TensorType(size, FLOAT32) for size in sizes)]
    executable = client.compile(call_of(WHOLE, types))
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(np.zeros((2, 3), np.float32))[0])
