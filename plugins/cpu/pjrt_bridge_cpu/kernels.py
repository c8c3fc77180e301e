"""Kernels in StableHLO for programs of XLA's CPU plugin, where the portable ones are slow."""

from __future__ import annotations

from pjrt_bridge_cpu.depthwise import DepthwiseSums
from pjrt_bridge_cpu.materialization import MaterializedValues
from pjrt_bridge_cpu.positions import CheckedPositions
from pjrt_bridge_cpu.reductions import BlockedReductions


class XlaKernels(DepthwiseSums, BlockedReductions, MaterializedValues, CheckedPositions):
    """Depthwise convolutions as sums, reductions by columns, materialized values, checks."""
