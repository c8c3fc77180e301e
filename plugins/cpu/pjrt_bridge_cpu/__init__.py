"""The XLA CPU plugin for pjrt-bridge: where it is, what it is slow at, what else it contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pjrt_bridge.registry import PlatformSpec, PluginSpec, hookimpl, wheel_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pjrt_bridge.runtime import Client, Plugin
    from pjrt_bridge.torch_interop.lowering.api import Kernels, Lowering

SLOWER = {
    "aten._linalg_eigh": 1_024,
    "aten._linalg_svd": 1_024,
    "aten.linalg_cholesky_ex": 16_384,
    "aten.linalg_qr": 16_384,
    "aten.randperm": 10_000,
    "tf.Cholesky": 4_096,
    "tf.DepthwiseConv2dNative": 8_192,
    "tf.DepthwiseConv2dNativeBackpropInput": 131_072,
    "tf.MatrixInverse": 4_096,
    "tf.Qr": 16_384,
    "tf.ResizeBilinear": 8_192,
    "tf.ResizeBilinearGrad": 32_768,
    "tf.SelfAdjointEigV2": 1_024,
    "tf.Svd": 256,
}
"""Elements from which on the framework is faster, on two cores of an AMD EPYC with AVX-512: PyTorch
by `pjrt-bridge calibrate`, rounded up, TensorFlow by `python -m benchmarks.tensorflow_slower`.

XLA's CPU compiler runs loops over sequences and small matrices as they stand, and convolves each
channel of a depthwise convolution by itself. PyTorch's depthwise convolutions are written
otherwise."""

SLOWER_BY_ITSELF = {
    "aten.cumprod": 100_000,
    "aten.cumsum": 100_000,
    "aten.logcumsumexp": 10_000,
    "aten.topk": 100_000,
}
"""The same for what programs call of PyTorch's kernels, where they cannot (`aten`).

XLA's CPU compiler selects the first of 64-bit numbers by sorting them all."""


OPTION_TYPES = {"cpu_device_count": range(1, 4097)}
"""Create options that XLA's CPU plugin reads. It makes no client without devices, and allocates for
as many as it is told before it looks whether it can."""


@hookimpl
def pjrt_bridge_platforms() -> PlatformSpec:
    """What XLA's CPU plugins do wrong in silence, or die of (seen with xla-cpu-pjrt 0.0.1)."""
    return PlatformSpec(
        "cpu",
        compiler_flags={
            # XLA's CPU compiler hands large matrix products to XNNPACK, which packs the right-hand
            # side once and keeps it for as long as that argument has the same address: a weight
            # that was updated in place, or another array that took its memory, is multiplied with
            # its old values. Eigen takes over without XNNPACK, at the same speed.
            "xla_cpu_use_xnnpack": False,
            # Its fast minimum and maximum drop a NaN that is on the right-hand side, which
            # StableHLO keeps.
            "xla_cpu_enable_fast_min_max": False,
        },
        # It takes its calls of oneDNN for calls of another kind when it writes a program, and ends
        # the process with std::bad_alloc.
        unserializable_calls=("__onednn$",),
        ffi_name="HOST",
        option_types=OPTION_TYPES,
    )


@hookimpl
def pjrt_bridge_plugins() -> PluginSpec:
    """The plugin `cpu`, with one device unless a client asks for more.

    Raises:
        PluginNotFound: the wheel that holds the library is not installed.
    """
    return PluginSpec(
        name="cpu",
        library=_library(),
        options={"cpu_device_count": 1},
        # The library accepts unknown names in silence.
        option_types=OPTION_TYPES,
        # Otherwise each client logs its options to standard error.
        environment={"TF_CPP_MIN_LOG_LEVEL": "1"},
        description="XLA on the host's processor",
    )


@hookimpl
def pjrt_bridge_lowerings(plugin: Plugin, client: Client) -> Mapping[str, Lowering] | None:
    """What PyTorch computes faster than XLA's CPU plugin, as calls from within a program."""
    if plugin.name != "cpu":
        return None
    # It needs torch, which who lists plugins may not have.
    from pjrt_bridge_cpu.aten.uses import lowerings, use_of

    use = use_of(client)
    return None if use is None else lowerings(use)


@hookimpl
def pjrt_bridge_kernels(plugin: Plugin, client: Client) -> Kernels | None:
    """Products and reductions as they are fast here."""
    if plugin.name != "cpu":
        return None
    from pjrt_bridge_cpu.aten.uses import use_of
    from pjrt_bridge_cpu.kernels import kernels
    from pjrt_bridge_cpu.memory import keep_freed

    keep_freed()
    return kernels(use_of(client))


def _library() -> Path:
    return wheel_library("xla-cpu-pjrt", "xla_cpu_pjrt.so")


@hookimpl
def pjrt_bridge_slower(plugin: Plugin) -> dict[str, int] | None:
    """What PyTorch and TensorFlow compute faster than XLA's CPU plugin."""
    if plugin.name != "cpu":
        return None
    from pjrt_bridge_cpu.aten import is_off
    from pjrt_bridge_cpu.aten.library import is_at_hand

    return SLOWER if is_at_hand() and not is_off() else {**SLOWER, **SLOWER_BY_ITSELF}
