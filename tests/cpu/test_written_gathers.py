"""Gathers that other frameworks write are calls of the kernel, and give what XLA's code gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes, tf_interop
from pjrt_bridge.jax_interop import torch_op
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge_cpu import gathering
from pjrt_bridge_cpu.gathering import TARGET
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted, written_by
from tests.extent import examples
from tests.stablehlo.helpers import program

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathering.can_gather(client)
    monkeypatch.setattr(gathering, "LEAST", 1)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_it_is_the_operation(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rank = len(shape)
    dims = data.draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=2, unique=True))
    others = [dim for dim in range(rank) if dim not in dims]
    batch = sorted(data.draw(st.lists(st.sampled_from(others), unique=True))) if others else []
    places = [shape[dim] for dim in batch]
    places.insert(data.draw(st.integers(0, len(places))), data.draw(st.integers(1, 5)))
    at = data.draw(st.permutations(range(len(places))))[: len(batch)]
    places = [data.draw(st.integers(1, 3)) for _ in places]
    for dim, place in zip(batch, at, strict=True):
        places[place] = shape[dim]
    vector = data.draw(st.integers(0, len(places)))
    sizes = [
        1 if dim in batch else data.draw(st.sampled_from([1, size] if dim in dims else [size]))
        for dim, size in enumerate(shape)
    ]
    collapsed = [dim for dim in sorted(dims) if sizes[dim] == 1]
    left = rank - len(collapsed) - len(batch)
    result = len(places) + left
    offsets = sorted(
        data.draw(st.lists(st.integers(0, result - 1), min_size=left, max_size=left, unique=True))
        if left
        else []
    )
    given = [*places[:vector], len(dims), *places[vector:]]
    index_dtype = data.draw(st.sampled_from(["int32", "int64", "uint8"]))

    def body(b: Builder, x: Value, index: Value) -> Value:
        return b.gather(
            x,
            index,
            offset_dims=offsets,
            collapsed_slice_dims=collapsed,
            start_index_map=dims,
            index_vector_dim=vector,
            slice_sizes=sizes,
            operand_batching_dims=batch,
            start_indices_batching_dims=[place + (place >= vector) for place in at],
        )

    source = program(
        body,
        TensorType(tuple(shape), dtypes.of("float32")),
        TensorType(tuple(given), dtypes.of(index_dtype)),
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    low = 0 if index_dtype == "uint8" else -2
    index = rng.integers(low, max(shape) + 2, given).astype(index_dtype)
    kernels = XlaKernels()
    kernels.can_gather = True
    (found,) = client.compile(for_target(source, kernels))(x, index)
    (expected,) = evaluate(source, x, index)
    np.testing.assert_array_equal(np.asarray(found), expected)


TABLE, PLACES = torch.randn(50, 8), torch.randint(0, 50, (4, 6), dtype=torch.int32)
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda x, index: jnp.take(x, index, axis=0),
    "take, moved into the array": lambda x, index: jnp.take(x, index, axis=0, mode="clip"),
    "rows": lambda x, index: x[index],
    "columns": lambda x, index: x[:, index % 8],
    "pairs": lambda x, index: x[index, index % 8],
    "along": lambda x, index: jnp.take_along_axis(x, index.T, axis=0)[:, :4],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_jax(name: str) -> None:
    def function(x: Any, index: Any) -> Any:
        table = x[:, :4] if name == "along" else x
        return FUNCTIONS[name](table, index)

    operator = torch_op(function)
    text = emitted(lambda *given: operator(*given), TABLE, PLACES)
    assert (f"@{TARGET}(" in text) == (name != "pairs")
    found = torch.compile(lambda *given: operator(*given), backend="pjrt")(TABLE, PLACES)
    expected = function(jnp.asarray(TABLE.numpy()), jnp.asarray(PLACES.numpy()))
    np.testing.assert_array_equal(found.numpy(), np.asarray(expected))


def test_a_lookup_of_tensorflow() -> None:
    table, places = tf.constant(TABLE.numpy()), tf.constant(PLACES.numpy())
    function = tf_interop.function(lambda x, index: tf.gather(x, index))
    text = written_by(lambda: function(table, places))
    assert f"@{TARGET}(" in text
    np.testing.assert_array_equal(function(table, places), tf.gather(table, places))
