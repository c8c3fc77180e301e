"""Reductions of rows by columns: what they give, where they are used, and that they are faster."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import pjrt_bridge_kernels
from pjrt_bridge_cpu.reductions import BlockedReductions
from tests.extent import examples

REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
}
BARRIER = "stablehlo.optimization_barrier"


def program(reduction, shape, dtype, dims, before=lambda b, x: x):
    builder = Builder([TensorType(shape, dtypes.of(dtype))])
    (x,) = builder.parameters
    return builder.finish(
        [BlockedReductions().reduce(builder, reduction, before(builder, x), dims)]
    )


def on_the_plugin(written, x):
    (found,) = pjrt_bridge.client("cpu").compile(written)(x)
    return np.asarray(found)


@st.composite
def reductions(draw):
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 17, 33, 70]), min_size=1, max_size=4)))
    while math.prod(shape) > 20_000:
        shape = shape[1:]
    dims = draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    return shape, tuple(sorted(dims)), draw(st.integers(0, 2**32 - 1))


@settings(max_examples=examples(60))
@given(reductions(), st.sampled_from(sorted(REDUCTIONS)))
def test_folding_integers_is_the_same_in_any_order(drawn, reduction):
    shape, dims, seed = drawn
    x = np.random.default_rng(seed).integers(-(2**31), 2**31, shape, np.int32)
    if reduction in ("max", "min") and 0 in (shape[d] for d in dims):
        return
    (found,) = evaluate(program(reduction, shape, "int32", dims), x)
    expected = x if not dims else REDUCTIONS[reduction](x.astype(np.int32), axis=dims)
    np.testing.assert_array_equal(found, np.asarray(expected).astype(np.int32))


@pytest.mark.parametrize("length", [15, 16, 31, 64, 100, 128, 1001])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bool"])
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_the_plugin_finds_extremes_in_rows_of_any_length(reduction, dtype, length):
    x = np.random.default_rng(0).integers(0, 200, (3, length)).astype(dtypes.of(dtype).numpy)
    written = program(reduction, x.shape, dtype, (1,))
    found = on_the_plugin(written, x)
    np.testing.assert_array_equal(found, REDUCTIONS[reduction](x, axis=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [0, 1, 2, (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("operator", [torch.amax, torch.amin])
def test_extremes_of_narrow_numbers_are_eagers(operator, dim, dtype):
    x = torch.randn(5, 70, 131, dtype=torch.float32).to(dtype)
    x[0, 3, 4], x[1, 2] = torch.nan, torch.inf
    x[2] = -0.0
    found = torch.compile(operator, backend="pjrt")(x, dim)
    expected = operator(x, dim)
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_narrow_numbers_are_compared_as_float32():
    """Each comparison would be rounded to the narrow type again, one number at a time."""
    text = program("max", (8, 64), "bfloat16", (1,)).text
    compared = [line for line in text.splitlines() if "maximum" in line]
    assert compared
    assert not [line for line in compared if "bf16" in line]


@pytest.mark.parametrize("place", [0, 40, 127, 129])
def test_a_nan_wins_wherever_it_is_in_its_row(place):
    x = np.zeros((2, 130), np.float32)
    x[0] = -np.inf
    x[1, place] = np.nan
    for reduction in ("sum", "max", "min"):
        written = program(reduction, x.shape, "float32", (1,))
        found = on_the_plugin(written, x)
        assert found[0] == -np.inf
        assert np.isnan(found[1])


@pytest.mark.parametrize("dims", [(1,), (0, 1)])
def test_sums_of_many_numbers_are_as_exact_as_the_compilers_own(dims):
    x = np.random.default_rng(0).random((4, 1_000_003), np.float32)
    truth = x.astype(np.float64).sum(axis=dims)
    written = program("sum", x.shape, "float32", dims)
    # One after the other they would be wrong by a thousand times as much.
    assert np.abs(on_the_plugin(written, x) / truth - 1).max() < 5e-7


@pytest.mark.parametrize(
    ("reduction", "shape", "dtype", "dims", "blocked"),
    [
        ("sum", (4, 64), "float32", (1,), True),
        ("sum", (4, 64), "bfloat16", (1,), True),
        ("sum", (2, 3, 4, 4), "float32", (0, 2, 3), True),
        ("or", (4, 64), "bool", (1,), True),
        ("min", (4, 64), "uint64", (1,), True),
        ("sum", (4, 64), "float64", (1,), False),
        ("sum", (4, 15), "float32", (1,), False),
        ("sum", (64, 4), "float32", (0,), False),
        ("sum", (512, 64), "float32", (0,), True),
        ("sum", (4, 512, 64), "float32", (0, 1), True),
        ("max", (4, 512, 64), "float64", (1,), True),
        ("sum", (64, 512), "float64", (1,), False),
        ("sum", (64, 64), "float32", (), False),
        ("sum", (0, 64), "float32", (1,), False),
        ("sum", (4, 64), "complex64", (1,), False),
    ],
)
def test_rows_that_the_compiler_does_slowly_go_by_columns(reduction, shape, dtype, dims, blocked):
    assert (BARRIER in program(reduction, shape, dtype, dims).text) == blocked


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((16384, 16), (0,)), ((8, 65536), (1,)), ((8, 1024, 64), (0, 1)), ((4, 8, 9000), (0, 2))],
)
def test_what_is_reduced_is_not_written_to_memory(shape, dims):
    written = program("sum", shape, "float32", dims, lambda b, x: b.multiply(x, b.add(x, x)))
    executable = pjrt_bridge.client("cpu").compile(written)
    assert executable.memory_stats().temporaries < math.prod(shape)


def test_what_lies_across_in_memory_is_reduced_as_it_lies():
    def turned(b, x):
        return b.transpose(x, (0, 2, 1))

    def swapped(b, x):
        return b.transpose(x, (1, 0, 2))

    shape = (64, 64, 64)
    assert BARRIER not in program("sum", shape, "float32", (2,), turned).text
    assert BARRIER in program("sum", shape, "float32", (2,), swapped).text


def channels_inside(b, x):
    """What is computed from (N, C, ...) whose channels lie together."""
    y = b.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))
    return b.add(y, y)


@settings(max_examples=examples(40))
@given(reductions(), st.sampled_from(["sum", "max", "or"]))
def test_what_is_computed_across_is_reduced_alike(drawn, reduction):
    shape, dims, seed = drawn
    if reduction == "max" and 0 in shape:
        return
    x = np.random.default_rng(seed).integers(-(2**29), 2**29, shape, np.int32)
    before = channels_inside if len(shape) > 2 else lambda b, x: b.add(x, x)
    (found,) = evaluate(program(reduction, shape, "int32", dims, before), x)
    turned = 2 * (np.moveaxis(x, -1, 1) if len(shape) > 2 else x)
    expected = turned if not dims else REDUCTIONS[reduction](turned, axis=dims)
    np.testing.assert_array_equal(found, np.asarray(expected).astype(np.int32))


def test_sums_over_batch_and_places_are_as_exact_where_channels_lie_together():
    x = np.random.default_rng(0).random((16, 256, 257, 2), np.float32)
    truth = 2 * x.astype(np.float64).sum(axis=(0, 1, 2))
    written = program("sum", x.shape, "float32", (0, 2, 3), channels_inside)
    assert np.abs(on_the_plugin(written, x) / truth - 1).max() < 1e-6


@pytest.mark.usefixtures("fresh")
def test_compiled_operators_reduce_by_columns(client, monkeypatch):
    assert isinstance(pjrt_bridge_kernels(client.plugin, client), BlockedReductions)
    seen = []
    blocked = BlockedReductions.reduce
    monkeypatch.setattr(
        BlockedReductions,
        "reduce",
        lambda self, b, reduction, x, dims: (
            seen.append(reduction) or blocked(self, b, reduction, x, dims)
        ),
    )
    layer = torch.nn.LayerNorm(70)
    x = torch.randn(9, 70)

    def function(x):
        y = layer(x)
        return y.softmax(-1), y.log_softmax(-1), y.amin(-1), y.var(-1), y.argmax(-1)

    compiled = torch.compile(function, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x), rtol=2e-5, atol=2e-5)
    assert set(seen) == {"sum", "max", "min"}
