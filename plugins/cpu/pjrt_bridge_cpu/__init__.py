"""The XLA CPU plugin for pjrt-bridge: its builds, what it is slow at, what else it contains."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pjrt_bridge.registry import PlatformSpec, PluginSpec, hookimpl
from pjrt_bridge_cpu import builds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pjrt_bridge.runtime import Client, Plugin
    from pjrt_bridge.torch_interop.lowering.api import Kernels, Lowering

SLOWER = {
    "aten._linalg_det": 4_096,
    "aten._linalg_eigh": 1_024,
    "aten._linalg_slogdet": 4_096,
    "aten._linalg_solve_ex": 4_096,
    "aten._linalg_svd": 1_024,
    "aten.adaptive_max_pool2d": 16_384,
    "aten.cummax": 32_768,
    "aten.cummin": 32_768,
    "aten.kthvalue": 16_384,
    "aten.linalg_cholesky_ex": 16_384,
    "aten.linalg_inv_ex": 4_096,
    "aten.linalg_lu_factor_ex": 4_096,
    "aten.linalg_qr": 16_384,
    "aten.linalg_solve_triangular": 16_384,
    "aten.median": 16_384,
    "aten.nanmedian": 16_384,
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

XLA's CPU compiler runs loops over sequences and small matrices as they stand, compares numbers with
their positions one pair after the other, sorts all for the middle one, and convolves each channel
of a depthwise convolution by itself. PyTorch's depthwise convolutions are written
otherwise."""

SLOWER_BY_ITSELF = {
    "aten.cumprod": 100_000,
    "aten.cumsum": 100_000,
    "aten.logcumsumexp": 10_000,
    "aten.topk": 100_000,
}
"""The same for what programs call of PyTorch's kernels, where they cannot (`aten`).

XLA's CPU compiler selects the first of 64-bit numbers by sorting them all."""


@hookimpl
def pjrt_bridge_platforms() -> PlatformSpec:
    """What makes XLA's CPU plugins give wrong results or end the process."""
    return builds.platform()


@hookimpl
def pjrt_bridge_plugins() -> list[PluginSpec]:
    """The plugin `cpu`, and other builds of it.

    Raises:
        PluginNotFound: no wheel that holds a library is installed.
    """
    return builds.plugins()


@hookimpl
def pjrt_bridge_lowerings(plugin: Plugin, client: Client) -> Mapping[str, Lowering] | None:
    """What PyTorch computes faster than XLA's CPU plugin, as calls from within a program."""
    if not _is_own(plugin):
        return None
    # It needs torch, which is not needed to list plugins.
    from pjrt_bridge_cpu.aten.uses import lowerings, use_of

    use = use_of(client)
    return None if use is None else lowerings(use)


@hookimpl
def pjrt_bridge_kernels(plugin: Plugin, client: Client) -> Kernels | None:
    """Products and reductions as they are fast here."""
    if not _is_own(plugin):
        return None
    from pjrt_bridge_cpu.assembling import can_assemble
    from pjrt_bridge_cpu.bags import can_sum_bags
    from pjrt_bridge_cpu.combining import can_combine
    from pjrt_bridge_cpu.depthwise_calls import can_convolve
    from pjrt_bridge_cpu.expressions import can_compute
    from pjrt_bridge_cpu.extremes import can_locate
    from pjrt_bridge_cpu.few_queries import can_attend_few
    from pjrt_bridge_cpu.gathering import can_gather
    from pjrt_bridge_cpu.norms import can_normalize
    from pjrt_bridge_cpu.pooling import can_pool
    from pjrt_bridge_cpu.recurrences import can_recur
    from pjrt_bridge_cpu.reduced_expressions import can_reduce
    from pjrt_bridge_cpu.scans import can_scan
    from pjrt_bridge_cpu.small_convolutions import can_convolve_small
    from pjrt_bridge_cpu.sorting import can_sort
    from pjrt_bridge_cpu.thin_products import can_multiply_thin
    from pjrt_bridge_cpu.totals import can_total
    from pjrt_bridge_cpu.weighing import can_weigh
    from pjrt_bridge_cpu.windows import can_write

    if "torch" not in sys.modules:
        # Programs of other frameworks do not wait for its import.
        from pjrt_bridge_cpu.kernels import XlaKernels

        found = XlaKernels()
    else:
        from pjrt_bridge_cpu.aten.kernels import kernels
        from pjrt_bridge_cpu.aten.uses import use_of
        from pjrt_bridge_cpu.memory import keep_freed
        from pjrt_bridge_cpu.positions import can_check

        keep_freed()
        found = kernels(use_of(client))
        found.can_check = can_check(client)
    found.can_combine = can_combine(client)
    found.can_compute = can_compute(client)
    found.can_gather = can_gather(client)
    found.can_assemble = can_assemble(client)
    found.can_attend_few = can_attend_few(client)
    found.can_convolve = can_convolve(client)
    found.can_convolve_small = can_convolve_small(client)
    found.can_locate = can_locate(client)
    found.can_multiply_thin = can_multiply_thin(client)
    found.can_normalize = can_normalize(client)
    found.can_pool = can_pool(client)
    found.can_recur = can_recur(client)
    found.can_reduce = can_reduce(client)
    found.can_scan = can_scan(client)
    found.can_sort = can_sort(client)
    found.can_sum_bags = can_sum_bags(client)
    found.can_total = can_total(client)
    found.can_weigh = can_weigh(client)
    found.can_write = can_write(client)
    return found


def _is_own(plugin: Plugin) -> bool:
    return plugin.name == builds.NAME or plugin.name in builds.BUILDS


@hookimpl
def pjrt_bridge_slower(plugin: Plugin) -> dict[str, int] | None:
    """What PyTorch and TensorFlow compute faster than XLA's CPU plugin."""
    if not _is_own(plugin):
        return None
    from pjrt_bridge_cpu.aten import is_off
    from pjrt_bridge_cpu.aten.library import is_at_hand

    return SLOWER if is_at_hand() and not is_off() else {**SLOWER, **SLOWER_BY_ITSELF}
