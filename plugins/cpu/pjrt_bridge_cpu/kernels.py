"""Kernels in StableHLO for programs of XLA's CPU plugin: the portable ones are slow, or wrong."""

from __future__ import annotations

from pjrt_bridge_cpu.depthwise import DepthwiseSums
from pjrt_bridge_cpu.materialization import MaterializedValues
from pjrt_bridge_cpu.overwriting import Overwrites
from pjrt_bridge_cpu.positions import CheckedPositions
from pjrt_bridge_cpu.reductions import BlockedReductions


class XlaKernels(
    DepthwiseSums, BlockedReductions, MaterializedValues, Overwrites, CheckedPositions
):
    """Sums in the place of depthwise convolutions, reductions by columns, values in memory."""
