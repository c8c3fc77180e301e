"""What a call costs beside the little that it computes.

The 75 layers have 150 parameters, as a small transformer has. "runtime" is the bridge below
torch.compile: tensors in, tensors out, parameters put once. "executable" is what a program of
StableHLO is called as. "raw C" does the same in a loop in C over the plugin's function table, with
nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.case import Array, Asked, Case, JaxWork, TorchWork, functions

_ALL = ("eager", "inductor", "pjrt", "jax", "torch_xla", "runtime", "executable", "raw C")


def _add() -> Case:
    torch, jax = functions(
        (Array((64,)), Array((64,))),
        lambda torch: lambda a, b: a + b,
        lambda jax: lambda a, b: a + b,
    )
    return Case(
        "add of two arrays of 64",
        _ALL,
        torch,
        jax,
        asked=(
            Asked("runtime", 1.5, ("raw C",)),
            Asked("executable", 1.0, ("jax",)),
            Asked("pjrt", 1.0, ("inductor",)),
        ),
        quick=True,
    )


def _layers(count: int, width: int, *, asked: Sequence[Asked] = ()) -> Case:
    batch = 8

    def torch() -> TorchWork:
        import torch

        torch.manual_seed(0)
        linears = [torch.nn.Linear(width, width) for _ in range(count)]
        return TorchWork(torch.nn.Sequential(*linears), (torch.randn(batch, width),))

    return Case(
        f"{count} linear layers, {2 * count} parameters",
        _ALL,
        torch,
        _jax_layers(count, width, batch),
        asked=tuple(asked),
    )


def _jax_layers(count: int, width: int, batch: int) -> Callable[[], JaxWork]:
    def work() -> JaxWork:
        import jax

        keys = jax.random.split(jax.random.key(0), count)
        shape = (width, width)
        layers = [(jax.random.normal(key, shape) / width, jax.numpy.zeros(width)) for key in keys]

        def forward(layers, x):  # type: ignore[no-untyped-def]
            for weight, bias in layers:
                x = x @ weight.T + bias
            return x

        return JaxWork(forward, (layers, jax.numpy.ones((batch, width))))

    return work


CASES = (
    _add(),
    _layers(5, 64),
    _layers(
        75,
        32,
        asked=(
            Asked("runtime", 1.2, ("raw C",)),
            Asked("pjrt", 0.5, ("inductor",)),
            Asked("pjrt", 1.0, ("jax",)),
        ),
    ),
    _layers(500, 16),
)
