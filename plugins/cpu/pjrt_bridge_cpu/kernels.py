"""What programs for XLA's CPU plugin are made of where the portable kernels are slow."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pjrt_bridge.torch_interop.lowering.kernels import Kernels
from pjrt_bridge_cpu.depthwise import DepthwiseSums
from pjrt_bridge_cpu.onednn import is_off
from pjrt_bridge_cpu.onednn.kernels import OneDnnKernels
from pjrt_bridge_cpu.onednn.probe import pays
from pjrt_bridge_cpu.reductions import BlockedReductions
from pjrt_bridge_cpu.storing import StoredValues
from pjrt_bridge_cpu.turning import TurnedProducts


class _Written(TurnedProducts, BlockedReductions, StoredValues):
    """Products with transposed weights turned, reductions by columns, shared values stored."""


class XlaKernels(DepthwiseSums, _Written):
    """What can be said in StableHLO: the same, and depthwise convolutions as sums."""


class CpuKernels(DepthwiseSums, OneDnnKernels, _Written):
    """The same, with products and other convolutions by oneDNN."""


def kernels(library: Path | None) -> Kernels:
    """Kernels for programs of a build of the plugin.

    Args:
        library: the build, where it is known to contain oneDNN.
    """
    if library is None or is_off():
        return XlaKernels()
    return CpuKernels(partial(pays, library))
