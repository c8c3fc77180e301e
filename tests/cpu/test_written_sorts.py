"""Sorts that other frameworks write are calls of the kernel, and give what XLA's code gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pjrt_bridge import dtypes, tf_interop
from pjrt_bridge.jax_interop import torch_op
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge_cpu import sorting
from pjrt_bridge_cpu.sorting import ORDERED, TARGET
from tests.cpu.helpers import emitted, written_by
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")

SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "LEAST", 1)


def drawn(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Elements of which many are equal; of floats, many NaN, of several bits."""
    rng, kind = np.random.default_rng(seed), dtypes.of(dtype)
    if not kind.is_float:
        low = -100 if kind.is_signed_integer else 0
        x = rng.integers(low, 2 if kind.is_bool else 100, shape)
        return (x << (seed % (kind.bits - 7)) if kind.bits > 8 else x).astype(kind.numpy)
    x = rng.choice([*SPECIAL, *rng.standard_normal(8)], shape).astype(kind.numpy)
    if dtype == "bfloat16":
        # XLA's code computes in float32, which gives all NaN of a sign the same bits.
        return x
    bits = x.view(f"u{kind.bits // 8}")
    others = bits | rng.integers(0, 3, shape).astype(bits.dtype)
    return np.where(np.isnan(x), others, bits).view(kind.numpy)


def both(client: Client, program: Program, *arrays: Any) -> int:
    """Compare the bits of results by XLA's code and by kernels; how many sorts are calls."""
    found = for_target(program, kernels_of(client))
    sides = [client.compile(one)(*arrays) for one in (program, found)]
    for pair in zip(*sides, strict=True):
        wanted, got = (np.asarray(item) for item in pair)
        assert wanted.dtype == got.dtype
        assert wanted.tobytes() == got.tobytes()
    return found.text.count(f"@{TARGET}(")


def lowered(function: Callable[..., Any], *arrays: Any) -> Program:
    with jax.enable_x64(True):
        return Program.from_text(jax.jit(function).lower(*arrays).as_text())


JAX: dict[str, Callable[[Any, int], Any]] = {
    "sort": lambda x, dim: jnp.sort(x, axis=dim),
    "descending": lambda x, dim: jnp.sort(x, axis=dim, descending=True),
    "argsort": lambda x, dim: jnp.argsort(x, axis=dim),
    "argsort, descending": lambda x, dim: jnp.argsort(x, axis=dim, descending=True),
    "numbers of its own": lambda x, dim: lax.sort(
        (x, lax.iota(jnp.uint8, x.size).reshape(x.shape)), dimension=dim, num_keys=1
    ),
    "three": lambda x, dim: lax.sort((x, x == 1, x), dimension=dim, num_keys=1),
}


