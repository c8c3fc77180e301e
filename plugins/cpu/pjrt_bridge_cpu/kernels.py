"""What programs for XLA's CPU plugin are made of where the portable lowerings are slow."""

from __future__ import annotations

from pjrt_bridge.torch_interop.lowering.kernels import Kernels
from pjrt_bridge_cpu.aten.products import AtenProducts
from pjrt_bridge_cpu.aten.reductions import AtenReductions
from pjrt_bridge_cpu.aten.rules import Use
from pjrt_bridge_cpu.depthwise import DepthwiseSums
from pjrt_bridge_cpu.reductions import BlockedReductions
from pjrt_bridge_cpu.storing import StoredValues


class XlaKernels(DepthwiseSums, BlockedReductions, StoredValues):
    """What can be said in StableHLO.

    Depthwise convolutions as sums, reductions by columns, shared values stored.
    """


class CpuKernels(AtenProducts, AtenReductions, XlaKernels):
    """The same, with products, and reductions of what is in memory, by PyTorch.

    Args:
        use: writes the calls.
    """

    def __init__(self, use: Use) -> None:
        self.use = use


def kernels(use: Use | None) -> Kernels:
    """Kernels for programs of the plugin.

    Args:
        use: writes calls of PyTorch's kernels; None where there are none.
    """
    return XlaKernels() if use is None else CpuKernels(use)
