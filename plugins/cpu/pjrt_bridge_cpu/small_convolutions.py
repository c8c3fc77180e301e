"""Small convolutions, by a call (`aten/native/convolve.c`).

oneDNN and XLA's own code take longer to prepare a convolution than to compute one of a few small
pictures or lines.
"""

from __future__ import annotations

import math

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.convolution_windows import (
    DTYPES,
    MOST_TAPS,
    pairs,
    spatial_sizes,
    turned,
    turned_back,
)
from pjrt_bridge_cpu.depthwise import result_sizes

TARGET = "pjrt_bridge.convolve.1"
"""Name of the custom call. Its number changes with what it is given."""

MOST = 1 << 22
"""Products up to which a convolution is small."""


class SmallConvolutions(Kernels):
    """Convolutions of one or two dimensions of few products.

    Attributes:
        can_convolve_small: the client's plugin makes the custom call.
    """

    can_convolve_small = False

    def convolves_small(self, x: Value, weight: Value, products: int) -> bool:
        """Whether a convolution of data (batches, channels, ...) is a call."""
        return (
            self.can_convolve_small
            and weight.rank in (3, 4)
            and products <= MOST
            and 1 < math.prod(weight.shape[2:]) <= MOST_TAPS
            and x.dtype == weight.dtype
            and str(x.dtype) in DTYPES
            and memory_order(x) == tuple(range(x.rank))
        )

    def convolution(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        *,
        accumulator: DType,
        dtype: DType,
    ) -> Value:
        """See `Kernels.convolution`."""
        if how.batch_group_count == 1 and str(dtype) in DTYPES and x.rank in (3, 4):
            made = self._called(b, x, weight, how, dtype)
            if made is not None:
                return made
        return super().convolution(b, x, weight, how, accumulator=accumulator, dtype=dtype)

    def _called(
        self, b: Builder, x: Value, weight: Value, how: Convolution, dtype: DType
    ) -> Value | None:
        left, right, letters = how.dimension_numbers
        batches, outputs = x.shape[left.index("N")], weight.shape[right.index("O")]
        sizes, taps = spatial_sizes(x, left, "NC"), spatial_sizes(weight, right, "OI")
        places = result_sizes(sizes, taps, how)
        products = batches * math.prod(places) * weight.size
        if not (x.size and 0 < products <= MOST):
            return None
        data, weights = turned(b, x, left, "NC"), turned(b, weight, right, "OI")
        if not self.convolves_small(data, weights, products):
            return None
        groups = how.feature_group_count
        window = [batches, groups, weights.shape[1], outputs // groups]
        window += pairs(
            sizes,
            places,
            taps,
            how.window_strides,
            how.lhs_dilation,
            how.rhs_dilation,
            how.padding,
        )
        (made,) = b.custom_call(
            TARGET,
            [data, weights],
            [TensorType((batches, outputs, *places), dtype)],
            backend_config={"window": np.array(window, np.int64)},
        )
        return turned_back(b, made, letters, "NC")


def can_convolve_small(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "CONVOLVE_SMALL")
