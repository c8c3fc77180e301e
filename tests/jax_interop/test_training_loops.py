"""Loops of JAX's libraries train models of PyTorch, and their optimizers PyTorch's parameters."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax", reason="optax is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pjrt_bridge.jax_interop import from_torch, torch_op  # noqa: E402
from pjrt_bridge.torch_interop import compiled_graphs  # noqa: E402
from tests.models import zoo  # noqa: E402

STEPS = 10
RATE = 1e-3
EPSILON = 1e-5
"""Biases of keys have no gradient but for rounding, of which Adam's own epsilon makes steps."""


def losses_of_torch(model: Any, inputs: dict[str, Any]) -> list[float]:
    """Trains a model in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPSILON, weight_decay=0.01)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_equinox_and_optax_train_a_transformer(name: str) -> None:
    """A module of Equinox whose weights are those of the model, in its own filtered step."""
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")

    class Model(equinox.Module):  # type: ignore[misc]
        weights: Any
        function: Callable[..., Any] = equinox.field(static=True)

        def __call__(self, **inputs: Any) -> Any:
            return self.function(self.weights, **inputs)

    torch.manual_seed(0)
    original, inputs = zoo.build(name)
    original.eval()
    function, weights = from_torch(copy.deepcopy(original))
    model = Model(weights, function)
    arrays = {key: value.numpy() for key, value in inputs.items()}
    optimizer = optax.adamw(RATE, eps=EPSILON, weight_decay=0.01)
    state = optimizer.init(equinox.filter(model, equinox.is_array))

    @equinox.filter_jit
    def step(model: Any, state: Any) -> Any:
        loss, gradients = equinox.filter_value_and_grad(lambda m: m(**arrays)["loss"])(model)
        updates, state = optimizer.update(gradients, state, equinox.filter(model, equinox.is_array))
        return equinox.apply_updates(model, updates), state, loss

    found = []
    for _ in range(STEPS):
        model, state, loss = step(model, state)
        found.append(float(loss))
    expected = losses_of_torch(original, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert expected[-1] < expected[0]
    for key, weight in original.named_parameters():
        np.testing.assert_allclose(model.weights[key], weight.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_optax_updates_parameters_of_torch(compiled: bool) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, weight_decay=0.01))
    begin, update = torch_op(optimizer.init), torch_op(optimizer.update)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    twin = copy.deepcopy(model)
    params = dict(model.named_parameters())
    state = begin({key: value.detach() for key, value in params.items()})
    x, y = torch.randn(32, 8), torch.randn(32, 1)

    @torch.no_grad()
    def apply(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = update(gradients, state, params)
        for key, value in params.items():
            value.add_(updates[key])
        return state

    step = torch.compile(apply, backend="pjrt") if compiled else apply
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.01)
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(params.values()))
        state = step(params, state, dict(zip(params, gradients, strict=True)))
        theirs.zero_grad()
        torch.nn.functional.mse_loss(twin(x), y).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        theirs.step()
    for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if compiled:
        (graph,) = compiled_graphs()
        assert len(graph.segments) == 1
