"""Models of every sort as functions of JAX: results and gradients are torch's."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax.numpy as jnp  # noqa: E402

from pjrt_bridge.jax_interop import from_torch  # noqa: E402
from tests.models import running, zoo  # noqa: E402
from tests.models.tolerances import SMALLEST  # noqa: E402

ALWAYS = ("resnet", "lstm")

OTHERS = (
    "gpt2",
    "llama",
    "mixtral",
    "mamba2",
    "bert",
    "t5",
    "hubert",
    "patchtst",
    "convnext",
    "segformer",
    "clip",
    "vit",
    "unet-condition",
    "gnn",
)


@pytest.mark.parametrize("name", ALWAYS)
def test_results_and_gradients(name: str) -> None:
    _compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_results_and_gradients_of_others(name: str) -> None:
    _compare(name)


def _compare(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = zoo.build(name)
    with torch.no_grad():
        model.eval()(**inputs)  # Some make in their first call what cannot be traced.
    model.train()
    function, params = from_torch(model, mutable=True)
    before = {key: jnp.array(value.numpy()) for key, value in model.named_buffers()}
    arrays = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}

    def loss(params: Any) -> Any:
        results, buffers = function(params, buffers=before, **arrays)
        return _loss(results, jnp.asarray), (results, buffers)

    (_, (found, buffers)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    expected = running.plain(model(**inputs))
    _loss(expected, torch.from_numpy).backward()
    _close(found, expected)
    _close(buffers, dict(model.named_buffers()))
    wanted = {key: _gradient(weight) for key, weight in model.named_parameters()}
    _close(gradients, wanted, SMALLEST * max(float(item.abs().max()) for item in wanted.values()))


def _loss(results: Any, array: Any) -> Any:
    """The model's own loss, else a fixed random sum of all that it gives."""
    own = results.get("loss") if isinstance(results, dict) else None
    if own is not None:
        return own
    rng = np.random.default_rng(1)
    leaves = [item for item in jax.tree.leaves(results) if "float" in str(item.dtype)]
    return sum(
        (leaf * array(rng.normal(size=leaf.shape).astype(np.float32))).mean() for leaf in leaves
    )


def _gradient(weight: torch.nn.Parameter) -> torch.Tensor:
    """Zeros where torch computes none."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _close(found: Any, expected: Any, floor: float = 0.0) -> None:
    """Alike to 1e-4 of the largest element, and nested alike."""

    def compare(ours: Any, theirs: torch.Tensor) -> None:
        other = theirs.detach().numpy()
        assert ours.shape == other.shape
        if other.dtype.kind != "f":
            np.testing.assert_array_equal(ours, other)
        elif other.size:
            scale = max(float(np.abs(other).max()), floor)
            np.testing.assert_allclose(np.asarray(ours), other, rtol=0, atol=1e-4 * scale)

    jax.tree.map(compare, found, expected)
