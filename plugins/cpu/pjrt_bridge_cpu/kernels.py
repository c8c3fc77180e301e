"""Kernels in StableHLO for programs of XLA's CPU plugin: the portable ones are slow, or wrong."""

from __future__ import annotations

from pjrt_bridge_cpu.assembling import AssembledArrays
from pjrt_bridge_cpu.bags import SummedBags
from pjrt_bridge_cpu.bfloat16_products import Bfloat16Products
from pjrt_bridge_cpu.combining import CombinedElements
from pjrt_bridge_cpu.complex_products import ComplexProducts
from pjrt_bridge_cpu.data_orders import ConvolutionsInOrder
from pjrt_bridge_cpu.depthwise import DepthwiseSums
from pjrt_bridge_cpu.depthwise_calls import CalledDepthwise
from pjrt_bridge_cpu.expressions import FusedExpressions
from pjrt_bridge_cpu.extremes import LocatedExtremes
from pjrt_bridge_cpu.few_queries import FewQueries
from pjrt_bridge_cpu.functions import VectorFunctions
from pjrt_bridge_cpu.gathering import GatheredElements
from pjrt_bridge_cpu.materialization import MaterializedValues
from pjrt_bridge_cpu.norms import NormalizedRows
from pjrt_bridge_cpu.overwriting import Overwrites
from pjrt_bridge_cpu.pooling import PooledWindows
from pjrt_bridge_cpu.positions import CheckedPositions
from pjrt_bridge_cpu.recurrences import Recurrences
from pjrt_bridge_cpu.reductions import BlockedReductions
from pjrt_bridge_cpu.scans import Scans
from pjrt_bridge_cpu.small_convolutions import SmallConvolutions
from pjrt_bridge_cpu.small_products import SmallProducts
from pjrt_bridge_cpu.sorting import SortedRows
from pjrt_bridge_cpu.thin_products import ThinProducts
from pjrt_bridge_cpu.weighing import WeighedSums


class XlaKernels(
    AssembledArrays,
    CombinedElements,
    CalledDepthwise,
    SmallConvolutions,
    DepthwiseSums,
    ConvolutionsInOrder,
    FewQueries,
    FusedExpressions,
    GatheredElements,
    BlockedReductions,
    LocatedExtremes,
    MaterializedValues,
    NormalizedRows,
    Overwrites,
    PooledWindows,
    CheckedPositions,
    Recurrences,
    ComplexProducts,
    ThinProducts,
    SmallProducts,
    Scans,
    SortedRows,
    SummedBags,
    VectorFunctions,
    WeighedSums,
    Bfloat16Products,
):
    """Kernels in StableHLO, in the place of what the compiler is slow at.

    And custom calls, where the client's plugin makes them, of kernels in C.
    """

    # Below 1,000 the client runs a program inline (`xla/pjrt/cpu/cpu_client.cc`). The compiler may
    # compute something twice where that is read twice.
    inline_flops = 900