@pytest.mark.usefixtures("always")
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_those_of_jax(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    shape[dim] = data.draw(st.sampled_from((1, 2, 41, 300)))
    x = drawn(
        data.draw(st.integers(0, 99)), tuple(shape), data.draw(st.sampled_from(sorted(ORDERED)))
    )
    function = JAX[data.draw(st.sampled_from(sorted(JAX)))]
    assert both(client, lowered(lambda x: function(x, dim), x), x) == 1


def by_total_order(
    shape: tuple[int, ...], dtype: str, dim: int, direction: str, stable: bool
) -> Program:
    """As TensorFlow writes it, by a comparison of floats in their total order."""
    kind = dtypes.of(dtype)
    element = kind.stablehlo
    of = f"tensor<{'x'.join(map(str, shape))}x{element}>"
    total = ", TOTALORDER" if kind.is_float else ""
    return Program.from_text(f"""func.func @main(%x: {of}) -> {of} {{
    %found = "stablehlo.sort"(%x)
        <{{dimension = {dim} : i64, is_stable = {str(stable).lower()}}}> ({{
    ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
    %first = stablehlo.compare {direction}, %a, %b{total}
        : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
    stablehlo.return %first : tensor<i1>
    }}) : ({of}) -> {of}
    return %found : {of} }}""")


@pytest.mark.usefixtures("always")
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_those_by_the_order_of_bits(client: Client, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 5, 70)), min_size=1, max_size=3)))
    dim = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(st.sampled_from(sorted(ORDERED)))
    direction, stable = data.draw(st.sampled_from(("LT", "GT"))), data.draw(st.booleans())
    x = drawn(data.draw(st.integers(0, 99)), shape, dtype)
    assert both(client, by_total_order(shape, dtype, dim, direction, stable), x) == 1


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_none_of_no_elements(client: Client, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert both(client, lowered(lambda x: (jnp.sort(x, 0), jnp.argsort(x, 0)), x), x) == 0


def test_subnormal_numbers_have_an_order(client: Client) -> None:
    """XLA's code takes them for zeros where it compares as JAX does."""
    x = np.tile(np.array([3e-45, -3e-45, 0.0, 1e-45, -1e-45], np.float32), 20)
    program = for_target(lowered(jnp.argsort, x), kernels_of(client))
    (found,) = client.compile(program)(x)
    np.testing.assert_array_equal(np.asarray(found), np.argsort(x, kind="stable"))


def test_shuffles_and_medians_of_jax(client: Client) -> None:
    key = np.array([1, 2], np.uint32)
    shuffled = lowered(
        lambda key: jax.random.permutation(jax.random.wrap_key_data(key), 20_000), key
    )
    assert both(client, shuffled, key) == 2
    x = drawn(0, (30, 50), "float32")
    assert both(client, lowered(lambda x: jnp.median(x, 1), x), x) == 1


def test_many_rows_are_divided_among_threads(client: Client) -> None:
    for dtype in ("float32", "bfloat16", "float64"):
        x = drawn(1, (300, 400), dtype)
        assert both(client, by_total_order(x.shape, dtype, 0, "GT", True), x) == 1


@torch_op
def ranked(x: jax.Array) -> jax.Array:
    return jnp.argsort(x, axis=0)


def test_functions_of_jax_under_torch_compile() -> None:
    x = torch.from_numpy(drawn(0, (60, 20), "float32"))
    found = torch.compile(lambda x: ranked(x), backend="pjrt")(x)
    np.testing.assert_array_equal(found, np.asarray(jnp.argsort(x.numpy(), axis=0)))
    assert emitted(lambda x: ranked(x), x).count(f"@{TARGET}(") == 1


TENSORFLOW: dict[str, Callable[[tf.Tensor], Any]] = {
    "sort": lambda x: tf.sort(x),
    "columns, descending": lambda x: tf.sort(x, axis=0, direction="DESCENDING"),
    "argsort": lambda x: tf.argsort(x),
    "argsort, descending": lambda x: tf.argsort(x, direction="DESCENDING"),
    "many of the largest": lambda x: tf.math.top_k(x, 20),
    "whole numbers": lambda x: tf.sort(tf.cast(x * 9, tf.int32)),
}


@pytest.mark.parametrize("name", TENSORFLOW)
def test_functions_of_tensorflow(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    function = TENSORFLOW[name]
    found: list[Any] = []
    text = written_by(lambda: found.append(tf_interop.function(function)(x)))
    tf.nest.map_structure(np.testing.assert_array_equal, found[0], function(x))
    assert text.count(f"@{TARGET}(") == 1


def test_few_of_the_largest_are_found_by_xla() -> None:
    x = np.random.default_rng(0).standard_normal((40, 500)).astype(np.float32)
    text = written_by(lambda: tf_interop.function(lambda x: tf.math.top_k(x, 5))(x))
    assert TARGET not in text
    text = written_by(lambda: tf_interop.function(lambda x: tf.math.top_k(x, 100))(x))
    assert text.count(f"@{TARGET}(") == 1
