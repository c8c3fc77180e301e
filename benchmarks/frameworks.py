"""What a function of another framework costs within torch: `python -m benchmarks.frameworks`.

Two sides in one interleaved run: a block of GPT-2 small, and the same block whose feed-forward
network is a function of JAX. Both are compiled by the backend; ratios are of medians. Then a small
operator in eager, beside the call of `jax.jit` on JAX's own arrays; and small models with all their
gradients as functions of JAX, beside the backend.
"""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from benchmarks.cases.networks import gpt2_block
from benchmarks.interleave import measure
from pjrt_bridge.jax_interop import from_torch, torch_op
from pjrt_bridge.torch_interop import compiled_graphs
from tests.models import running, zoo

_ROUNDS = 21

_MODELS = (
    *("gpt2", "llama", "bert", "t5", "hubert", "patchtst", "convnext", "segformer", "clip"),
    *("vit", "unet-condition", "gnn", "resnet", "lstm"),
)


@torch_op
def feed_forward(x: Any, expand: Any, expand_bias: Any, reduce: Any, reduce_bias: Any) -> Any:
    """GPT-2's, with the approximation of gelu by tanh."""
    hidden = jax.nn.gelu(x @ expand + expand_bias, approximate=True)
    return hidden @ reduce + reduce_bias


class _FeedForward(torch.nn.Module):
    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.expand, self.reduce = mlp.c_fc, mlp.c_proj

    def forward(self, x: torch.Tensor) -> Any:
        return feed_forward(
            x, self.expand.weight, self.expand.bias, self.reduce.weight, self.reduce.bias
        )


def main() -> None:
    """Print the ratios."""
    model, (example,) = gpt2_block()
    with_jax = copy.deepcopy(model)
    with_jax.block.mlp = _FeedForward(with_jax.block.mlp)
    sides = {"torch": model, "with JAX": with_jax}
    compiled = {name: torch.compile(side, backend="pjrt") for name, side in sides.items()}

    def forward(name: str) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return compiled[name](example)

        return call

    def step(name: str) -> Callable[[], Any]:
        def call() -> Any:
            sides[name].zero_grad()
            loss = compiled[name](example).square().mean()
            loss.backward()
            return loss

        return call

    for case, make in (("forward", forward), ("forward and backward", step)):
        calls = {name: make(name) for name in sides}
        difference = (calls["torch"]() - calls["with JAX"]()).abs().max().item()
        ratio = measure(case, calls, rounds=_ROUNDS).ratio("with JAX", "torch")
        print(f"GPT-2 block, {case}: {ratio:.3f}x, results differ by {difference:.1e}")
    gradients = zip(*(side.parameters() for side in sides.values()), strict=True)
    largest = max((a.grad - b.grad).abs().max().item() for a, b in gradients)
    print(f"largest difference of a gradient: {largest:.1e}")
    for graph in compiled_graphs():
        copied = sum(segment.bytes_copied for segment in graph.segments)
        print(f"{graph.kind}: {len(graph.segments)} segments, {copied} bytes copied")
    _eager()
    _models()


def _eager() -> None:
    def function(x: Any, y: Any) -> Any:
        return jnp.tanh(x) * y

    operator, jitted = torch_op(function), jax.jit(function)
    x, y = torch.ones(4, 4), torch.ones(4, 4)
    a, b = jnp.ones((4, 4)), jnp.ones((4, 4))
    found = measure(
        "eager",
        {"torch_op": lambda: operator(x, y), "jax.jit": lambda: jitted(a, b).block_until_ready()},
        rounds=_ROUNDS,
    )
    times = ", ".join(f"{name} {1e6 * found.medians[name]:.1f} us" for name in found.medians)
    print(f"an operator in eager: {found.ratio('torch_op', 'jax.jit'):.2f}x of jax.jit ({times})")


def _models() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    ratios = []
    for name in _MODELS:
        calls, difference = _with_gradients(name)
        times = measure(name, calls, rounds=_ROUNDS)
        ratios.append(times.ratio("JAX", "torch"))
        print(f"{name} as a function of JAX: {ratios[-1]:.2f}x, losses differ by {difference:.1e}")
    print(f"{len(ratios)} models: {statistics.geometric_mean(ratios):.2f}x of the backend's time")


def _with_gradients(name: str) -> tuple[dict[str, Callable[[], Any]], float]:
    """Calls that compute a model's gradients, and the relative difference of their losses."""
    torch.manual_seed(0)
    model, inputs = zoo.build(name)
    model.eval()
    with torch.no_grad():
        model(**inputs)  # Some make in their first call what cannot be traced.
    function, own = from_torch(model)
    params = jax.tree.map(jnp.copy, own)
    arrays = {
        key: jnp.asarray(value.numpy()) if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }

    @jax.jit
    @jax.value_and_grad
    def step(params: Any) -> Any:
        found = jax.tree.leaves(function(params, **arrays))
        return sum(jnp.square(x).sum() for x in found if jnp.issubdtype(x.dtype, jnp.floating))

    compiled = torch.compile(model, backend="pjrt")

    def in_jax() -> Any:
        loss, gradients = step(params)
        jax.block_until_ready(gradients)
        return loss.item()

    def in_torch() -> Any:
        model.zero_grad()
        found = jax.tree.leaves(running.plain(compiled(**inputs)))
        tensors = (x for x in found if isinstance(x, torch.Tensor) and x.is_floating_point())
        loss = sum((x.square().sum() for x in tensors), torch.zeros(()))
        loss.backward()
        return loss.item()

    expected = in_torch()
    return {"JAX": in_jax, "torch": in_torch}, abs(in_jax() - expected) / abs(expected)


if __name__ == "__main__":
    main()
