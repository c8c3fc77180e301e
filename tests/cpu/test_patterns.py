"""Functions of other frameworks and exported models get the kernels of the plugin's package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
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
