"""Functions of other frameworks and exported models get the kernels of the plugin's package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch import nn

from pjrt_bridge import tf_interop
from pjrt_bridge.jax_interop import torch_op
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from pjrt_bridge_cpu.aten.calls import KernelCall
from tests.plugins import run_python

pytestmark = pytest.mark.usefixtures("fresh")


@torch_op
def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x @ weight.T


@pytest.mark.parametrize(("rows", "called"), [(2, False), (64, True)])
def test_products_that_jax_wrote_are_calls_where_they_pay(
    rows: int, called: bool, written: Counter[str]
) -> None:
    x, weight = torch.randn(2, rows, 64), torch.randn(96, 64)
    found = torch.compile(lambda *given: linear(*given), backend="pjrt")(x, weight)
    torch.testing.assert_close(found, x @ weight.T)
    assert bool(written["mm.out"]) == called


def test_gradients_of_weights_too(emitted: list[KernelCall]) -> None:
    """In bfloat16 each product pays."""
    x = torch.randn(2, 64, 64, dtype=torch.bfloat16)
    weight = torch.randn(96, 64, dtype=torch.bfloat16, requires_grad=True)
    torch.compile(lambda *given: linear(*given), backend="pjrt")(x, weight).sum().backward()
    expected = torch.ones(128, 96).T @ x.float().reshape(128, 64)
    torch.testing.assert_close(weight.grad, expected.bfloat16())
    shapes = {result.shape for call in emitted for result in call.results}
    assert shapes == {(128, 96), (96, 64)}


def test_exported_models_too(client: Client, written: Counter[str]) -> None:
    model, x = nn.Linear(64, 96), torch.randn(64, 64)
    exported = export(model, (x,))
    assert not written
    assert all("custom_call" not in program.text for program in exported.device_programs)
    loaded = exported.load_on(client)
    np.testing.assert_allclose(loaded(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert written["mm.out"] == 1


def test_functions_of_tensorflow_too(written: Counter[str]) -> None:
    x, weight = (np.random.default_rng(0).standard_normal((64, 64)).astype("f") for _ in range(2))
    found = tf_interop.function(lambda x, y: tf.nn.relu(tf.matmul(x, y, transpose_b=True)))(
        x, weight
    )
    np.testing.assert_allclose(found, np.maximum(x @ weight.T, 0), rtol=1e-4, atol=1e-5)
    assert written["mm.out"] == 1


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"
SIDE = (2, 32, 4, 16)
"""Batch, length, heads and size, as JAX has them."""


@pytest.mark.parametrize("hidden", [-np.inf, -1e9, None])
@pytest.mark.parametrize("sees", [True, False])
def test_attention_that_jax_wrote(
    hidden: float | None, sees: bool, client: Client, written: Counter[str]
) -> None:
    """A query that sees no key gives what the softmax gives: NaN, or the mean of all values."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        if hidden is None:
            return jax.nn.dot_product_attention(q, k, v, mask=mask)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(16.0)
        weights = jax.nn.softmax(jnp.where(mask, scores, hidden), axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    q, k, v = np.random.default_rng(0).standard_normal((3, *SIDE)).astype("f")
    mask = np.tril(np.ones((1, 1, 32, 32), bool))
    mask[0, 0, 7] &= sees
    expected = np.asarray(attend(q, k, v, mask))
    assert np.isnan(expected).any() == (hidden == -np.inf and not sees)
    given = [torch.from_numpy(x) for x in (q, k, v, mask)]
    operator = torch_op(attend)
    found = torch.compile(lambda *x: operator(*x), backend="pjrt")(*given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert written[ATTENTION]


def test_attention_in_exported_models(client: Client, written: Counter[str]) -> None:
    """The program is portable, and the kernel is found where it is loaded."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 32, 64)
    exported = export(layer, (x,))
    assert not written
    with torch.no_grad():
        expected = layer(x)
    np.testing.assert_allclose(exported.load_on(client)(x), expected, rtol=1e-4, atol=1e-5)
    assert written[ATTENTION] == 1


def test_attention_and_softmax_that_tensorflow_wrote(written: Counter[str]) -> None:
    def attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / np.float32(4), axis=-1)
        return tf.nn.softmax(tf.matmul(weights, v), axis=-1)

    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 32, 16)).astype("f")
    found = tf_interop.function(attend)(q, k, v)
    np.testing.assert_allclose(found, attend(q, k, v), rtol=1e-4, atol=1e-6)
    assert written[ATTENTION] == 1
    # The other one is in the way as it was written.
    assert written["_softmax.out"] == 2


def test_gradients_through_attention_that_jax_wrote() -> None:
    """The exponentials are used backward: then nothing is replaced that is needed."""

    @torch_op
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return found.transpose(1, 2)

    given = [torch.randn(SIDE, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(lambda *x: attend(*x), backend="pjrt")
    found = torch.autograd.grad(compiled(*given).square().sum(), given)
    expected = torch.autograd.grad(plain(*given).square().sum(), given)
    for pair in zip(found, expected, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)


WITHOUT_TORCH = """
import sys
import numpy as np
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.registry import client
from pjrt_bridge.registry.targets import kernels_of

found = ExportedModel.load(sys.argv[1]).load_on(client("cpu"))(np.load(sys.argv[2]))
np.testing.assert_allclose(found, np.load(sys.argv[3]), rtol=1e-4, atol=1e-5)
print(type(kernels_of(client("cpu"))).__name__, "torch" in sys.modules)
"""


def test_a_process_without_torch_has_those_that_need_none(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(288, 4))
    x = torch.randn(2, 8, 8, 8)
    export(model, (x,)).save(tmp_path / "model")
    np.save(tmp_path / "given.npy", x)
    np.save(tmp_path / "expected.npy", model(x).detach())
    arguments = [str(tmp_path / name) for name in ("model", "given.npy", "expected.npy")]
    assert run_python(WITHOUT_TORCH, *arguments) == "XlaKernels False"
