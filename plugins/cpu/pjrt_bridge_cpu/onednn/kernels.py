"""Which products and convolutions are calls of oneDNN; the others go the portable way.

What the rules let through is what the checks of `kinds` have tried: element types, ranks, where a
transposition is folded into the call, and the attributes of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.lowering.kernels import Convolution, Kernels
from pjrt_bridge_cpu.onednn import calls
from pjrt_bridge_cpu.onednn.calls import BFLOAT16, FLOAT32, Window
from pjrt_bridge_cpu.onednn.kinds import PRODUCT, convolution_kind

Pays = Callable[[str, int], bool]
"""Whether a call of a kind, of a size as its cases count it, is right and faster here."""

NARROWEST = 16
"""A product with a shorter side is bound by memory; XLA is as fast there."""


class OneDnnKernels(Kernels):
    """Products and convolutions by oneDNN where that pays.

    Args:
        pays: tells where.
    """

    def __init__(self, pays: Pays) -> None:
        self._pays = pays

    def product(self, b: Builder, x: Value, y: Value, *, wide: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        if self._takes_product(x, y, dtype):
            left, right = untransposed(b, x), untransposed(b, y)
            if self._pays(PRODUCT, math.prod(x.shape) * y.shape[-1]):
                return calls.matmul(
                    b,
                    x if left is None else left,
                    y if right is None else right,
                    dtype,
                    transpose_x=left is not None,
                    transpose_y=right is not None,
                )
        return super().product(b, x, y, wide=wide, dtype=dtype)

    @staticmethod
    def _takes_product(x: Value, y: Value, dtype: DType) -> bool:
        return (
            x.dtype == y.dtype == BFLOAT16
            and dtype in (BFLOAT16, FLOAT32)
            and x.rank == y.rank
            and 2 <= x.rank <= 4
            and x.shape[:-2] == y.shape[:-2]
            and min(*x.shape[-2:], y.shape[-1]) >= NARROWEST
        )

    def convolution(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        *,
        wide: DType,
        dtype: DType,
    ) -> Value:
        """See `Kernels.convolution`."""
        lhs, rhs, out = (letters[:2] for letters in how.dimension_numbers)
        plain = (
            (lhs, out) == ("NC", "NC")
            and (rhs == "OI" or (rhs == "IO" and how.feature_group_count == 1))
            and how.batch_group_count == 1
            and all(step == 1 for step in how.lhs_dilation)
        )
        typed = (
            x.dtype == weight.dtype
            and x.dtype in (BFLOAT16, FLOAT32)
            and dtype in (x.dtype, FLOAT32)
            and 3 <= x.rank <= 5
            and min(*x.shape, *weight.shape) > 0
        )
        window = None
        if plain and typed:
            window = _window(x, weight, how)
        if window is not None:
            channels = weight.shape[1 if rhs == "IO" else 0]
            sizes = _sizes(x, weight, window)
            result = TensorType((x.shape[0], channels, *sizes), dtype)
            kind = convolution_kind(x.dtype, weight.shape[2:], how.feature_group_count)
            work = result.size * weight.size // channels
            if result.size and self._pays(kind, work):
                return calls.convolution(
                    b,
                    x,
                    weight,
                    result,
                    window=window,
                    groups=how.feature_group_count,
                    input_first=rhs == "IO",
                )
        return super().convolution(b, x, weight, how, wide=wide, dtype=dtype)


def untransposed(b: Builder, value: Value) -> Value | None:
    """What a value is the transposition of, in its last two dimensions; None if it is none.

    Leading dimensions that were only counted differently since (`reshape`) are counted so here.
    """
    origin, rank = value.origin, value.rank
    if origin is None or rank < 2:
        return None
    if origin.permutation is not None:
        swap = (*range(rank - 2), rank - 1, rank - 2)
        return origin.value if origin.permutation == swap else None
    if origin.value.rank < 2 or origin.value.shape[-2:] != value.shape[-2:]:
        return None
    inner = untransposed(b, origin.value)
    if inner is None:
        return None
    return b.reshape(inner, (*value.shape[:-2], *inner.shape[-2:]))


def _window(x: Value, weight: Value, how: Convolution) -> Window | None:
    """The window of a convolution as oneDNN takes it, or None where it does not.

    Padding that is negative only because the last stride reaches less far than the input is 0.
    """
    low = tuple(before for before, _ in how.padding)
    high = tuple(max(after, 0) for _, after in how.padding)
    window = Window(tuple(how.window_strides), low, high, tuple(how.rhs_dilation))
    exact = Window(window.strides, low, tuple(after for _, after in how.padding), window.dilation)
    reaches = [
        (taps - 1) * step for taps, step in zip(weight.shape[2:], window.dilation, strict=True)
    ]
    within = all(
        0 <= before <= reach and after <= reach
        for before, after, reach in zip(low, high, reaches, strict=True)
    )
    return window if within and _sizes(x, weight, window) == _sizes(x, weight, exact) else None


def _sizes(x: Value, weight: Value, window: Window) -> tuple[int, ...]:
    """Sizes of the result; none is negative."""
    return tuple(
        max((size + low + high - (taps - 1) * step - 1) // stride + 1, 0)
        for size, taps, stride, low, high, step in zip(
            x.shape[2:],
            weight.shape[2:],
            window.strides,
            window.low,
            window.high,
            window.dilation,
            strict=True,
        )
    )
