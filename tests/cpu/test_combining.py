"""Updates combined along a dimension by the custom call: elements, which are calls, refusals."""

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
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Combination
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import combining
from pjrt_bridge_cpu.combining import TARGET, combine
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples

HOWS: tuple[Combination, ...] = ("sum", "prod", "max", "min", "last")
DTYPES = ("float32", "float64", "int32", "int64")
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert combining.can_combine(client)
    monkeypatch.setattr(combining, "LEAST", 1)


def run(client: Client, body: Callable[..., Value], *arrays: Array) -> tuple[Array, str]:
    """The result, and the text of the program."""
    builder = Builder([TensorType(each.shape, dtypes.of(each.dtype.name)) for each in arrays])
    program = builder.finish([body(builder, *builder.parameters)])
    (got,) = client.compile(program)(*arrays)
    return np.asarray(got), program.text


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_it_is_the_portable_form(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rank = len(shape)
    dim = data.draw(st.integers(0, rank - 1))
    count = data.draw(st.integers(1, 6))
    given_shape = [*shape[:dim], count, *shape[dim + 1 :]]
    same = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    places = [1 if same[d] and d != dim else size for d, size in enumerate(given_shape)]
    how = data.draw(st.sampled_from(HOWS))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, updates = (rng.integers(-9, 9, each).astype(dtype) for each in (shape, given_shape))
    if how == "last":
        # Of several updates at one place any may be there.
        updates[...] = 7
    index = rng.integers(-1, shape[dim] + 1, places).astype(data.draw(st.sampled_from(DTYPES[2:])))
    own = XlaKernels()
    own.can_combine = True
    found = []
    for kernels in (own, Kernels()):

        def body(b: Builder, x: Value, i: Value, u: Value, kernels: Kernels = kernels) -> Value:
            return kernels.combine_along(b, x, dim, i, u, how)

        got, text = run(client, body, x, index, updates)
        found.append(got)
        within = math.prod(shape[:dim]) > 1 or math.prod(places[dim + 1 :]) > 1
        assert (TARGET in text) == (kernels is own and within)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("how", ["max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_not_a_number_stays(client: Client, how: Combination, dtype: type) -> None:
    nan, inf = math.nan, math.inf
    x = np.array([[[nan, 1, -inf, 2]]], dtype)
    index = np.zeros((1, 2, 4), np.int64)
    updates = np.array([[[1, nan, inf, -0.0], [2, 3, 4, 1]]], dtype)
    got, _ = run(client, lambda b, *given: combine(b, *given, how), x, index, updates)
    expected = (np.maximum if how == "max" else np.minimum).reduce([x[0, 0], *updates[0]])
    np.testing.assert_array_equal(got[0, 0], expected)


@pytest.mark.parametrize("shape", [(64, 50, 1), (1, 50, 64), (300, 5, 7)])
def test_large_ones_are_divided_among_threads(client: Client, shape: tuple[int, ...]) -> None:
    outer, length, inner = shape
    rng = np.random.default_rng(0)
    updates = rng.integers(0, 9, (outer, 2000, inner)).astype(np.float32)
    index = rng.integers(-1, length + 1, updates.shape)
    x = np.zeros(shape, np.float32)
    got, _ = run(client, lambda b, *given: combine(b, *given, "sum"), x, index, updates)
    expected = torch.zeros(outer, length + 2, inner).scatter_add(
        1, torch.from_numpy(index + 1), torch.from_numpy(updates)
    )
    np.testing.assert_array_equal(got, expected[:, 1:-1])


def test_integers_wrap(client: Client) -> None:
    x = np.full((1, 1, 2), 2**63 - 1)
    index, updates = np.zeros((1, 1, 2), np.int64), np.full((1, 1, 2), 3)
    for how, operation in (("sum", np.add), ("prod", np.multiply)):
        got, _ = run(client, lambda b, *given, how=how: combine(b, *given, how), x, index, updates)
        np.testing.assert_array_equal(got, operation(x, updates))


def graph(x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Elements, and slices along the last dimension."""
    return [
        torch.zeros(50, 64).scatter_add(0, index, x),
        x.scatter_reduce(0, index % 40, y, "amax"),
        x.scatter_reduce(0, index % 40, y, "mean", include_self=False),
        x.scatter_reduce(1, index, y, "prod"),
        x.index_add(1, index[:, 0], y[:, :40]),
        x.scatter(1, index.sort(1).values.cummax(1).values, 3.0),
    ]


def test_operators_of_pytorch_and_their_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 40, 64, generator=generator).unbind()
    index = torch.randint(0, 50, (40, 64), generator=generator)
    sides = [[t.clone().requires_grad_() for t in (x, y)] for _ in range(2)]
    compiled = torch.compile(graph, backend="pjrt")
    for function, (one, other) in zip((graph, compiled), sides, strict=True):
        torch.stack([r.square().sum() for r in function(one, index, other)]).sum().backward()
    torch.testing.assert_close(compiled(x, index, y), graph(x, index, y))
    for expected, found in zip(*sides, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert emitted(lambda *given: graph(*given), x, index, y).count(TARGET) >= 5


def test_a_position_out_of_range_is_an_error_as_in_eager() -> None:
    x, index = torch.randn(40, 64), torch.full((40, 64), 50)
    compiled = torch.compile(lambda x, i: torch.zeros(50, 64).scatter_add(0, i, x), backend="pjrt")
    with pytest.raises(RuntimeError, match="index 50 is out of bounds"):
        compiled(x, index)


F32, I64 = dtypes.of("float32"), dtypes.of("int64")


@pytest.mark.parametrize(
    ("types", "how"),
    [
        (((2, 3, 4), (2, 5, 4), (2, 5, 3)), [0]),
        (((2, 3, 4), (2, 6, 4), (2, 5, 4)), [0]),
        (((2, 3, 4), (3, 5, 4), (2, 5, 4)), [0]),
        (((2, 3), (2, 5), (2, 5)), [0]),
        (((2, 3, 4), (2, 5, 4), (2, 5, 4)), [5]),
        (((2, 3, 4), (2, 5, 4), (2, 5, 4)), [-1]),
        (((2, 3, 4), (2, 5, 4), (2, 5, 4)), [0, 0]),
        (((2, 3, 4), (2, 5, 4), (2, 5, 4)), None),
    ],
)
def test_what_does_not_fit_is_refused(
    client: Client, types: Sequence[Sequence[int]], how: list[int] | None
) -> None:
    given = [
        TensorType(tuple(shape), dtype) for shape, dtype in zip(types, (F32, I64, F32), strict=True)
    ]
    with pytest.raises(InvalidArgument, match="A combination along a dimension"):
        executed(client, call_of(given, how), given)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_other_element_types_are_refused(client: Client, place: int) -> None:
    kinds = [F32, I64, F32]
    kinds[place] = dtypes.of("bfloat16")
    given = [TensorType((2, 3, 4), dtype) for dtype in kinds]
    with pytest.raises(InvalidArgument, match="element types"):
        executed(client, call_of(given, [0]), given)


def call_of(types: Sequence[TensorType], how: list[int] | None) -> Program:
    builder = Builder(types)
    config = {} if how is None else {"how": np.array(how, np.int64)}
    return builder.finish(
        builder.custom_call(TARGET, builder.parameters, [types[0]], backend_config=config)
    )


def executed(client: Client, program: Program, types: Sequence[TensorType]) -> None:
    arrays = [np.zeros(item.shape, item.dtype.numpy) for item in types]
    for result in client.compile(program)(*arrays):
        np.asarray(result)


def test_the_client_has_it(client: Client) -> None:
    assert kernels_of(client).can_combine  # type: ignore[attr-defined]
