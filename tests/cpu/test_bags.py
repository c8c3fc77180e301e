"""Sums of bags of rows by the custom call: numbers, which bags are calls, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import bags
from pjrt_bridge_cpu.bags import TARGET, sum_bags
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples

TYPES = ("float32", "float64", "bfloat16")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bags.can_sum_bags(client)
    monkeypatch.setattr(bags, "LEAST", 1)


def called(client: Client, arrays: Sequence[Any], mean: bool, ignored: int) -> Any:
    b = Builder([TensorType(each.shape, dtypes.of(each.dtype.name)) for each in arrays])
    found = sum_bags(b, *b.parameters, mean=mean, ignored=ignored)
    return np.asarray(client.compile(b.finish([found]))(*arrays)[0]).astype(np.float64)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.sampled_from(TYPES),
    st.sampled_from([0, 1, 5, 64, 130]),
    st.lists(st.integers(0, 9), max_size=6),
    *[st.booleans()] * 3,
    st.sampled_from([-1, 2]),
    st.integers(0, 99),
)
def test_it_is_the_sum_of_rows(
    client: Client,
    name: str,
    width: int,
    lengths: list[int],
    mean: bool,
    weighted: bool,
    narrow: bool,
    ignored: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((7, width)).astype(dtypes.of(name).numpy)
    ends = np.cumsum([0, *lengths])
    # Those out of range are left out.
    positions = rng.integers(-1, 8, ends[-1]).astype(np.int32 if narrow else np.int64)
    factors = rng.standard_normal(ends[-1] if weighted else 0)
    factors = factors.astype(np.float64 if name == "float64" else np.float32)
    got = called(client, [table, positions, ends, factors], mean, ignored)
    assert got.shape == (len(lengths), width)
    for bag, row in enumerate(got):
        at = np.arange(ends[bag], ends[bag + 1])
        at = at[(positions[at] >= 0) & (positions[at] < 7) & (positions[at] != ignored)]
        rows = table[positions[at]].astype(np.float64)
        rows = rows * factors[at, None] if len(factors) else rows
        expected = rows.sum(0) / (max(len(at), 1) if mean else 1)
        rtol = 2.0**-8 if name == "bfloat16" else 1e-6
        np.testing.assert_allclose(row, expected, rtol=rtol, atol=1e-6)


def test_ends_that_are_none_are_moved_to_the_positions(client: Client) -> None:
    table, positions = np.ones((3, 2), np.float32), np.zeros(4, np.int64)
    ends = np.array([-5, 3, 2, 99])
    got = called(client, [table, positions, ends, np.zeros(0, np.float32)], False, -1)
    np.testing.assert_array_equal(got[:, 0], [3, 0, 2])


def test_special_numbers_stay_in_their_bag(client: Client) -> None:
    table = np.ones((4, 70), np.float32)
    table[1], table[2] = np.nan, np.inf
    positions, ends = np.array([0, 1, 0, 2, 0, 3]), np.array([0, 2, 4, 6])
    got = called(client, [table, positions, ends, np.zeros(0, np.float32)], False, -1)
    np.testing.assert_array_equal(got, [[np.nan] * 70, [np.inf] * 70, [2.0] * 70])


def test_large_ones_are_divided_among_threads(client: Client) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-9, 9, (500, 96)).astype(np.float32)
    positions = rng.integers(0, 500, 20_000)
    ends = np.sort(rng.integers(0, 20_001, 1001))
    got = called(client, [table, positions, ends, np.zeros(0, np.float32)], False, -1)
    expected = [table[positions[a:b]].sum(0) for a, b in pairwise(ends)]
    np.testing.assert_array_equal(got, expected)


OFFSETS = torch.tensor([0, 5, 5, 11, 30])
HOWS: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "padding": {"mode": "mean", "padding_idx": 3},
    "padding from the end": {"mode": "sum", "padding_idx": -2},
    "all ends": {"mode": "sum", "include_last_offset": True},
    "factors": {"mode": "sum", "per_sample_weights": torch.linspace(-1, 1, 40)},
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HOWS)
def test_bags_of_pytorch_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(9, 20, generator=generator).to(dtype)
    indices = torch.randint(0, 9, (40,), generator=generator)
    how = dict(HOWS[name])
    factors = how.pop("per_sample_weights", None)
    how["per_sample_weights"] = None if factors is None else factors.to(dtype)
    offsets = torch.tensor([0, 5, 5, 11, 40]) if "include_last_offset" in how else OFFSETS

    def bag(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(indices, table, offsets, **how)

    compiled = torch.compile(bag, backend="pjrt")
    with torch.no_grad():
        torch.testing.assert_close(compiled(table, indices, offsets), bag(table, indices, offsets))
    sides = [table.clone().requires_grad_() for _ in range(2)]
    for function, side in zip((bag, compiled), sides, strict=True):
        function(side, indices, offsets).square().sum().backward()
    if dtype != torch.bfloat16:
        # Eager rounds each sum of these.
        torch.testing.assert_close(sides[1].grad, sides[0].grad)
    assert TARGET in emitted(bag, table, indices, offsets)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_rows_of_a_matrix_are_bags(mode: str) -> None:
    table, indices = torch.randn(50, 33), torch.randint(0, 50, (8, 6))

    def bag(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(indices, table, mode=mode)

    found = torch.compile(bag, backend="pjrt")(table, indices)
    torch.testing.assert_close(found, bag(table, indices))


def test_programs_for_other_plugins_have_none() -> None:
    types = [TensorType((4, 4), dtypes.of("float32"))]
    types += [TensorType((3,), dtypes.of("int64"))] * 2
    b = Builder(types)
    assert XlaKernels().sums_of_bags(b, *b.parameters, None, mean=False, ignored=-1) is None


FLOATS, WIDE, PLACES = map(dtypes.of, ("float32", "float64", "int64"))
TABLE, GIVEN, ENDS, NONE = (
    TensorType((5, 4), FLOATS),
    TensorType((6,), PLACES),
    TensorType((3,), PLACES),
    TensorType((0,), FLOATS),
)
SUMS = TensorType((2, 4), FLOATS)
HOW = {"how": np.array([0, -1], np.int64)}
REFUSED: dict[str, tuple[dict[str, Any], Sequence[TensorType], TensorType, str]] = {
    "no attributes": ({}, (TABLE, GIVEN, ENDS, NONE), SUMS, "not those that the bridge writes"),
    "three operands": (HOW, (TABLE, GIVEN, ENDS), SUMS, "four operands and one result"),
    "a table of integers": (
        HOW,
        (TensorType((5, 4), PLACES), GIVEN, ENDS, NONE),
        TensorType((2, 4), PLACES),
        "element types",
    ),
    "factors of another type": (
        HOW,
        (TABLE, GIVEN, ENDS, TensorType((0,), WIDE)),
        SUMS,
        "element types",
    ),
    "a table of rank 1": (HOW, (NONE, GIVEN, ENDS, NONE), SUMS, "rank 1, expected 2"),
    "other ends": (HOW, (TABLE, GIVEN, GIVEN, NONE), SUMS, "do not fit each other"),
    "another width": (
        HOW,
        (TABLE, GIVEN, ENDS, NONE),
        TensorType((2, 3), FLOATS),
        "do not fit each other",
    ),
    "other factors": (
        HOW,
        (TABLE, GIVEN, ENDS, TensorType((5,), FLOATS)),
        SUMS,
        "do not fit each other",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    config, types, result, reason = REFUSED[name]
    b = Builder(types)
    (found,) = b.custom_call(TARGET, b.parameters, [result], backend_config=config)
    executable = client.compile(b.finish([found]))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_sum_bags
