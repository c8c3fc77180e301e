"""Kernels for programs of XLA's CPU plugin, with those of PyTorch where they are there."""

from __future__ import annotations

from collections.abc import Callable

from pjrt_bridge_cpu.aten.attention import AtenAttention
from pjrt_bridge_cpu.aten.products import AtenProducts
from pjrt_bridge_cpu.aten.rows import AtenSoftmax
from pjrt_bridge_cpu.aten.rules import UsableKernels
from pjrt_bridge_cpu.aten.transforms import AtenTransforms
from pjrt_bridge_cpu.kernels import XlaKernels


class CpuKernels(AtenAttention, AtenProducts, AtenSoftmax, AtenTransforms, XlaKernels):
    """`XlaKernels`, with PyTorch's kernels where they are faster.

    These are for products, attention, softmax and Fourier transforms.

    Args:
        use: emits the calls.
    """

    def __init__(self, use: UsableKernels) -> None:
        self.use = use

    @property
    def version(self) -> int:
        """How many answers of the trial in the background there are."""
        return 0 if self.use.changes is None else self.use.changes.version()

    def on_change(self, since: int, told: Callable[[], None]) -> None:
        """Have a function called once, as soon as there are more answers; see `Kernels`."""
        if self.use.changes is not None:
            self.use.changes.on_change(since, told)


def kernels(use: UsableKernels | None) -> XlaKernels:
    """Kernels for programs of the plugin.

    Args:
        use: writes calls of PyTorch's kernels; None where there are none.
    """
    return XlaKernels() if use is None else CpuKernels(use)
