"""Kernels for programs of XLA's CPU plugin, with those of PyTorch where they are there."""

from __future__ import annotations

from pjrt_bridge_cpu.aten.attention import AtenAttention
from pjrt_bridge_cpu.aten.products import AtenProducts
from pjrt_bridge_cpu.aten.reductions import AtenReductions
from pjrt_bridge_cpu.aten.rows import AtenSoftmax
from pjrt_bridge_cpu.aten.rules import UsableKernels
from pjrt_bridge_cpu.kernels import XlaKernels


class CpuKernels(AtenAttention, AtenProducts, AtenReductions, AtenSoftmax, XlaKernels):
    """`XlaKernels`, with PyTorch's kernels for products, attention, softmax and reductions.

    Of reductions those of values in memory.

    Args:
        use: emits the calls.
    """

    def __init__(self, use: UsableKernels) -> None:
        self.use = use


def kernels(use: UsableKernels | None) -> XlaKernels:
    """Kernels for programs of the plugin.

    Args:
        use: writes calls of PyTorch's kernels; None where there are none.
    """
    return XlaKernels() if use is None else CpuKernels(use)
