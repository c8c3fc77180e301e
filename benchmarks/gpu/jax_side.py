"""The side in JAX: the same module, whose StableHLO is the bridge's, under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks.gpu.models import make
from benchmarks.gpu.side import Floats, Side, peaks
from benchmarks.gpu.torch_side import set_form
from benchmarks.gpu.works import Work
from pjrt_bridge.jax_interop import from_torch

_Step = Callable[..., Any]


def prepare(work: Work) -> Side:
    """Make a work ready; nothing is compiled before the first call."""
    set_form(work.form)
    torch.manual_seed(0)
    made = make(work)
    if work.form == "bf16":
        made.module.to(torch.bfloat16)
    inputs = tuple(_array(x, work.form) for x in made.inputs)
    if work.task == "dispatch":
        return _side(_Repeated(jax.jit(lambda a, b: a + b), inputs))
    module = made.module
    changed = work.task in ("training", "decoding")
    function, own = from_torch(module, mutable=changed)
    device = jax.devices()[0]
    params = {name: jax.device_put(jnp.copy(x), device) for name, x in own.items()}
    if not changed:
        jitted = jax.jit(function)
        return _side(_Repeated(jitted, (params, *inputs)))
    buffers = {name: _array(x, work.form) for name, x in module.named_buffers()}
    if work.task == "decoding":
        return _side(_Decoding(_decoding(function), params, buffers, *inputs))
    update, state = (
        (_sgd, _moments(params, 1))
        if work.model == "resnet50"
        else (
            _adamw,
            _moments(params, 2),
        )
    )
    return _side(_Training(_training(function, update), params, buffers, state, inputs))


def _array(x: torch.Tensor, form: str) -> Any:
    """On the device, in the work's element type; JAX has no 64-bit integers by default."""
    if not x.is_floating_point():
        return jax.device_put(x.numpy().astype(np.int32))
    kind = jnp.bfloat16 if form == "bf16" else jnp.float32
    return jax.device_put(x.float().numpy()).astype(kind)


def _side(call: Any) -> Side:
    return Side(call, jax.block_until_ready, call.floats, call.again, _memory)


def _memory() -> dict[str, int]:
    return peaks(jax.devices()[0].memory_stats() or {})


def _floats(x: Any) -> Floats:
    return np.asarray(x, dtype=np.float32)


class _Repeated:
    """The same call again and again."""

    def __init__(self, function: Any, inputs: tuple[Any, ...]) -> None:
        self._function = function
        self._inputs = inputs

    def __call__(self) -> Any:
        return self._function(*self._inputs)

    def floats(self, found: Any) -> Floats:
        """Of the first text or image."""
        return _floats(found[:1])

    def again(self) -> None:
        """Nothing is to be done."""


class _Decoding:
    """Calls that each take the token before."""

    def __init__(self, step: _Step, params: Any, buffers: Any, tokens: Any, position: Any) -> None:
        self._step = step
        self._params = params
        self._buffers = buffers
        self._first = tokens
        self._tokens = tokens
        self._position = position

    def __call__(self) -> Any:
        found, self._buffers = self._step(self._params, self._buffers, self._tokens, self._position)
        self._tokens, self._position, logits = found
        return logits

    def floats(self, found: Any) -> Floats:
        """The logits."""
        return _floats(found)

    def again(self) -> None:
        """Go on with the first token."""
        self._tokens = self._first


def _decoding(function: Any) -> _Step:
    def step(params: Any, buffers: Any, tokens: Any, position: Any) -> Any:
        return function(params, tokens, position, buffers=buffers)

    return jax.jit(step, donate_argnums=1)


class _Training:
    """Steps that each take the parameters of the step before."""

    def __init__(
        self, step: _Step, params: Any, buffers: Any, state: Any, inputs: tuple[Any, ...]
    ) -> None:
        self._step = step
        self._held = params, buffers, state
        self._inputs = inputs

    def __call__(self) -> Any:
        loss, self._held = self._step(self._held, *self._inputs)
        return loss

    def floats(self, found: Any) -> Floats:
        """The loss."""
        return _floats(found)

    def again(self) -> None:
        """Nothing is to be done."""


def _training(function: Any, update: Any) -> _Step:
    def step(held: Any, *inputs: Any) -> Any:
        params, buffers, state = held

        def loss_of(params: Any) -> Any:
            return function(params, *inputs, buffers=buffers)

        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        return loss, (*_split(update(params, gradients, state), buffers),)

    return jax.jit(step, donate_argnums=0)


def _split(updated: Any, buffers: Any) -> tuple[Any, Any, Any]:
    params, state = updated
    return params, buffers, state


def _moments(params: Any, count: int) -> Any:
    zeros = [jax.tree.map(jnp.zeros_like, params) for _ in range(count)]
    return jnp.zeros((), jnp.int32), *zeros


def _sgd(params: Any, gradients: Any, state: Any) -> Any:
    """As torch.optim.SGD(lr=1e-3, momentum=0.9)."""
    count, momentum = state
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, momentum), (count + 1, momentum)


def _adamw(params: Any, gradients: Any, state: Any) -> Any:
    """As torch.optim.AdamW(lr=1e-4)."""
    count, first, second = state
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    small, large = 1 - 0.9**count, 1 - 0.999**count

    def updated(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - 1e-4 * 1e-2) - 1e-4 / small * m / (jnp.sqrt(v / large) + 1e-8)

    return jax.tree.map(updated, params, first, second), (count, first, second)
