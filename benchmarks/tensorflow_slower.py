"""From which sizes on TensorFlow is faster than XLA's CPU plugin, each operation in a function.

`python -m benchmarks.tensorflow_slower` prints it.

Each operation stands between two that the device runs, so what it costs to divide the function is
in it. The numbers stand in `pjrt_bridge_cpu.SLOWER`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import pjrt_bridge
from pjrt_bridge.tf_interop.compiled import Settings
from pjrt_bridge.tf_interop.function import Function

_ROUNDS = 15


@dataclass(frozen=True)
class _Leaving(Settings):
    """Leaves operations of one type to TensorFlow, whatever their size."""

    type: str = ""

    def slower(self) -> Mapping[str, int]:
        return {f"tf.{self.type}": 1}


@dataclass(frozen=True)
class _Case:
    """An operation: what it does with an array, and the shapes to try."""

    compute: Callable[[Any], Any]
    shapes: Sequence[tuple[int, ...]]


def _depthwise(x: Any) -> Any:
    return tf.nn.depthwise_conv2d(x, tf.ones([3, 3, x.shape[3], 1]), [1] * 4, "SAME")


def _gradient(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(compute(x) ** 2)
        return tape.gradient(total, x)

    return slope


def _definite(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: compute(x @ tf.transpose(x) + x.shape[0] * tf.eye(x.shape[0]))


_IMAGES = tuple((1, side, side, 8) for side in (8, 16, 32, 64, 128))
_MATRICES = tuple((side, side) for side in (8, 16, 32, 64, 128))

_CASES = {
    "Cholesky": _Case(_definite(tf.linalg.cholesky), _MATRICES),
    "DepthwiseConv2dNative": _Case(_depthwise, _IMAGES),
    "DepthwiseConv2dNativeBackpropInput": _Case(_gradient(_depthwise), _IMAGES),
    "MatrixInverse": _Case(_definite(tf.linalg.inv), _MATRICES),
    "Qr": _Case(lambda x: tf.linalg.qr(x)[1], _MATRICES),
    "ResizeBilinear": _Case(lambda x: tf.image.resize(x, [3 * x.shape[1] // 4] * 2), _IMAGES),
    "ResizeBilinearGrad": _Case(
        _gradient(lambda x: tf.image.resize(x, [3 * x.shape[1] // 4] * 2)), _IMAGES
    ),
    "SelfAdjointEigV2": _Case(_definite(lambda x: tf.linalg.eigh(x)[0]), _MATRICES[:-1]),
    "Svd": _Case(lambda x: tf.linalg.svd(x)[0], _MATRICES[:-1]),
}


def _seconds(functions: Sequence[Callable[[Any], Any]], x: Any) -> list[float]:
    """The median of each, called in turns."""
    for function in functions:
        for _ in range(3):
            function(x)
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(_ROUNDS):
        for function, found in zip(functions, times, strict=True):
            function(x)
            started = time.perf_counter()
            function(x)
            found.append(time.perf_counter() - started)
    return list(map(statistics.median, times))


def main() -> None:
    """Print, for each operation and size, the time in TensorFlow in units of the device's."""
    client = pjrt_bridge.client("cpu")
    for type, case in _CASES.items():

        def between(x: Any, compute: Callable[[Any], Any] = case.compute) -> Any:
            return tf.tanh(compute(tf.tanh(x)))

        for shape in case.shapes:
            settings = (_Leaving(client, "host", type=type), Settings(client, "host", "device"))
            functions = [Function(between, one, None) for one in settings]
            host, device = _seconds(functions, tf.random.normal(shape))
            print(
                f"{type:36} {tf.TensorShape(shape).num_elements():9,} elements  "
                f"{host / device:5.2f}  host {host * 1e6:9.0f} us, device {device * 1e6:9.0f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()
