"""What patterns gain in programs that JAX wrote: `python -m benchmarks.patterns`.

Processor time of a call, which other work does not lengthen: the program as it was written, and as
the kernels of the plugin's package compute it. Medians of calls that take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from pjrt_bridge.registry import client
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.stablehlo.patterns import for_target
from pjrt_bridge.stablehlo.program.program import Program

_ROUNDS = 31

Case = tuple[str, Callable[..., Any], Sequence[Any]]


def main() -> None:
    """Print a table."""
    found = client("cpu")
    kernels = kernels_of(found)
    # Kernels of PyTorch are used where it is in the process.
    print(f"PyTorch {torch.__version__}, {type(kernels).__name__}")
    print("| | as written | by kernels | |")
    print("|---|---|---|---|")
    for name, function, arrays in _cases():
        program = Program.from_text(jax.jit(function).lower(*arrays).as_text())
        sides = [found.compile(program), found.compile(for_target(program, kernels))]
        results = [[np.asarray(item) for item in side(*arrays)] for side in sides]
        for pair in zip(*results, strict=True):
            np.testing.assert_allclose(*pair, rtol=1e-3, atol=1e-5)
        times: list[list[float]] = [[], []]
        for _ in range(_ROUNDS):
            for side, spent in zip(sides, times, strict=True):
                start = time.process_time()
                for item in side(*arrays):
                    np.asarray(item)
                spent.append(time.process_time() - start)
        written, computed = map(statistics.median, times)
        ratio = computed / written
        print(f"| {name} | {1e3 * written:.2f} ms | {1e3 * computed:.2f} ms | {ratio:.2f}x |")


def _cases() -> Iterator[Case]:
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    yield "softmax 8x256x256", lambda x: jax.nn.softmax(x, -1), [drawn(8, 256, 256)]
    for length in (256, 1024):
        sides = [drawn(1, length, 8, 64) for _ in range(3)]
        name = f"attention, 8 heads of {length}x64"
        yield name, jax.nn.dot_product_attention, sides
        yield f"{name}, causal", _causal, sides
    shared = [drawn(2, 256, 8, 64), drawn(2, 256, 2, 64), drawn(2, 256, 2, 64)]
    yield "attention, 2x8 heads of 256x64 over 2 of keys", _causal, shared
    weights = [drawn(2048, 768), drawn(768), drawn(768)]
    yield "layer norm 2048x768", _layer_norm, weights
    yield "RMS norm 2048x768", _rms_norm, weights[:2]
    angles = [np.linspace(-1, 1, 100_000, dtype=np.float32)]
    for function in (jnp.sin, jnp.cos, jnp.tan, jnp.arctan, jnp.arccos):
        yield f"{function.__name__} of 100,000", function, angles
    signal = [drawn(64, 1024)]
    yield "Fourier transforms, 64 of 1024 complex", lambda x: jnp.abs(jnp.fft.fft(x + 1j)), signal
    yield "Fourier transforms there and back, 64 of 1024", _there_and_back, signal
    numbers = [drawn(256, 256) + 1j * drawn(256, 256) for _ in range(2)]
    yield "product 256x256x256, complex", jnp.matmul, numbers
    yield "2,000 products of 8x8", jnp.matmul, [drawn(2000, 8, 8), drawn(2000, 8, 8)]


def _causal(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def _there_and_back(x: Any) -> Any:
    return jnp.fft.irfft(jnp.fft.rfft(x) * 2)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    shifted = x - x.mean(-1, keepdims=True)
    return shifted * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def _rms_norm(x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weight


if __name__ == "__main__":
    main()
